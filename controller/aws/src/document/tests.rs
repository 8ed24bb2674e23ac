//! Tests of each check of a signed document: the valid message with one change.

mod additions;
mod attacks;
mod contents;
mod mutations;
mod published;

use std::sync::LazyLock;

use kubelet_authenticator_test_support::instance_identity::{Document, Message, TestSigner};

use super::{Signers, VerifiedDocument};
use crate::denial::AwsDenial;

const REGION: &str = "eu-west-1";
const SERIAL: [u8; 8] = [0xb6, 0x4b, 0xde, 0x5a, 0xd0, 0x09, 0x24, 0xcc];

/// The test's signer, which is valid only for [`REGION`].
static SIGNER: LazyLock<TestSigner> = LazyLock::new(|| TestSigner::new(SERIAL));
/// A signer for another region, with a different serial number.
static OTHER: LazyLock<TestSigner> = LazyLock::new(|| TestSigner::new([0x11; 8]));
/// AWS's signers, and the two signers in the tests.
static SIGNERS: LazyLock<Signers> = LazyLock::new(|| {
    Signers::embedded()
        .with_file(&SIGNER.signers_file(&[REGION]))
        .unwrap()
        .with_file(&OTHER.signers_file(&["eu-central-1"]))
        .unwrap()
});

fn document() -> Document {
    Document::new("123456789012", REGION, "eu-west-1a", "i-0123456789abcdef0")
}

/// The valid message.
fn message() -> Message {
    SIGNER.message(document().to_json().as_bytes())
}

fn verify(message: &Message) -> Result<VerifiedDocument, AwsDenial> {
    SIGNERS.verify(&message.to_base64())
}

fn denial(message: &Message) -> AwsDenial {
    verify(message).unwrap_err()
}

/// The result for a document that has these bytes and a valid signature.
fn verify_bytes(document: &str) -> Result<VerifiedDocument, AwsDenial> {
    verify(&SIGNER.message(document.as_bytes()))
}

#[test]
fn a_verified_document_contains_the_instance_and_the_digest() {
    let json = document().to_json();

    let verified = SIGNERS.verify(&SIGNER.sign(&document())).unwrap();

    let pending_time = humantime::parse_rfc3339("2026-01-01T00:00:00Z").unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, json.as_bytes());
    assert_eq!(
        verified,
        VerifiedDocument {
            account: "123456789012".into(),
            region: REGION.into(),
            availability_zone: "eu-west-1a".into(),
            instance: "i-0123456789abcdef0".into(),
            pending_time,
            digest: digest.as_ref().try_into().unwrap(),
        }
    );
}
