//! Keys that another program holds.

use async_trait::async_trait;

use super::*;
use crate::refusal::Unavailable;
use crate::signer::ca::CaCertificate;
use crate::signer::key::CaKey;

/// An external program that changes its signatures.
struct Program {
    key: CaKey,
    away: bool,
    refuses: bool,
    change: fn(Vec<u8>) -> Vec<u8>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Program")
    }
}

impl Program {
    fn of(pki: &Pki) -> Self {
        let ca = CaCertificate::from_pem(pki.certificate().as_bytes()).unwrap();
        Self {
            key: CaKey::from_pem(pki.key().as_bytes(), &ca).unwrap(),
            away: false,
            refuses: false,
            change: |signature| signature,
        }
    }

    fn for_ca(self, pki: &Pki) -> Signer {
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

    async fn sign(&self, request: &SigningRequest<'_>) -> Result<Vec<u8>, ExternalKeyError> {
        if self.refuses {
            return Err(ExternalKeyError::Refused(Unavailable::new("no")));
        }
        let signature = self.key.sign(request.to_be_signed).unwrap();
        Ok((self.change)(signature))
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
        // Only the two numbers, as PKCS #11 returns them.
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
