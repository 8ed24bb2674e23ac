//! The verifier: the part that an infrastructure provider writes.

use std::time::SystemTime;

use kubelet_attestation::evidence::Header;
use kubelet_attestation::names::{NodeName, Provider};
use kubelet_attestation::version::EvidenceVersion;
use node_attestation_core::reasons;
use node_attestation_core::refusal::{Denial, Refusal};
use node_attestation_core::verifier::{Appraisal, Assurance, AttestedIdentity, Identity, Verifier};

reasons! {
    /// The reason for denying the evidence of a machine with a rubber stamp.
    pub(crate) NullDenial: EvidenceReason {
        /// The operator of the controller withholds the rubber stamp from this node.
        #[error("the stamp is withheld from node {node_name}")]
        #[cure("Run the controller without `--deny-for`.")]
        StampWithheld {
            /// The node.
            node_name: NodeName,
        } => "the stamp is withheld from this node",
    }
}

/// A verifier that vouches for every machine whose evidence is for this cluster.
#[derive(Debug)]
pub(crate) struct RubberStamp {
    versions: [EvidenceVersion; 1],
    panic_for: Option<NodeName>,
    deny_for: Option<NodeName>,
}

impl RubberStamp {
    pub(crate) fn new(panic_for: Option<NodeName>, deny_for: Option<NodeName>) -> Self {
        Self {
            versions: [EvidenceVersion::V1],
            panic_for,
            deny_for,
        }
    }

    fn appraise(&self, appraisal: Appraisal<'_>) -> Result<Assurance, Refusal> {
        assert_ne!(
            Some(appraisal.node_name),
            self.panic_for.as_ref(),
            "asked for"
        );
        let evidence = appraisal.evidence.ok_or(Denial::EvidenceMissing)?;
        let header = Header::parse(evidence)
            .map_err(|error| Denial::EvidenceMalformed(error.to_string()))?;
        if !appraisal.audiences.contains(&header.audience) {
            return Err(Denial::AudienceMismatch(header.audience).into());
        }
        if self.deny_for.as_ref() == Some(appraisal.node_name) {
            return Err(NullDenial::StampWithheld {
                node_name: appraisal.node_name.clone(),
            }
            .into());
        }
        // A verifier of real evidence takes the identity from the verified parts, and requires that they cover
        // `KeyBinding::new(..)` of the appraisal's fields. A rubber stamp is not evidence, so this verifier accepts the
        // claim without a check.
        let identity = Identity::of(appraisal.provider_id.clone());
        Ok(Assurance::Attested(AttestedIdentity::vouched(identity)))
    }
}

#[async_trait::async_trait]
impl Verifier for RubberStamp {
    fn provider(&self) -> &Provider {
        &Provider::NULL
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &self.versions
    }

    async fn verify(
        &self,
        appraisal: Appraisal<'_>,
        _now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        self.appraise(appraisal)
    }
}
