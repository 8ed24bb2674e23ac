//! The identity document inside the CMS message of the metadata's `rsa2048`.
//!
//! Nothing is verified here: the message comes from the instance's own metadata, and the controller
//! verifies it. But the node takes its identity, and the content of its proof, from the signed
//! bytes and not from beside them.
//!
//! The message is in BER, with indefinite lengths and a string in segments (RFC 5652, X.690).

use std::iter;

use x509_parser::asn1_rs::{Any, Class, FromBer as _, Tag};

/// The signed content of a CMS message. `None` for anything else.
pub(crate) fn content(message: &[u8]) -> Option<Vec<u8>> {
    let mut message = message;
    let mut info = take(&mut message, Tag::Sequence)?;
    take(&mut info, Tag::Oid)?;
    let mut explicit = take_explicit(&mut info)?;
    let mut signed_data = take(&mut explicit, Tag::Sequence)?;
    take(&mut signed_data, Tag::Integer)?;
    take(&mut signed_data, Tag::Set)?;
    let mut content_info = take(&mut signed_data, Tag::Sequence)?;
    take(&mut content_info, Tag::Oid)?;
    let mut explicit = take_explicit(&mut content_info)?;
    let string = next(&mut explicit)?;
    if string.class() != Class::Universal || string.tag() != Tag::OctetString {
        return None;
    }
    if !string.header.is_constructed() {
        return Some(string.data.to_vec());
    }
    let mut pieces = string.data;
    let next = || (!pieces.is_empty()).then(|| take(&mut pieces, Tag::OctetString));
    let pieces: Option<Vec<&[u8]>> = iter::from_fn(next).collect();
    Some(pieces?.concat())
}

/// Takes an element of the universal class, and returns its content.
fn take<'a>(bytes: &mut &'a [u8], tag: Tag) -> Option<&'a [u8]> {
    let element = next(bytes)?;
    (element.class() == Class::Universal && element.tag() == tag).then_some(element.data)
}

/// Takes explicit content: the context-specific, constructed tag 0.
fn take_explicit<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let element = next(bytes)?;
    let is_explicit = element.class() == Class::ContextSpecific && element.tag() == Tag(0);
    (is_explicit && element.header.is_constructed()).then_some(element.data)
}

fn next<'a>(bytes: &mut &'a [u8]) -> Option<Any<'a>> {
    let (rest, element) = Any::from_ber(bytes).ok()?;
    *bytes = rest;
    Some(element)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const OCTET_STRING: u8 = 0x04;
    const CONSTRUCTED: u8 = 0x20;
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const EXPLICIT: u8 = 0xa0;

    const SIGNED_DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";
    const DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01";

    fn left_open(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
        [&[tag, 0x80], contents.concat().as_slice(), &[0, 0]].concat()
    }

    fn with_length(tag: u8, content: &[u8]) -> Vec<u8> {
        let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82, high, low], content].concat()
    }

    /// A message in the form of the metadata, around this string.
    fn message_around(string: &[u8]) -> Vec<u8> {
        let content_info = left_open(SEQUENCE, &[DATA, &left_open(EXPLICIT, &[string])]);
        let algorithms = with_length(SET, &with_length(SEQUENCE, b"\x06\x01\x2a"));
        let signers = left_open(SET, &[&with_length(SEQUENCE, b"the signer")]);
        let signed_data = left_open(
            SEQUENCE,
            &[b"\x02\x01\x01", &algorithms, &content_info, &signers],
        );
        left_open(
            SEQUENCE,
            &[SIGNED_DATA, &left_open(EXPLICIT, &[&signed_data])],
        )
    }

    /// A message in AWS's form, with this content and no signature.
    pub(crate) fn message(content: &[u8]) -> Vec<u8> {
        message_around(&left_open(
            OCTET_STRING | CONSTRUCTED,
            &[&with_length(OCTET_STRING, content)],
        ))
    }

    #[test]
    fn the_content_is_found_in_the_shape_that_aws_sends() {
        assert_eq!(content(&message(b"document")).unwrap(), b"document");
    }

    #[test]
    fn the_content_may_come_in_pieces_or_in_one() {
        let pieces = [b"docu", b"ment"].map(|piece| with_length(OCTET_STRING, piece));
        let string = left_open(0x24, &[&pieces[0], &pieces[1]]);
        assert_eq!(content(&message_around(&string)).unwrap(), b"document");

        let string = with_length(OCTET_STRING, b"document");
        assert_eq!(content(&message_around(&string)).unwrap(), b"document");
    }

    #[test]
    fn every_message_that_is_cut_off_in_its_content_has_none() {
        let message = message(b"document");
        let end = message.windows(8).position(|bytes| bytes == b"document");

        for length in 0..end.unwrap() + 8 {
            assert_eq!(content(&message[..length]), None, "{length}");
        }
    }

    #[test]
    fn another_message_has_none() {
        let nested = |depth| (0..depth).fold(Vec::new(), |inner, _| left_open(0x30, &[&inner]));
        for bytes in [
            b"{}".to_vec(),
            with_length(SEQUENCE, SIGNED_DATA),
            message_around(b"\x05\x00"),
            message_around(&left_open(0x24, &[b"\x02\x01\x01"])),
            message_around(b"\x04\x80document\x00\x00"),
            message_around(b"\x04\x89\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            b"\x1f\x80".to_vec(),
            nested(10_000),
        ] {
            assert_eq!(content(&bytes), None, "{bytes:?}");
        }
    }
}
