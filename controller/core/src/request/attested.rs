//! A request whose machine was attested.

use std::time::SystemTime;

use kubelet_attestation::names::Audience;

use super::{ClientRequest, LocatedCsr, Requester};
use crate::identifiers::CertificateUid;
use crate::inventory::Machine;
use crate::ledger::Claimant;
use crate::policy::machine;
use crate::refusal::{Deferral, Denial, Failure, Refusal};
use crate::verifier::{Appraisal, Assurance, AttestedIdentity, Identity, Verifier};

/// A request from a machine whose evidence was verified, or whose provider requires no evidence.
#[derive(Debug)]
pub struct AttestedCsr {
    csr: LocatedCsr,
    standing: ClaimOrRenewal,
}

/// The kind of the request. Only an attested identity can renew.
#[derive(Debug)]
pub(super) enum ClaimOrRenewal {
    /// The machine claims its node name with this credential.
    Claiming(Assurance, Claimant),
    /// The machine renews the node identity of this certificate.
    Renewing(AttestedIdentity, CertificateUid),
}

impl LocatedCsr {
    /// Lets the verifier appraise the evidence, and checks that the evidence identifies the located machine.
    pub async fn attest(
        self,
        audiences: &[Audience],
        now: SystemTime,
    ) -> Result<AttestedCsr, Refusal> {
        let (request, verifier) = (self.request(), self.verifier());
        if request.evidence.is_some() {
            has_provider_id(self.machine(), verifier)?;
        }
        let appraisal = Appraisal {
            evidence: request.evidence.as_deref(),
            audiences,
            provider_id: &request.provider_id,
            node_name: &request.node_name,
            spki: &request.spki,
            machine: self.machine(),
            asked: request.created.unwrap_or(now),
        };
        let appraised = verifier.verify(appraisal, now).await;
        let endorsement_key = match &appraised {
            Ok(assurance) => assurance.identity().endorsement_key,
            Err(Refusal::Fail(Failure::ChallengeIssued {
                endorsement_key, ..
            })) => Some(*endorsement_key),
            Err(_) => None,
        };
        machine::is_annotated(request.annotated_key.as_deref(), endorsement_key)?;
        let assurance = appraised?;
        machine::is_attested(self.machine(), &request.provider_id, assurance.identity())?;
        let standing = match (&request.requester, assurance) {
            (Requester::First { .. }, assurance) => {
                ClaimOrRenewal::Claiming(assurance, Claimant::Token)
            }
            // The ledger's policy determines whether such a claim is allowed without evidence.
            (Requester::Unmarked, assurance) => ClaimOrRenewal::Claiming(assurance, Claimant::Node),
            (Requester::Renewal { uid }, Assurance::Attested(identity)) => {
                ClaimOrRenewal::Renewing(identity, *uid)
            }
            (Requester::Renewal { .. }, Assurance::None(_)) => {
                return Err(Denial::UnattestedRenewal.into());
            }
        };
        Ok(AttestedCsr {
            csr: self,
            standing,
        })
    }
}

/// Checks that the infrastructure has set the machine's provider ID, if the verifier requires the provider ID.
pub(crate) fn has_provider_id(machine: &Machine, verifier: &dyn Verifier) -> Result<(), Deferral> {
    if verifier.accepts_late_provider_ids() {
        return Ok(());
    }
    machine::is_named(machine)
}

impl AttestedCsr {
    /// The requested certificate.
    pub fn request(&self) -> &ClientRequest {
        self.csr.request()
    }

    /// The machine, from the inventory.
    pub fn machine(&self) -> &Machine {
        self.csr.machine()
    }

    /// The identity, attested or only claimed.
    pub fn identity(&self) -> &Identity {
        match &self.standing {
            ClaimOrRenewal::Claiming(assurance, _) => assurance.identity(),
            ClaimOrRenewal::Renewing(identity, _) => identity.identity(),
        }
    }

    pub(super) fn standing(&self) -> &ClaimOrRenewal {
        &self.standing
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, SystemTime};

    use futures::executor::block_on;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use kubelet_attestation::names::Provider;
    use kubelet_attestation::version::EvidenceVersion;

    use crate::inventory::{Inventory, Machine, StaticInventory};
    use crate::refusal::{Deferral, Denial, Failure, Refusal};
    use crate::request::{LocatedCsr, RawRequest};
    use crate::testing::cluster::machine;
    use crate::testing::{cluster, now, valid};
    use crate::verifier::{Appraisal, Assurance, InsecureVerifier, Verifier};

    /// A verifier that records the creation time of the last request that it appraised.
    #[derive(Debug)]
    struct RecordingVerifier {
        asked: Mutex<Option<SystemTime>>,
        versions: [EvidenceVersion; 1],
        accepts_late_provider_ids: bool,
    }

    impl RecordingVerifier {
        fn new(accepts_late_provider_ids: bool) -> Arc<Self> {
            Arc::new(Self {
                asked: Mutex::default(),
                versions: [EvidenceVersion::V1],
                accepts_late_provider_ids,
            })
        }
    }

    #[async_trait::async_trait]
    impl Verifier for RecordingVerifier {
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
            *self.asked.lock().unwrap() = Some(appraisal.asked);
            Err(Failure::EvidenceExpired.into())
        }

        fn accepts_late_provider_ids(&self) -> bool {
            self.accepts_late_provider_ids
        }
    }

    #[test]
    fn a_verifier_receives_the_creation_time_of_the_request() {
        let clerk = RecordingVerifier::new(false);
        let asked = |created| {
            let csr = located(&clerk, cluster().inventory.as_ref(), created);
            let refused = block_on(csr.attest(&[], now()));
            let expected = matches!(refused, Err(Refusal::Fail(Failure::EvidenceExpired)));
            assert!(expected, "{refused:?}");
            clerk.asked.lock().unwrap().unwrap()
        };
        let earlier = now() - Duration::from_mins(7);

        assert_eq!(asked(Some(earlier)), earlier);
        assert_eq!(asked(None), now());
    }

    #[test]
    fn a_machine_without_a_provider_id_waits_unless_the_verifier_accepts_that() {
        for accepts_late_provider_ids in [false, true] {
            let clerk = RecordingVerifier::new(accepts_late_provider_ids);
            let unnamed = Machine {
                provider_id: None,
                unnamed: true,
                ..machine("m1", "n1", Some("abcdef"))
            };
            let inventory = StaticInventory::new(vec![unnamed]).unwrap();
            let csr = located(&clerk, &inventory, None);

            let refused = block_on(csr.attest(&[], now())).unwrap_err();

            let waits = matches!(&refused, Refusal::Retry(Deferral::MachineNotFound));
            assert_eq!(waits, !accepts_late_provider_ids, "{refused:?}");
            let appraised = clerk.asked.lock().unwrap().is_some();
            assert_eq!(appraised, accepts_late_provider_ids);
        }
    }

    fn located(
        clerk: &Arc<RecordingVerifier>,
        inventory: &dyn Inventory,
        created: Option<SystemTime>,
    ) -> LocatedCsr {
        let verifier: Arc<dyn Verifier> = clerk.clone();
        let cluster = cluster();
        let mut request = valid();
        let created = created.map(|time| Time(Timestamp::try_from(time).unwrap()));
        request.metadata.creation_timestamp = created;
        let raw = RawRequest::triage(&request, &cluster.verifiers).unwrap();
        let csr = raw
            .parse()
            .unwrap()
            .conform_client(&verifier, cluster.longest_lifetime)
            .unwrap();
        block_on(csr.locate(inventory)).unwrap()
    }

    #[test]
    fn a_verifier_of_another_provider_cannot_check_a_request() {
        let cluster = cluster();
        let raw = RawRequest::triage(&valid(), &cluster.verifiers).unwrap();
        let verifier: Arc<dyn Verifier> = Arc::new(InsecureVerifier);

        let refused = raw
            .parse()
            .unwrap()
            .conform_client(&verifier, cluster.longest_lifetime);

        assert!(matches!(
            refused,
            Err(Refusal::Deny(Denial::ProviderMismatch { .. }))
        ));
    }
}
