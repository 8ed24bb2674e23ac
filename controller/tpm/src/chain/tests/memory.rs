//! Tests of the memory that a request uses while its checks wait for their turn.

use super::*;

/// A DER value with this tag.
fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
    let len = u16::try_from(contents.len()).unwrap().to_be_bytes();
    [&[tag, 0x82], &len[..], contents].concat()
}

/// Returns the certificate with another subject, whose signature is therefore invalid.
fn with_subject(certificate: &[u8], subject: &[u8]) -> Vec<u8> {
    let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
    let signed: &[u8] = parsed.tbs_certificate.as_ref();
    let former = parsed.subject().as_raw();
    let at = former.as_ptr().addr() - signed.as_ptr().addr();
    let (before, after) = (&signed[4..at], &signed[at + former.len()..]);
    let words = der(0x30, &[before, subject, after].concat());
    let rest = &certificate[4 + signed.len()..];
    der(0x30, &[&words, rest].concat())
}

/// The parsed name needs 424 bytes for each of these values.
const SHORT_VALUE: [u8; 9] = [0x31, 0x07, 0x30, 0x05, 0x06, 0x01, 0x2a, 0x05, 0x00];

#[test]
fn a_waiting_check_keeps_at_most_two_copies_of_a_certificate() {
    fn assert_owned<T: 'static>(_: &T) {}
    let subject = der(0x30, &SHORT_VALUE.repeat(700));
    let many = with_subject(&certificate(&EkContents::good()), &subject);
    let (_, parsed) = X509Certificate::from_der(&many).unwrap();
    assert_eq!(parsed.subject().iter_rdn().count(), 700);

    let link = Link::of(&parsed);

    assert_owned(&link);
    assert!(link.bytes() <= 2 * many.len(), "{}", link.bytes());
    assert!(link.end().subject.chars().count() <= 200);
}

#[test]
fn a_certificate_and_its_link_have_the_same_names() {
    let contents = EkContents {
        common_name: Some("a TPM".to_owned()),
        ..EkContents::good()
    };
    for der in [certificate(&EkContents::good()), certificate(&contents)] {
        let (_, parsed) = X509Certificate::from_der(&der).unwrap();

        let link = Link::of(&parsed);

        assert_eq!(link.subject_name(), format!("\"{}\"", parsed.subject()));
        assert_eq!(link.issuer_name(), format!("\"{}\"", parsed.issuer()));
        assert_eq!(link.validity, *parsed.validity());
        let key = AuthorityKey::read(parsed.public_key()).unwrap();
        assert_eq!(link.key(), Ok(key));
    }
}
