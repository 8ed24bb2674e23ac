//! Targets for the parsers in `kubelet-attestation`: the contents of a request, and the names in a request.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::csr::envelope::{Envelope, MAX_REQUEST_LEN};
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::subject;
use kubelet_attestation::evidence::aws::{AwsEvidence, Proof, ProofFields};
use kubelet_attestation::evidence::tpm::{
    Bank, Challenge, ChallengeId, Enrolment, Expiry, MAX_CERTIFICATE_LEN, MAX_INTERMEDIATES,
    MAX_INTERMEDIATES_LEN, MAX_REGISTER, MAX_STRUCTURE_LEN, PublicAreas, Quote, Registers,
    Response, TpmEvidence,
};
use kubelet_attestation::evidence::{Header, MAX_EVIDENCE_LEN, version_of};
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use node_attestation_core::testing::Csr;
use sha2::{Digest as _, Sha256};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use crate::Outcome;

/// The minimum length of a credential that cannot be part of another field of a proof: a region is shorter than this
/// length.
const LONGER_THAN_A_REGION: usize = 33;

/// Checks that an envelope has exactly one encoding.
pub fn envelope(input: &[u8]) -> Outcome {
    let Ok(envelope) = Envelope::parse(input) else {
        return Outcome::Refused;
    };
    assert!(input.len() <= MAX_REQUEST_LEN);
    assert!(envelope.evidence.as_ref().map_or(0, Vec::len) <= MAX_EVIDENCE_LEN);
    assert!(envelope.evidence.is_none() || envelope.provider.is_some());
    assert_eq!(envelope.encode(), input);
    Outcome::Accepted
}

/// Envelopes with and without their optional blocks.
pub fn envelope_seeds() -> Vec<Vec<u8>> {
    let evidence = aws_evidence_seeds().into_iter().next();
    let envelopes = [
        (None, None),
        (Some(Provider::NULL), None),
        (Some(Provider::AWS), evidence),
    ];
    let encoded = envelopes.map(|(provider, evidence)| {
        let csr = Csr::valid().der();
        let envelope = Envelope {
            csr,
            provider,
            evidence,
        };
        envelope.encode()
    });
    encoded.into()
}

/// Checks that the signed bytes and the key occur in the input, and that a different parser returns the same values.
pub fn certification_request(input: &[u8]) -> Outcome {
    let Ok(request) = CertificationRequest::from_der(input) else {
        return Outcome::Refused;
    };
    assert!(contains(input, request.signed_bytes()));
    assert!(contains(request.signed_bytes(), request.spki_der()));
    if let Ok((rest, other)) = X509CertificationRequest::from_der(input) {
        let info = &other.certification_request_info;
        assert!(rest.is_empty());
        assert_eq!(info.raw, request.signed_bytes());
        assert_eq!(info.subject_pki.raw, request.spki_der());
    }
    for extension in request.extensions() {
        let found = request.extension(extension.extn_id);
        assert_eq!(found, Some(extension), "two extensions of one kind");
    }
    if let Some(id) = request.claimed_provider_id() {
        assert!(contains(request.signed_bytes(), id.as_str().as_bytes()));
    }
    if let Ok(name) = subject::node_name(request.subject()) {
        let user = name.user_name();
        assert!(contains(request.signed_bytes(), user.as_bytes()));
    }
    Outcome::Accepted
}

/// A machine's request, and a request with a second extension.
pub fn certification_request_seeds() -> Vec<Vec<u8>> {
    let extension = node_attestation_core::testing::extension("2.5.29.15", true, &[3, 2, 7, 128]);
    let extended = Csr::with_extension(extension);
    vec![Csr::valid().der(), extended.der()]
}

/// Checks that an instance's evidence is unchanged after a round trip, and that the debug output of its proof does not
/// contain a credential.
pub fn aws_evidence(input: &[u8]) -> Outcome {
    let Ok(evidence) = AwsEvidence::parse(input) else {
        return Outcome::Refused;
    };
    assert!(input.len() <= MAX_EVIDENCE_LEN);
    assert_eq!(AwsEvidence::parse(&evidence.to_json()).unwrap(), evidence);
    let sts = &evidence.sts;
    let shown = format!("{sts:?}");
    assert!(!shown.contains(&sts.access_key_id));
    assert!(!shown.contains(&sts.signature));
    if sts.session_token.len() >= LONGER_THAN_A_REGION {
        assert!(!shown.contains(&sts.session_token));
    }
    assert_header(input, &evidence.header);
    Outcome::Accepted
}

/// Evidence from an instance.
pub fn aws_evidence_seeds() -> Vec<Vec<u8>> {
    let sts = Proof::new(ProofFields {
        region: "eu-west-1".to_owned(),
        access_key_id: "ASIA0123456789ABCDEF".to_owned(),
        session_token: "IQoJb3JpZ2luX2Vj+/".repeat(3),
        amz_date: "20260101T000000Z".to_owned(),
        signature: "0123456789abcdef".repeat(4),
    });
    let evidence = AwsEvidence {
        header: header(EvidenceVersion::V1),
        rsa2048: "MIAGCSqG\nSIb3DQEH".to_owned(),
        sts: sts.unwrap(),
    };
    vec![evidence.to_json()]
}

/// Checks that a TPM's evidence is unchanged after a round trip, and that none of its parts exceeds its limit.
pub fn tpm_evidence(input: &[u8]) -> Outcome {
    let Ok(evidence) = TpmEvidence::parse(input) else {
        return Outcome::Refused;
    };
    assert!(input.len() <= MAX_EVIDENCE_LEN);
    assert_eq!(TpmEvidence::parse(&evidence.to_json()).unwrap(), evidence);
    let is_structure = |bytes: &[u8]| (1..=MAX_STRUCTURE_LEN).contains(&bytes.len());
    let (header, keys) = match &evidence {
        TpmEvidence::Enrol(Enrolment {
            header,
            certificate,
            intermediates,
            keys,
        }) => {
            let certificate_len = certificate.as_ref().map_or(1, Vec::len);
            assert!((1..=MAX_CERTIFICATE_LEN).contains(&certificate_len));
            assert!(intermediates.len() <= MAX_INTERMEDIATES);
            assert!(intermediates.iter().map(Vec::len).sum::<usize>() <= MAX_INTERMEDIATES_LEN);
            assert!(intermediates.is_empty() || certificate.is_some());
            (header, keys)
        }
        TpmEvidence::Respond(Response {
            header,
            keys,
            quote,
            ..
        }) => {
            assert!(is_structure(&quote.attest) && is_structure(&quote.signature));
            let mut registers = quote.registers.iter();
            assert!(registers.all(|(number, _)| number <= MAX_REGISTER));
            (header, keys)
        }
    };
    assert!(is_structure(&keys.endorsement) && is_structure(&keys.attestation));
    assert_header(input, header);
    Outcome::Accepted
}

/// Evidence from both phases, in both versions, and with registers from both banks.
pub fn tpm_evidence_seeds() -> Vec<Vec<u8>> {
    let keys = PublicAreas {
        endorsement: b"endorsement key".to_vec(),
        attestation: b"attestation key".to_vec(),
    };
    let enrolment = |version, certificate, intermediates| {
        TpmEvidence::Enrol(Enrolment {
            header: header(version),
            certificate,
            intermediates,
            keys: keys.clone(),
        })
    };
    let response = |bank: Bank| {
        let digests = [(0, 0), (23, 15)].map(|(at, byte)| (at, vec![byte; bank.digest_len()]));
        TpmEvidence::Respond(Response {
            header: header(EvidenceVersion::V1),
            id: ChallengeId::new([7; 16]),
            expiry: Expiry::parse("2026-01-01T00:05:00Z").unwrap(),
            keys: keys.clone(),
            quote: Quote {
                attest: b"attest".to_vec(),
                signature: b"signature".to_vec(),
                registers: Registers::of_bank(bank, digests.into()).unwrap(),
            },
        })
    };
    let certificate = || Some(b"certificate".to_vec());
    let chain = vec![b"first".to_vec(), b"second".to_vec()];
    let evidence = [
        enrolment(EvidenceVersion::V1, None, vec![]),
        enrolment(EvidenceVersion::V1, certificate(), vec![]),
        enrolment(EvidenceVersion::V2, certificate(), chain),
        response(Bank::Sha256),
        response(Bank::Sha384),
    ];
    evidence.iter().map(TpmEvidence::to_json).collect()
}

/// Checks that a header is unchanged after a round trip, and that its version equals the separately parsed version.
pub fn evidence_header(input: &[u8]) -> Outcome {
    let Ok(header) = Header::parse(input) else {
        // Evidence with any other version still has a version.
        return Outcome::of(version_of(input).is_ok());
    };
    assert_eq!(Header::parse(&header.to_json()).unwrap(), header);
    assert_header(input, &header);
    Outcome::Accepted
}

/// A header, and evidence with a future version.
pub fn evidence_header_seeds() -> Vec<Vec<u8>> {
    vec![
        header(EvidenceVersion::V1).to_json(),
        br#"{"new":{"shape":[1,null]},"version":"v9"}"#.to_vec(),
    ]
}

fn assert_header(evidence: &[u8], header: &Header) {
    assert_eq!(version_of(evidence).unwrap(), header.version);
}

/// Checks that a challenge is unchanged after a round trip, as base64 and decoded.
pub fn challenge(input: &[u8]) -> Outcome {
    let texts = [
        Some(BASE64_STANDARD.encode(input)),
        String::from_utf8(input.to_vec()).ok(),
    ];
    let mut outcome = Outcome::Refused;
    for text in texts.into_iter().flatten() {
        if let Ok(challenge) = Challenge::parse(&text) {
            let again = Challenge::parse(&challenge.to_annotation());
            assert_eq!(again.unwrap(), challenge);
            let parts = [&challenge.credential_blob, &challenge.encrypted_secret];
            assert!(parts.iter().all(|part| part.len() <= MAX_STRUCTURE_LEN));
            outcome = Outcome::Accepted;
        }
    }
    outcome
}

/// A challenge, as JSON and as the annotation.
pub fn challenge_seeds() -> Vec<Vec<u8>> {
    let challenge = Challenge {
        id: ChallengeId::new([7; 16]),
        expiry: Expiry::parse("2026-01-01T00:05:00Z").unwrap(),
        credential_blob: b"sealed".to_vec(),
        encrypted_secret: b"seed".to_vec(),
    };
    let annotation = challenge.to_annotation();
    let json = BASE64_STANDARD.decode(&annotation).unwrap();
    vec![json, annotation.into_bytes()]
}

/// Checks that the text form of every accepted name equals the input.
pub fn names(input: &[u8]) -> Outcome {
    let Ok(text) = str::from_utf8(input) else {
        return Outcome::Refused;
    };
    let versions = EvidenceVersion::parse_list(text);
    let listed = EvidenceVersion::list(&versions);
    assert_eq!(EvidenceVersion::parse_list(&listed), versions);
    if let Some(name) = NodeName::from_user_name(text) {
        assert_eq!(name.user_name(), text);
    }
    if let Some(provider) = Provider::of_client_signer(text) {
        assert_eq!(provider.client_signer(), text);
    }
    if let Some(provider) = Provider::of_serving_signer(text) {
        assert_eq!(provider.serving_signer(), text);
    }
    if let Ok(name) = NodeName::parse(text) {
        let again = NodeName::from_user_name(&name.user_name());
        assert_eq!(again, Some(name));
    }
    let read = [
        NodeName::parse(text).ok().map(|name| name.to_string()),
        ProviderId::parse(text).ok().map(|id| id.to_string()),
        Audience::parse(text).ok().map(|one| one.to_string()),
        Provider::parse(text).ok().map(|one| one.to_string()),
        EvidenceVersion::parse(text).ok().map(|one| one.to_string()),
        Expiry::parse(text).map(|time| time.as_str().to_owned()),
        ChallengeId::parse(text).map(ChallengeId::to_base64),
    ];
    let mut names = read.iter().flatten();
    assert!(names.all(|name| name == text), "{read:?}");
    Outcome::of(read.iter().any(Option::is_some))
}

/// A name of each kind.
pub fn names_seeds() -> Vec<Vec<u8>> {
    let names = [
        "ip-10-0-0-1.eu-west-1.compute.internal",
        "aws:///eu-west-1a/i-0123456789abcdef0",
        "ca-sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "insecure",
        "v1",
        "2026-01-01T00:05:00Z",
        "AAECAwQFBgcICQoLDA0ODw==",
    ];
    names.map(|name| name.as_bytes().to_vec()).into()
}

/// Checks that a key binding is the digest that docs/wire-format.md defines. Moving bytes from one part to the next
/// changes the digest.
pub fn key_binding(input: &[u8]) -> Outcome {
    let fields: Vec<&[u8]> = input.split(|byte| *byte == 0).collect();
    let binding = binding(&fields);

    let mut defined = b"cluster.x-k8s.io/kubelet-authenticator/aws/v1\0".to_vec();
    let names: [&[u8]; 3] = [b"prod", b"aws:///a/i-1", b"n1"];
    for field in names.into_iter().chain(fields.iter().copied()) {
        defined.extend(u32::try_from(field.len()).unwrap().to_be_bytes());
        defined.extend(field);
    }
    let digest: [u8; 32] = Sha256::digest(defined).into();
    assert_eq!(binding.as_bytes(), &digest);
    if let [first, second, rest @ ..] = fields.as_slice() {
        let joined = [first, second].map(|field| field.to_vec()).concat();
        assert_ne!(self::binding(&[&[&joined[..]], rest].concat()), binding);
    }
    Outcome::Accepted
}

/// Keys with and without further parts.
pub fn key_binding_seeds() -> Vec<Vec<u8>> {
    vec![b"spki".to_vec(), b"spki\0challenge\0secret".to_vec()]
}

fn binding(fields: &[&[u8]]) -> KeyBinding {
    let (spki, parts) = fields
        .split_first()
        .expect("a split returns at least one part");
    KeyBinding::new(
        &Provider::AWS,
        &Audience::parse("prod").unwrap(),
        &ProviderId::parse("aws:///a/i-1").unwrap(),
        &NodeName::parse("n1").unwrap(),
        spki,
        parts,
    )
}

fn header(version: EvidenceVersion) -> Header {
    Header {
        version,
        audience: Audience::parse("prod").unwrap(),
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}
