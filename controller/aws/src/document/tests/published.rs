//! Tests with messages that AWS signed, from the tests of Teleport (`lib/auth/join_ec2_test.go`, 2021), using the
//! embedded signers.

use crate::denial::AwsDenial;
use crate::document::Signers;

const US_WEST_1: &str = include_str!("published/us-west-1.b64");
const US_WEST_2: &str = include_str!("published/us-west-2.b64");

#[test]
fn messages_that_aws_signed_verify_with_the_embedded_signers() {
    let signers = Signers::embedded();

    let expected = [
        (
            US_WEST_1,
            "883474662888",
            "us-west-1",
            "us-west-1c",
            "i-01b940c45fd11fe74",
            "2021-09-11T00:14:18Z",
        ),
        (
            US_WEST_2,
            "278576220453",
            "us-west-2",
            "us-west-2a",
            "i-078517ca8a70a1dde",
            "2021-09-03T21:25:44Z",
        ),
    ];
    for (message, account, region, zone, instance, pending_time) in expected {
        let verified = signers.verify(message).unwrap();
        assert_eq!(verified.account, account);
        assert_eq!(verified.region, region);
        assert_eq!(verified.availability_zone, zone);
        assert_eq!(verified.instance, instance);
        assert_eq!(
            verified.pending_time,
            humantime::parse_rfc3339(pending_time).unwrap()
        );
    }
}

#[test]
fn base64_on_one_line_or_with_crlf_is_accepted() {
    let signers = Signers::embedded();

    assert!(signers.verify(&US_WEST_1.replace('\n', "")).is_ok());
    assert!(signers.verify(&US_WEST_1.replace('\n', "\r\n")).is_ok());
    assert!(signers.verify(&format!("{US_WEST_1}\n")).is_ok());
}

#[test]
fn a_signature_with_one_changed_bit_is_denied() {
    // The last character in the last full line belongs to the signature.
    let changed = US_WEST_1.replace(
        "VUP+3jgenPrd7OyCWPSwOoOBMhSl",
        "VUP+3jgenPrd7OyCWPSwOoOBMhSk",
    );

    assert_eq!(
        Signers::embedded().verify(&changed),
        Err(AwsDenial::DocumentSignatureInvalid("us-west-1".into()))
    );
}
