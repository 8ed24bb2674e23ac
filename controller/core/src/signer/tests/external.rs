//! Tests of CA keys that another program holds.

use std::fmt;

use async_trait::async_trait;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::version::EvidenceVersion;

use super::*;
use crate::refusal::{Denial, Ignored, Unavailable};
use crate::request::ApprovalReason;
use crate::signer::ca::CaCertificate;
use crate::signer::key::CaKey;
use crate::testing::condition;
use crate::verifier::{Appraisal, Assurance, Verifier, Verifiers};

/// An external program that returns changed signatures.
pub(super) struct Program {
    key: CaKey,
    away: bool,
    refuses: bool,
    serves: bool,
    change: fn(Vec<u8>) -> Vec<u8>,
}

impl Debug for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Program")
    }
}

impl Program {
    pub(super) fn of(pki: &Pki) -> Self {
        let ca = CaCertificate::from_pem(pki.certificate().as_bytes()).unwrap();
        Self {
            key: CaKey::from_pem(pki.key().as_bytes(), &ca).unwrap(),
            away: false,
            refuses: false,
            serves: false,
            change: |signature| signature,
        }
    }

    pub(super) fn for_ca(self, pki: &Pki) -> Signer {
        Signer::with_external_key(pki.certificate().as_bytes(), Arc::new(self)).unwrap()
    }
}

#[async_trait]
impl ExternalKey for Program {
    async fn check(&self) -> Result<(), ExternalKeyError> {
        if self.away {
            return Err(ExternalKeyError::Unavailable(Unavailable::new("away")));
        }
        Ok(())
    }

    fn signs_kubelet_serving(&self) -> bool {
        self.serves
    }

    async fn sign(&self, request: &SigningRequest<'_>) -> Result<Vec<u8>, ExternalKeyError> {
        if self.refuses {
            return Err(ExternalKeyError::Refused(Unavailable::new("no")));
        }
        let signature = self.key.sign(request.to_be_signed).unwrap();
        Ok((self.change)(signature))
    }
}

/// A verifier that rejects all evidence because of its age.
#[derive(Debug)]
struct Expired {
    versions: [EvidenceVersion; 1],
}

#[async_trait]
impl Verifier for Expired {
    fn provider(&self) -> &Provider {
        &Provider::NULL
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &self.versions
    }

    async fn verify(&self, _: Appraisal<'_>, _: SystemTime) -> Result<Assurance, Refusal> {
        Err(Failure::EvidenceExpired.into())
    }
}

fn decided_by(signer: Signer) -> (Decision, Context) {
    let now = late(&signer);
    let cluster = cluster_of(signer);
    (decided_at(&valid(), &cluster, now), cluster)
}

#[test]
fn an_external_key_of_every_kind_signs_a_valid_chain() {
    for key in [
        &["genrsa", "2048"][..],
        &["genrsa", "4096"],
        &["ecparam", "-genkey", "-name", "prime256v1"],
        &["ecparam", "-genkey", "-name", "secp384r1"],
        &["ecparam", "-genkey", "-name", "secp521r1"],
    ] {
        let pki = Pki::with_key(key);
        let signer = Program::of(&pki).for_ca(&pki);
        let now = late(&signer);

        let issued = issued_at(&valid(), &cluster_of(signer), now);

        pki.verify(&issued.pem, now);
    }
}

#[test]
fn a_wrong_signature_is_never_issued() {
    let changes: [fn(Vec<u8>) -> Vec<u8>; 4] = [
        |_| Vec::new(),
        |mut signature| {
            signature.push(0);
            signature
        },
        |mut signature| {
            if let Some(last) = signature.last_mut() {
                *last ^= 1;
            }
            signature
        },
        // The signature contains only the two numbers, as PKCS #11 returns them.
        |_| vec![1; 64],
    ];
    for key in [
        &["genrsa", "2048"][..],
        &["ecparam", "-genkey", "-name", "prime256v1"],
    ] {
        let pki = Pki::with_key(key);
        for change in changes {
            let program = Program {
                change,
                ..Program::of(&pki)
            };

            let (decision, _) = decided_by(program.for_ca(&pki));

            let expected = matches!(decision, Decision::Retry(Deferral::SignatureInvalid));
            assert!(expected, "{decision:?}");
        }
    }
}

#[test]
fn a_signature_by_another_key_is_never_issued() {
    for key in [
        &["genrsa", "2048"][..],
        &["ecparam", "-genkey", "-name", "prime256v1"],
        &["ecparam", "-genkey", "-name", "secp384r1"],
    ] {
        let pki = Pki::new();

        let (decision, _) = decided_by(Program::of(&Pki::with_key(key)).for_ca(&pki));

        let expected = matches!(decision, Decision::Retry(Deferral::SignatureInvalid));
        assert!(expected, "{decision:?}");
    }
}

#[test]
fn no_node_name_is_claimed_without_an_available_external_signer() {
    let pki = Pki::new();
    let program = Program {
        away: true,
        ..Program::of(&pki)
    };

    let (decision, cluster) = decided_by(program.for_ca(&pki));

    let expected = matches!(decision, Decision::Retry(Deferral::SignerUnavailable(_)));
    assert!(expected, "{decision:?}");
    assert_eq!(block_on(cluster.ledger.records().all()).unwrap().len(), 0);
}

#[test]
fn old_evidence_fails_while_the_external_signer_is_unavailable() {
    let pki = Pki::new();
    let program = Program {
        away: true,
        ..Program::of(&pki)
    };
    let signer = program.for_ca(&pki);
    let now = late(&signer);
    let verifier: Arc<dyn Verifier> = Arc::new(Expired {
        versions: [EvidenceVersion::V1],
    });
    let cluster = Context {
        verifiers: Verifiers::from_iter([verifier]),
        ..cluster_of(signer)
    };

    let decision = decided_at(&valid(), &cluster, now);

    let expected = matches!(decision, Decision::Fail(Failure::EvidenceExpired));
    assert!(expected, "{decision:?}");
}

#[test]
fn a_refusal_by_the_external_signer_is_retried_instead_of_denied() {
    let pki = Pki::new();
    let program = Program {
        refuses: true,
        ..Program::of(&pki)
    };

    let (decision, cluster) = decided_by(program.for_ca(&pki));

    let expected = matches!(decision, Decision::Retry(Deferral::SignerRefused(_)));
    assert!(expected, "{decision:?}");
    let signer = Program::of(&pki).for_ca(&pki);
    let now = late(&signer);
    let cluster = Context {
        ledger: cluster.ledger,
        ..cluster_of(signer)
    };
    pki.verify(&issued_at(&valid(), &cluster, now).pem, now);
}

#[test]
fn a_ca_of_another_kind_or_size_has_no_signer() {
    for key in [
        &["genrsa", "1024"][..],
        &["genpkey", "-algorithm", "ED25519"],
        &["ecparam", "-genkey", "-name", "secp256k1"],
    ] {
        let pki = Pki::made_of(key, "/CN=ca", &CA_EXTENSIONS);
        let any = Arc::new(Program::of(&Pki::new()));

        let signer = Signer::with_external_key(pki.certificate().as_bytes(), any);

        assert_eq!(signer.unwrap_err(), InvalidCa::KeyKind, "{key:?}");
    }
}

/// The cluster in which node `n1` has joined, which uses this signer.
fn serving_by(signer: Signer) -> Context {
    Context {
        signer: signer.into(),
        ..serving_cluster()
    }
}

fn serves(pki: &Pki) -> Signer {
    let program = Program {
        serves: true,
        ..Program::of(pki)
    };
    program.for_ca(pki)
}

/// A request from a stock kubelet.
fn stock() -> CertificateSigningRequest {
    serving_object(&serving_csr(&[dns("n1"), ip(ADDRESS)]))
}

#[test]
fn a_kubelet_serving_request_is_signed_only_by_a_signer_that_serves() {
    let pki = Pki::new();
    let signer = serves(&pki);
    let now = late(&signer);

    let cluster = serving_by(signer);
    let issued = issued_at(&stock(), &cluster, now);

    assert_eq!(
        issued.approval_reason,
        ApprovalReason::ServingNamesCorroborated
    );
    assert_eq!(issued.not_after, now + cluster.longest_lifetime);
    pki.verify_server(&issued.pem, now);
    // Without an external signer, kube-controller-manager signs the request.
    for signer in [Program::of(&pki).for_ca(&pki), pki.signer().unwrap()] {
        let decision = decided_at(&stock(), &serving_by(signer), now);
        assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");
    }
}

#[test]
fn a_kubelet_serving_request_that_is_signed_here_passes_every_check() {
    let pki = Pki::new();
    let now = late(&serves(&pki));
    let decided =
        |request: &CertificateSigningRequest| decided_at(request, &serving_by(serves(&pki)), now);
    let foreign = serving_object(&serving_csr(&[dns("n1"), ip([192, 0, 2, 2])]));
    let decision = decided(&foreign);
    let denied = matches!(
        decision,
        Decision::Deny(Denial::ServingNameNotReported { .. })
    );
    assert!(denied, "{decision:?}");
    let mut another = stock();
    another.spec.username = Some("system:node:n2".to_owned());
    let decision = decided(&another);
    let denied = matches!(
        decision,
        Decision::Deny(Denial::RequesterIsAnotherNode { .. })
    );
    assert!(denied, "{decision:?}");
}

#[test]
fn an_approved_kubelet_serving_request_is_signed_after_a_crash() {
    let pki = Pki::new();
    let signer = serves(&pki);
    let now = late(&signer);
    let cluster = serving_by(signer);
    let mut approved = condition("Approved");
    approved.reason = Some(ApprovalReason::ServingNamesCorroborated.reason().to_owned());
    let mut request = stock();
    let status = request.status.get_or_insert_default();
    status.conditions = Some(vec![approved]);

    pki.verify_server(&issued_at(&request, &cluster, now).pem, now);

    let status = request.status.get_or_insert_default();
    status.certificate = Some(k8s_openapi::ByteString(b"x".to_vec()));
    let decision = decided_at(&request, &cluster, now);
    let ignored = matches!(decision, Decision::Ignore(Ignored::AlreadyIssued));
    assert!(ignored, "{decision:?}");
}

#[test]
fn a_kubelet_serving_request_waits_while_its_signer_refuses() {
    let pki = Pki::new();
    let program = Program {
        serves: true,
        refuses: true,
        ..Program::of(&pki)
    };
    let signer = program.for_ca(&pki);
    let now = late(&signer);

    let decision = decided_at(&stock(), &serving_by(signer), now);

    let waits = matches!(decision, Decision::Retry(Deferral::SignerRefused(_)));
    assert!(waits, "{decision:?}");
}

#[test]
fn only_a_serving_certificate_of_this_controller_has_its_form() {
    let pki = Pki::new();
    let signer = serves(&pki);
    let now = late(&signer);
    let cluster = serving_by(signer);
    let own = issued_at(&stock(), &cluster, now).pem.clone();
    assert!(!is_other_serving(own.as_bytes()));

    let client = cluster_of(Program::of(&pki).for_ca(&pki));
    let client = issued_at(&valid(), &client, now).pem.clone();
    for other in [client.as_str(), &pki.certificate(), "", "x"] {
        assert!(is_other_serving(other.as_bytes()), "{other}");
    }
}
