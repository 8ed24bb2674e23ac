//! A machine with a real TPM (in software), and a cluster that lists the TPM.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use futures::TryFutureExt as _;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::Header;
use kubelet_attestation::evidence::tpm::{
    CHALLENGE_ANNOTATION, Challenge, Enrolment, PublicAreas, Quote, Registers, Response,
    TpmEvidence,
};
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{self, EndorsementKey, TpmMachine};
use node_attestation_core::crd::{AllowedEndorsementKey, TpmSettings};
use node_attestation_core::identifiers::{KeyDigest, ServingName};
use node_attestation_core::inventory::Machine;
use node_attestation_core::refusal::{Denial, Failure, Refusal, Unavailable};
use node_attestation_core::testing::pauses;
use node_attestation_core::verifier::platform::{KeyKind, NoPlatform, Platform};
use node_attestation_core::verifier::{Appraisal, Assurance, AttestedIdentity, Verifier as _};

use crate::challenge::{ChallengeKey, ChallengeKeys};
use crate::denial::TpmDenial;
use crate::key_lists::KeyLists;
use crate::policy::TpmPolicy;
use crate::verifier::TpmVerifier;

/// The TPM of the machine `m1`, for tests that do not leave any objects behind.
pub(crate) static TPM: LazyLock<Arc<Swtpm>> = LazyLock::new(|| Arc::new(Swtpm::start()));
/// Another TPM from the same manufacturer.
pub(crate) static ANOTHER: LazyLock<Arc<Swtpm>> = LazyLock::new(|| Arc::new(Swtpm::start()));

/// The machine's default response, and the challenge to which it responds.
pub(crate) static GOOD: LazyLock<Good> = LazyLock::new(|| Good::of(&machine(), &Case::valid()));

/// The quoted registers.
pub(crate) const REGISTERS: [u8; 3] = [0, 4, 7];

pub(crate) fn machine() -> TpmMachine {
    TpmMachine::new(TPM.clone(), EndorsementKey::P256)
}

/// Two requests of one machine, and the challenge between them.
#[derive(Debug, Clone)]
pub(crate) struct Good {
    pub(crate) enrolment: Enrolment,
    pub(crate) challenge: Challenge,
    pub(crate) response: Response,
}

impl Good {
    /// Creates the evidence that the machine sends to the cluster for the request in `case`.
    #[track_caller]
    pub(crate) fn of(machine: &TpmMachine, case: &Case) -> Self {
        let enrolment = enrolment(machine);
        let challenge = case.challenge(&enrolment);
        let response = respond(machine, case, &enrolment, &challenge);
        Self {
            enrolment,
            challenge,
            response,
        }
    }
}

pub(crate) fn header() -> Header {
    Header {
        version: EvidenceVersion::V1,
        audience: Audience::parse("prod").unwrap(),
    }
}

#[track_caller]
pub(crate) fn enrolment(machine: &TpmMachine) -> Enrolment {
    Enrolment {
        header: header(),
        certificate: machine.ek_certificate(),
        intermediates: Vec::new(),
        keys: PublicAreas {
            endorsement: machine.ek_public(),
            attestation: machine.ak_public(),
        },
    }
}

/// Responds to the challenge as the node does.
#[track_caller]
pub(crate) fn respond(
    machine: &TpmMachine,
    case: &Case,
    enrolment: &Enrolment,
    challenge: &Challenge,
) -> Response {
    let secret = machine
        .activate(&challenge.credential_blob, &challenge.encrypted_secret)
        .unwrap();
    let quote = machine.quote(&case.qualifying(challenge, &secret), &REGISTERS);
    answer(enrolment, challenge, quote)
}

/// A response that contains this quote.
pub(crate) fn answer(
    enrolment: &Enrolment,
    challenge: &Challenge,
    quote: tpm_machine::Quote,
) -> Response {
    Response {
        header: enrolment.header.clone(),
        id: challenge.id,
        expiry: challenge.expiry.clone(),
        keys: enrolment.keys.clone(),
        quote: Quote {
            attest: quote.attest,
            signature: quote.signature,
            registers: Registers::new(quote.registers).unwrap(),
        },
    }
}

/// A platform that reports one endorsement key and node name for every machine, or is unavailable.
#[derive(Debug, Clone)]
pub(crate) enum FakePlatform {
    Knows(KeyDigest),
    Names(KeyDigest, &'static str),
    /// The platform returns the key, but is unavailable after that.
    ForgotTheName(KeyDigest),
    /// The platform denies the machine.
    Denies(KeyDigest),
    OutOfOrder,
}

#[async_trait::async_trait]
impl Platform for FakePlatform {
    async fn endorsement_key(
        &self,
        _provider_id: &ProviderId,
        _kind: KeyKind,
    ) -> Result<Option<KeyDigest>, Unavailable> {
        match self {
            Self::Knows(key)
            | Self::Names(key, _)
            | Self::ForgotTheName(key)
            | Self::Denies(key) => Ok(Some(*key)),
            Self::OutOfOrder => Err(Unavailable::new("out of order")),
        }
    }

    async fn check(&self, _provider_id: &ProviderId, _now: SystemTime) -> Result<(), Refusal> {
        match self {
            Self::Denies(_) => Err(Denial::EvidenceMissing.into()),
            Self::Knows(_) | Self::Names(..) | Self::ForgotTheName(_) | Self::OutOfOrder => Ok(()),
        }
    }

    async fn node_name(&self, _provider_id: &ProviderId) -> Result<Option<NodeName>, Unavailable> {
        match self {
            Self::Knows(_) | Self::Denies(_) => Ok(None),
            Self::Names(_, name) => Ok(Some(NodeName::parse(name).unwrap())),
            Self::ForgotTheName(_) | Self::OutOfOrder => Err(Unavailable::new("out of order")),
        }
    }

    async fn serving_names(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        let names = self
            .node_name(provider_id)
            .map_ok(|name| name.map(|name| vec![ServingName::Dns(name.to_string())]));
        names.await
    }
}

/// A request, and the settings of the cluster that receives it.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) cluster_uid: &'static str,
    pub(crate) settings: TpmSettings,
    pub(crate) lists: Option<Arc<dyn KeyLists>>,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) keys: ChallengeKeys,
    pub(crate) audiences: Vec<Audience>,
    pub(crate) machine: Machine,
    pub(crate) provider_id: &'static str,
    pub(crate) node_name: &'static str,
    pub(crate) spki: &'static [u8],
    pub(crate) asked: SystemTime,
    pub(crate) now: SystemTime,
}

/// 2026-01-01T12:00:00Z.
pub(crate) fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(490_908)
}

pub(crate) fn key(byte: u8) -> ChallengeKey {
    ChallengeKey::new([byte; 32])
}

const PROVIDER_ID: &str = "metal:///rack-1/7";

impl Case {
    /// A request from machine `m1`, whose P-256 endorsement key is in the list.
    #[track_caller]
    pub(crate) fn valid() -> Self {
        static DIGEST: LazyLock<KeyDigest> = LazyLock::new(|| digest(&machine()));
        let mut case = Self::of_nobody();
        case.allow("m1", *DIGEST);
        case
    }

    /// A request from machine `m1`, whose endorsement key is not registered.
    pub(crate) fn of_nobody() -> Self {
        let mut machine = Machine::new("m1");
        machine.provider_id = Some(ProviderId::parse(PROVIDER_ID).unwrap());
        Self {
            cluster_uid: "4e2f0e0c-6a2c-4a54-9a2c-0a4b7f3f8a01",
            settings: TpmSettings::default(),
            lists: None,
            platform: Arc::new(NoPlatform),
            keys: ChallengeKeys {
                current: key(1),
                former: None,
            },
            audiences: vec![Audience::parse("prod").unwrap()],
            machine,
            provider_id: PROVIDER_ID,
            node_name: "n1",
            spki: b"the key of the request",
            asked: noon(),
            now: noon(),
        }
    }

    /// Adds a machine's endorsement key to the list.
    pub(crate) fn allow(&mut self, machine: &str, key: KeyDigest) {
        let keys = &mut self.settings.endorsement_keys;
        keys.allow_list.push(AllowedEndorsementKey {
            machine: Some(machine.to_owned()),
            ek_sha256: key.to_string(),
            ..AllowedEndorsementKey::default()
        });
    }

    /// Adds a host's endorsement key to the list.
    pub(crate) fn allow_host(&mut self, host: &str, key: KeyDigest) {
        let keys = &mut self.settings.endorsement_keys;
        keys.allow_list.push(AllowedEndorsementKey {
            provider_id: Some(host.to_owned()),
            ek_sha256: key.to_string(),
            ..AllowedEndorsementKey::default()
        });
    }

    /// Sets the provider ID of the machine and of the request.
    pub(crate) fn called(mut self, provider_id: &'static str) -> Self {
        self.machine.provider_id = Some(ProviderId::parse(provider_id).unwrap());
        self.provider_id = provider_id;
        self
    }

    pub(crate) fn verifier(&self) -> TpmVerifier {
        let verifier = TpmVerifier::new(
            self.cluster_uid,
            TpmPolicy::new(&self.settings).unwrap(),
            self.platform.clone(),
            Arc::new(Arc::new(self.keys.clone())),
        );
        match self.lists.clone() {
            Some(lists) => verifier.reading(lists),
            None => verifier,
        }
    }

    /// Returns the verifier's decision on these bytes.
    pub(crate) fn decide_bytes(&self, evidence: Option<&[u8]>) -> Result<Assurance, Refusal> {
        self.decide_by(&self.verifier(), evidence)
    }

    /// The decision by this verifier.
    pub(crate) fn decide_by(
        &self,
        verifier: &TpmVerifier,
        evidence: Option<&[u8]>,
    ) -> Result<Assurance, Refusal> {
        self.counted_by(verifier, evidence).0
    }

    /// The decision by this verifier, and the number of pauses for other tasks.
    pub(crate) fn counted_by(
        &self,
        verifier: &TpmVerifier,
        evidence: Option<&[u8]>,
    ) -> (Result<Assurance, Refusal>, usize) {
        let appraisal = Appraisal {
            evidence,
            audiences: &self.audiences,
            provider_id: &ProviderId::parse(self.provider_id).unwrap(),
            node_name: &NodeName::parse(self.node_name).unwrap(),
            spki: self.spki,
            machine: &self.machine,
            asked: self.asked,
        };
        // The verifier waits only for other tasks on this thread.
        pauses(verifier.verify(appraisal, self.now))
    }

    pub(crate) fn decide(&self, evidence: &TpmEvidence) -> Result<Assurance, Refusal> {
        self.decide_bytes(Some(&evidence.to_json()))
    }

    pub(crate) fn enrol(&self, enrolment: &Enrolment) -> Result<Assurance, Refusal> {
        self.decide(&TpmEvidence::Enrol(enrolment.clone()))
    }

    pub(crate) fn respond(&self, response: &Response) -> Result<Assurance, Refusal> {
        self.decide(&TpmEvidence::Respond(response.clone()))
    }

    /// The challenge that the enrollment receives.
    #[track_caller]
    pub(crate) fn challenge(&self, enrolment: &Enrolment) -> Challenge {
        match self.enrol(enrolment) {
            Err(Refusal::Fail(failure)) => challenge_of(&failure),
            other => panic!("{other:?}"),
        }
    }

    /// The identity that a response attests.
    #[track_caller]
    pub(crate) fn proves(&self, response: &Response) -> AttestedIdentity {
        match self.respond(response) {
            Ok(Assurance::Attested(identity)) => identity,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the qualifying data for a secret, as defined in docs/wire-format.md.
    pub(crate) fn qualifying(&self, challenge: &Challenge, secret: &[u8]) -> [u8; 32] {
        let binding = KeyBinding::new(
            &Provider::TPM,
            &header().audience,
            &ProviderId::parse(self.provider_id).unwrap(),
            &NodeName::parse(self.node_name).unwrap(),
            self.spki,
            &[challenge.id.as_bytes(), secret],
        );
        *binding.as_bytes()
    }
}

/// The challenge that the node reads.
#[track_caller]
pub(crate) fn challenge_of(failure: &Failure) -> Challenge {
    let annotations: HashMap<_, _> = failure.annotations().into_iter().collect();
    Challenge::parse(&annotations[CHALLENGE_ANNOTATION]).unwrap()
}

/// Returns the SHA-256 digest of the endorsement key's SPKI, which tpm2-tools reads.
#[track_caller]
pub(crate) fn digest(machine: &TpmMachine) -> KeyDigest {
    KeyDigest::of(&machine.ek_spki())
}

/// The denial, which must come from the TPM verifier.
#[track_caller]
pub(crate) fn denied(decided: Result<Assurance, Refusal>) -> TpmDenial {
    match decided {
        Err(Refusal::Deny(Denial::Evidence(denial))) => {
            denial.downcast_ref::<TpmDenial>().unwrap().clone()
        }
        other => panic!("{other:?}"),
    }
}
