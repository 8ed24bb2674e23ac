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
pub enum Due {
    /// Print it.
    Nothing,
    /// Get another with it, and print it if that takes too long.
    Renewal,
    /// There is none that holds: get one with the bootstrap credential.
    Enrolment,
}

impl Due {
    /// Decides; `ca_changed` says that the cluster has other CA certificates than when the
    /// credential was issued.
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

#[cfg(test)]
mod tests {
    use kubelet_attestation::names::NodeName;

    use super::*;
    use crate::kube::kubeconfig::EndpointFields;
    use crate::machine::MachineDigest;

    const CA: &str = "-----BEGIN CERTIFICATE-----\n";

    fn info(data: Option<&str>) -> String {
        let data = data.map_or("null".to_owned(), |data| format!("\"{data}\""));
        format!(
            r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{{"cluster":{{"server":"https://x","certificate-authority-data":{data}}}}}}}"#
        )
    }

    fn changed(data: Option<&str>) -> bool {
        let endpoint = EndpointFields {
            ca_pem: CA.to_owned(),
            ..EndpointFields::default()
        };
        let node_name = NodeName::parse("n1").unwrap();
        let origin = Origin::new(node_name, endpoint, MachineDigest::default(), None);
        let text = info(data);
        let info = crate::exec::ExecInfo::parse(text.as_ref()).unwrap();
        ca_changed(info.cluster.as_ref(), Some(&origin))
    }

    #[test]
    fn a_ca_has_changed_if_its_bytes_have() {
        assert!(!changed(Some(&STANDARD.encode(CA))));
        assert!(changed(Some(&STANDARD.encode(format!("{CA}{CA}")))));
        assert!(changed(Some("no base64")));
        assert!(!changed(None));
        assert!(!ca_changed(None, None));
    }

    #[test]
    fn nothing_stored_is_an_enrolment() {
        let now = SystemTime::UNIX_EPOCH;
        for renewal in [Renewal::Attested, Renewal::Impossible] {
            assert_eq!(
                Due::of(&Stored::default(), renewal, false, now),
                Due::Enrolment
            );
        }
    }
}
