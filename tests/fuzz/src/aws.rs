//! Targets for the parsers in `node-attestation-aws`: signed instance identity documents, and responses from STS and
//! EC2.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::evidence::aws::ber::to_der;
use kubelet_attestation::evidence::aws::is_region;
use kubelet_authenticator_test_support::instance_identity::message::to_lines;
use kubelet_authenticator_test_support::instance_identity::{Document, Message, TestSigner};
use node_attestation_aws::document::{Signers, VerifiedDocument};
use node_attestation_aws::ec2::testing::endorsement_key;
use node_attestation_aws::partition::{EndpointHost, of_region};
use node_attestation_aws::sts::ProfileRole;
use node_attestation_aws::sts::testing::caller;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::refusal::Refusal;
use node_attestation_core::verifier::platform::KeyKind;
use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384, PublicKeyData as _};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::{Outcome, SECRET, assert_keeps_secret};

const ACCOUNT: &str = "111122223333";
const REGION: &str = "eu-west-1";
const INSTANCE: &str = "i-0123456789abcdef0";

/// Messages that AWS signed.
const PUBLISHED: [&str; 2] = [
    include_str!("../../../controller/aws/src/document/tests/published/us-west-1.b64"),
    include_str!("../../../controller/aws/src/document/tests/published/us-west-2.b64"),
];

static SIGNER: LazyLock<TestSigner> = LazyLock::new(|| TestSigner::new([0xb6; 8]));

/// The certificates with which AWS signs documents, and a test signer.
static SIGNERS: LazyLock<Signers> = LazyLock::new(|| {
    let file = SIGNER.signers_file(&[REGION]);
    Signers::embedded().with_file(&file).unwrap()
});

fn message() -> Message {
    let document = Document::new(ACCOUNT, REGION, "eu-west-1a", INSTANCE);
    SIGNER.message(document.to_json().as_bytes())
}

/// All signed documents.
static SIGNED: LazyLock<Vec<VerifiedDocument>> = LazyLock::new(|| {
    let ours = message().to_base64();
    let texts = PUBLISHED.into_iter().chain([&*ours]);
    texts.map(|text| SIGNERS.verify(text).unwrap()).collect()
});

/// Parses a message, as base64 and decoded: only signed documents are accepted.
pub fn document_message(input: &[u8]) -> Outcome {
    let texts = [
        Some(to_lines(input)),
        String::from_utf8(input.to_vec()).ok(),
    ];
    let mut outcome = Outcome::Refused;
    for text in texts.into_iter().flatten() {
        if let Ok(document) = SIGNERS.verify(&text) {
            assert!(SIGNED.contains(&document), "{document:?}");
            outcome = Outcome::Accepted;
        }
    }
    outcome
}

/// Messages from AWS and from the test signer, in BER, in DER and in base64.
pub fn document_message_seeds() -> Vec<Vec<u8>> {
    let ours = message();
    let mut in_pieces = message();
    in_pieces.piece = 100;
    let published = PUBLISHED.map(|text| text.as_bytes().to_vec());
    let messages = vec![
        ours.to_ber(),
        ours.to_der(),
        in_pieces.to_ber(),
        ours.to_base64().into_bytes(),
    ];
    [messages, published.into()].concat()
}

/// Checks that the DER of a BER input is stable, and not longer than the input.
pub fn ber(input: &[u8]) -> Outcome {
    let Ok(der) = to_der(input) else {
        return Outcome::Refused;
    };
    assert!(der.len() <= input.len());
    assert_eq!(to_der(&der), Ok(der));
    Outcome::Accepted
}

/// A message with lengths, a message without lengths, and a message whose content is in pieces.
pub fn ber_seeds() -> Vec<Vec<u8>> {
    let mut in_pieces = message();
    in_pieces.piece = 100;
    vec![message().to_ber(), message().to_der(), in_pieces.to_ber()]
}

/// Parses the contents of a signed document. Each part has the correct format, and occurs in the document.
pub fn document_contents(input: &[u8]) -> Outcome {
    let Ok(document) = SIGNERS.verify(&SIGNER.message(input).to_base64()) else {
        return Outcome::Refused;
    };
    let VerifiedDocument {
        account,
        region,
        availability_zone,
        instance,
        digest,
        ..
    } = &document;
    assert_eq!(region, REGION, "only the signer's own region");
    assert!(availability_zone.starts_with(REGION));
    assert!(account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit()));
    assert!(instance.starts_with("i-"));
    let expected: [u8; 32] = Sha256::digest(input).into();
    assert_eq!(digest, &expected);
    Outcome::Accepted
}

/// Documents with and without an IPv4 address.
pub fn document_contents_seeds() -> Vec<Vec<u8>> {
    let document = Document::new(ACCOUNT, REGION, "eu-west-1a", INSTANCE);
    let mut other = Document::new(ACCOUNT, REGION, "eu-west-1-lax-1a", "i-01234567");
    other.private_ip = None;
    other.version = "2010-08-31".to_owned();
    [document, other]
        .map(|document| document.to_json().into_bytes())
        .into()
}

/// Parses a response from STS. A valid response contains the document's instance or no instance, and an outage is never
/// reported as a denial.
pub fn sts_answer(input: &[u8]) -> Outcome {
    let document = SIGNED.last().expect("our certificate is the last one");
    let partition = of_region(REGION).unwrap();
    let roles: [ProfileRole; 1] = ["nodes".parse().unwrap()];
    let mut outcome = Outcome::Refused;
    for status in [200, 302, 400, 401, 403, 404, 500, 503] {
        match caller(status, input, document, partition, &roles) {
            Ok(named) => {
                assert_eq!(status, 200);
                if named.is_ok() {
                    outcome = Outcome::Accepted;
                }
            }
            Err(refusal) => {
                assert_keeps_secret(&error_chain(&refusal));
                let is_retry = matches!(refusal, Refusal::Retry(_));
                assert!(is_retry || matches!(status, 400 | 401 | 403), "{status}");
                if !is_retry {
                    outcome = Outcome::Accepted;
                }
            }
        }
    }
    outcome
}

/// Responses that contain an instance in both kinds of roles, and refusals in JSON and in XML.
pub fn sts_answer_seeds() -> Vec<Vec<u8>> {
    let identity = |role: &str, user_id: &str| {
        let arn = format!("arn:aws:sts::{ACCOUNT}:assumed-role/{role}/{INSTANCE}");
        let identity = json!({"Account": ACCOUNT, "Arn": arn, "UserId": user_id});
        json!({"GetCallerIdentityResponse": {
            "GetCallerIdentityResult": identity, "ResponseMetadata": {"RequestId": "r"},
        }})
    };
    let of_instance = format!("{ACCOUNT}:aws:ec2-instance:{INSTANCE}");
    let of_profile = format!("AROA0123456789ABCDEFG:{INSTANCE}");
    let refusal = |code: &str, message: &str| {
        let error = json!({"Code": code, "Message": message, "Type": "Sender"});
        json!({"Error": error, "RequestId": "r"})
    };
    let answers = [
        identity("aws:ec2-instance", &of_instance),
        identity("nodes", &of_profile),
        refusal("InvalidClientTokenId", SECRET),
        refusal("SignatureDoesNotMatch", "Signature expired: 2026"),
    ];
    let xml = format!(
        "<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredToken</Code>\
         <Message>{SECRET}</Message></Error></ErrorResponse>"
    );
    let answers = answers.map(|answer| answer.to_string());
    let answers = answers.into_iter().chain([xml]);
    answers.map(String::into_bytes).collect()
}

/// Checks that the text form of every accepted host, role and region equals the input.
pub fn aws_names(input: &[u8]) -> Outcome {
    let Ok(text) = str::from_utf8(input) else {
        return Outcome::Refused;
    };
    let host: Option<EndpointHost> = text.parse().ok();
    let role: Option<ProfileRole> = text.parse().ok();
    let read = [
        host.map(|host| host.to_string()),
        role.map(|role| role.to_string()),
    ];
    for name in read.iter().flatten() {
        assert_eq!(name, text);
    }
    let of_region = EndpointHost::sts(text);
    if let Some(host) = &of_region {
        assert!(is_region(text));
        assert_eq!(host.as_str().parse().as_ref(), Ok(host));
    }
    Outcome::of(of_region.is_some() || read.iter().any(Option::is_some))
}

/// A name of each kind.
pub fn aws_names_seeds() -> Vec<Vec<u8>> {
    let names = [
        "sts.eu-west-1.amazonaws.com",
        "127.0.0.1:8443",
        "[2001:db8::1]:8443",
        "111122223333:node-role",
        "us-gov-west-1",
    ];
    names.map(|name| name.as_bytes().to_vec()).into()
}

/// Checks that an endorsement key in a response from EC2 has exactly one encoding, and that its digest does not depend
/// on its source.
pub fn ec2_endorsement_key(input: &[u8]) -> Outcome {
    let texts = [
        Some(BASE64_STANDARD.encode(input)),
        String::from_utf8(input.to_vec()).ok(),
    ];
    let mut outcome = Outcome::Refused;
    for text in texts.into_iter().flatten() {
        let kinds = [KeyKind::Rsa2048, KeyKind::P256, KeyKind::P384];
        for digest in kinds
            .into_iter()
            .filter_map(|kind| endorsement_key(kind, &text))
        {
            let spki = BASE64_STANDARD.decode(&text).unwrap();
            assert_eq!(BASE64_STANDARD.encode(&spki), text);
            assert_eq!(digest, KeyDigest::of(&spki));
            let (rest, key) = SubjectPublicKeyInfo::from_der(&spki).unwrap();
            assert!(rest.is_empty() && key.parsed().is_ok());
            outcome = Outcome::Accepted;
        }
    }
    outcome
}

/// Keys of both kinds that EC2 supports, and a key in base64.
pub fn ec2_endorsement_key_seeds() -> Vec<Vec<u8>> {
    let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let p384 = p384.subject_public_key_info();
    let block = pem::parse(SIGNER.certificate_pem()).unwrap();
    let (_, certificate) = X509Certificate::from_der(block.contents()).unwrap();
    let rsa = certificate.public_key().raw.to_vec();
    let text = BASE64_STANDARD.encode(&p384);
    vec![p384, rsa, text.into_bytes()]
}

/// Parses a file with additional signers. The file must not remove any built-in signer.
pub fn signers_file(input: &[u8]) -> Outcome {
    let Ok(text) = str::from_utf8(input) else {
        return Outcome::Refused;
    };
    let Ok(signers) = SIGNERS.clone().with_file(text) else {
        return Outcome::Refused;
    };
    let known: BTreeSet<&str> = SIGNERS.regions().collect();
    assert!(known.is_subset(&signers.regions().collect()));
    let counts = |region: &&str| signers.region(region).len() >= SIGNERS.region(region).len();
    assert!(known.iter().all(counts));
    assert!(signers.regions().all(is_region));
    Outcome::Accepted
}

/// A file with a signer for a new region, between comments.
pub fn signers_file_seeds() -> Vec<Vec<u8>> {
    let new = TestSigner::new([0x11; 8]).signers_file(&["us-iso-east-1"]);
    vec![format!("# of the operator\n\n{new}\n# end\n").into_bytes()]
}
