//! Measures how many requests from machines with TPMs one core appraises per second, without the network: first
//! requests (parsing and `TPM2_MakeCredential`) and second requests (parsing and the quote).
//!
//! `cargo bench -p node-attestation-tpm` prints a table and writes `target/bench/tpm.json`: a list of
//! `{name, value, unit, least}`. Exit code 1 means that a value is below its limit.

#![expect(clippy::print_stdout, reason = "it prints what it measured")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what is measured must work"
)]

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::future::FutureExt as _;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::Header;
use kubelet_attestation::evidence::tpm::{
    CHALLENGE_ANNOTATION, Challenge, Enrolment, PublicAreas, Quote, Registers, Response,
    TpmEvidence,
};
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{AttestationKey, EndorsementKey, TpmMachine};
use node_attestation_core::crd::TpmSettings;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::inventory::Machine;
use node_attestation_core::refusal::{Failure, Refusal};
use node_attestation_core::verifier::platform::NoPlatform;
use node_attestation_core::verifier::{Appraisal, Assurance, Verifier as _};
use node_attestation_tpm::challenge::{ChallengeKey, ChallengeKeys};
use node_attestation_tpm::policy::TpmPolicy;
use node_attestation_tpm::verifier::TpmVerifier;

/// The minimum number of requests of each kind, per second and per core.
const LIMIT: f64 = 1_000.0;

/// The duration of each measurement. It is so long that other processes do not affect the result.
const DURATION: Duration = Duration::from_secs(2);

const SPKI: &[u8] = b"the key of the request";

/// A machine whose provider ID contains its TPM's key, and the verifier for its cluster.
struct Bed {
    tpm: TpmMachine,
    verifier: TpmVerifier,
    machine: Machine,
    provider_id: ProviderId,
    audiences: [Audience; 1],
    node_name: NodeName,
    now: SystemTime,
}

impl Bed {
    fn of(tpm: TpmMachine) -> Self {
        let provider_id = format!("tpm://{}", KeyDigest::of(&tpm.ek_spki()));
        let provider_id = ProviderId::parse(&provider_id).unwrap();
        let mut machine = Machine::new("m1");
        machine.provider_id = Some(provider_id.clone());
        let keys = ChallengeKeys {
            current: ChallengeKey::new([1; 32]),
            former: Some(ChallengeKey::new([2; 32])),
        };
        Self {
            tpm,
            verifier: TpmVerifier::new(
                "4e2f0e0c-6a2c-4a54-9a2c-0a4b7f3f8a01",
                TpmPolicy::new(&TpmSettings::default()).unwrap(),
                Arc::new(NoPlatform),
                Arc::new(Arc::new(keys)),
            ),
            machine,
            provider_id,
            audiences: [Audience::parse("prod").unwrap()],
            node_name: NodeName::parse("n1").unwrap(),
            now: SystemTime::UNIX_EPOCH + Duration::from_hours(490_908),
        }
    }

    fn decide(&self, evidence: &[u8]) -> Result<Assurance, Refusal> {
        let appraisal = Appraisal {
            evidence: Some(evidence),
            audiences: &self.audiences,
            provider_id: &self.provider_id,
            node_name: &self.node_name,
            spki: SPKI,
            machine: &self.machine,
            asked: self.now,
        };
        let decided = self.verifier.verify(appraisal, self.now).now_or_never();
        decided.expect("the verifier does not wait")
    }

    fn enrolment(&self) -> Enrolment {
        Enrolment {
            header: Header {
                version: EvidenceVersion::V1,
                audience: Audience::parse("prod").unwrap(),
            },
            certificate: None,
            intermediates: Vec::new(),
            keys: PublicAreas {
                endorsement: self.tpm.ek_public(),
                attestation: self.tpm.ak_public(),
            },
        }
    }

    fn response(&self) -> Response {
        let Enrolment { header, keys, .. } = self.enrolment();
        let decided = self.decide(&TpmEvidence::Enrol(self.enrolment()).to_json());
        let Err(Refusal::Fail(Failure::ChallengeIssued { annotations, .. })) = decided else {
            panic!("no challenge");
        };
        let challenge = annotations.iter().find_map(|(name, value)| {
            (*name == CHALLENGE_ANNOTATION).then(|| Challenge::parse(value))
        });
        let challenge = challenge.unwrap().unwrap();
        let opened = self
            .tpm
            .activate(&challenge.credential_blob, &challenge.encrypted_secret);
        let binding = KeyBinding::new(
            &Provider::TPM,
            &header.audience,
            &self.provider_id,
            &self.node_name,
            SPKI,
            &[challenge.id.as_bytes(), &opened.unwrap()],
        );
        let quote = self
            .tpm
            .quote(binding.as_bytes(), &[0, 1, 2, 3, 4, 5, 6, 7]);
        Response {
            header,
            id: challenge.id,
            expiry: challenge.expiry,
            keys,
            quote: Quote {
                attest: quote.attest,
                signature: quote.signature,
                registers: Registers::new(quote.registers).unwrap(),
            },
        }
    }
}

/// The number of calls per second.
fn rate(mut once: impl FnMut()) -> f64 {
    once();
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed() < DURATION {
        once();
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

fn main() -> ExitCode {
    let tpm = Arc::new(Swtpm::start());
    let machine = |key| TpmMachine::new(tpm.clone(), key);
    let mut rates = Vec::new();
    for (name, key) in [
        ("RSA-2048", EndorsementKey::Rsa2048),
        ("P-256", EndorsementKey::P256),
        ("P-384", EndorsementKey::P384),
    ] {
        let bed = Bed::of(machine(key));
        let evidence = TpmEvidence::Enrol(bed.enrolment()).to_json();
        let challenges = rate(|| assert!(bed.decide(&evidence).is_err()));
        rates.push((format!("challenges, endorsement key {name}"), challenges));
    }
    for (name, key) in [
        ("ECDSA P-256", AttestationKey::ecdsa()),
        ("RSASSA 2048", AttestationKey::rsassa()),
    ] {
        let bed = Bed::of(machine(EndorsementKey::P256).with_attestation_key(key));
        let evidence = TpmEvidence::Respond(bed.response()).to_json();
        let quotes = rate(|| assert!(bed.decide(&evidence).is_ok()));
        rates.push((format!("quotes, attestation key {name}"), quotes));
    }
    report(&rates)
}

fn report(rates: &[(String, f64)]) -> ExitCode {
    let mut json = String::new();
    for (name, rate) in rates {
        println!("{name:<40} {rate:>8.0} a second (at least {LIMIT:.0})");
        let separator = if json.is_empty() { "[" } else { ",\n " };
        // Writing to a string cannot fail, and the names do not contain characters that JSON escapes.
        let _ = write!(
            json,
            r#"{separator}{{"name": "{name}", "value": {rate:.0}, "unit": "/s", "least": {LIMIT:.0}}}"#
        );
    }
    json.push_str("]\n");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("tpm.json"), json).unwrap();
    if rates.iter().all(|(_, rate)| *rate >= LIMIT) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
