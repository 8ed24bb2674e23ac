//! What is to be done about a stored credential.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::attester::Renewal;
use crate::exec::ExecCluster;
use crate::origin::Origin;
use crate::rotation::Rotation;
use crate::stored::Stored;

/// What is to be done about a stored credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the flow decides by it, so a new case must not pass unseen"
)]
pub enum Due {
    /// Print it.
    Nothing,
    /// Get another with it, and print it if that takes too long.
    Renewal,
    /// There is none that holds: get one with the bootstrap credential.
    Enrolment,
}

impl Due {
    /// Decides; `ca_changed` says that the cluster has other CA certificates than when the credential was issued.
    pub fn of(stored: &Stored, renewal: Renewal, ca_changed: bool, now: SystemTime) -> Self {
        let Some(credential) = &stored.credential else {
            return Self::Enrolment;
        };
        let leaf = credential.leaf();
        match (leaf.validity.rotation(now, leaf.jitter), renewal) {
            (Rotation::Enrol, _) => Self::Enrolment,
            // Used to its end, whatever is due.
            (Rotation::Keep | Rotation::Renew, Renewal::Impossible) => Self::Nothing,
            (Rotation::Keep, Renewal::Attested) if !ca_changed => Self::Nothing,
            (Rotation::Keep | Rotation::Renew, Renewal::Attested) => Self::Renewal,
        }
    }
}

/// Whether client-go names other CA certificates than the stored credential was issued under.
pub(super) fn ca_changed(cluster: Option<&ExecCluster<'_>>, origin: Option<&Origin>) -> bool {
    let data = cluster.and_then(|cluster| cluster.certificate_authority_data.as_deref());
    let (Some(data), Some(origin)) = (data, origin) else {
        return false;
    };
    // What cannot be decoded is for the slow path to complain about.
    STANDARD
        .decode(data)
        .map_or(true, |pem| pem != origin.endpoint.ca_pem.as_bytes())
}
