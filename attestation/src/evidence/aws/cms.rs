//! The identity document inside the CMS message from `rsa2048` of the instance metadata.
//!
//! This module does not verify the message, because the message comes from the instance's own metadata, and the
//! controller verifies the message with a separate parser. However, the node reads its identity, and the data that its
//! evidence contains, only from the signed bytes of the message.

use x509_cert::der::asn1::{AnyRef, OctetStringRef};
use x509_cert::der::{self, Decode as _, SliceReader, Tag, TagNumber, Tagged as _};

use super::ber::{self, InvalidBer};

/// The context-specific, constructed tag 0: explicit content.
const EXPLICIT: Tag = Tag::ContextSpecific {
    constructed: true,
    number: TagNumber(0),
};

/// Returns the signed content of the CMS message in `text`.
///
/// # Errors
///
/// Returns the reason as an error if the text is not a CMS message that contains its content.
pub fn content(text: &str) -> Result<Vec<u8>, &'static str> {
    let der = ber::decode(text).map_err(|InvalidBer(detail)| detail)?;
    signed_content(&der).map_err(|_| "an element is missing or has an unexpected type")
}

/// Returns the content of `SignedData` (RFC 5652 sections 3 to 5.2).
fn signed_content(der: &[u8]) -> der::Result<Vec<u8>> {
    let mut info = within(&mut SliceReader::new(der)?, Tag::Sequence)?;
    within(&mut info, Tag::ObjectIdentifier)?;
    let mut signed_data = within(&mut within(&mut info, EXPLICIT)?, Tag::Sequence)?;
    within(&mut signed_data, Tag::Integer)?;
    within(&mut signed_data, Tag::Set)?;
    let mut content_info = within(&mut signed_data, Tag::Sequence)?;
    within(&mut content_info, Tag::ObjectIdentifier)?;
    let mut content = within(&mut content_info, EXPLICIT)?;
    Ok(<&OctetStringRef>::decode(&mut content)?.as_bytes().to_vec())
}

/// Returns the content of the next element, which must have this tag.
fn within<'a>(elements: &mut SliceReader<'a>, tag: Tag) -> der::Result<SliceReader<'a>> {
    let element = AnyRef::decode(elements)?;
    element.tag().assert_eq(tag)?;
    SliceReader::new(element.value())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    const OCTET_STRING: u8 = 0x04;
    const CONSTRUCTED: u8 = 0x20;
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const CONTEXT_0: u8 = 0xa0;
    const SIGNED_DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";
    const DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01";

    fn left_open(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
        [&[tag, 0x80], contents.concat().as_slice(), &[0, 0]].concat()
    }

    fn with_length(tag: u8, content: &[u8]) -> Vec<u8> {
        let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
        let header = match content.len() {
            0..0x80 => vec![tag, low],
            0x80..0x100 => vec![tag, 0x81, low],
            _ => vec![tag, 0x82, high, low],
        };
        [&header, content].concat()
    }

    /// A message in the format of the instance metadata, with this string as its content.
    fn message_around(string: &[u8]) -> Vec<u8> {
        let content_info = left_open(SEQUENCE, &[DATA, &left_open(CONTEXT_0, &[string])]);
        let algorithms = with_length(SET, &with_length(SEQUENCE, b"\x06\x01\x2a"));
        let signers = left_open(SET, &[&with_length(SEQUENCE, b"the signer")]);
        let signed_data = left_open(
            SEQUENCE,
            &[b"\x02\x01\x01", &algorithms, &content_info, &signers],
        );
        left_open(
            SEQUENCE,
            &[SIGNED_DATA, &left_open(CONTEXT_0, &[&signed_data])],
        )
    }

    fn content_of(message: &[u8]) -> Result<Vec<u8>, &'static str> {
        content(&STANDARD.encode(message))
    }

    /// A message in AWS's format, with this content and without a signature.
    fn message(content: &[u8]) -> Vec<u8> {
        message_around(&left_open(
            OCTET_STRING | CONSTRUCTED,
            &[&with_length(OCTET_STRING, content)],
        ))
    }

    #[test]
    fn content_in_the_format_of_aws_is_found() {
        assert_eq!(content_of(&message(b"document")).unwrap(), b"document");
    }

    #[test]
    fn content_in_one_or_several_pieces_is_read() {
        let pieces = [b"docu", b"ment"].map(|piece| with_length(OCTET_STRING, piece));
        let string = left_open(0x24, &[&pieces[0], &pieces[1]]);
        assert_eq!(content_of(&message_around(&string)).unwrap(), b"document");

        let string = with_length(OCTET_STRING, b"document");
        assert_eq!(content_of(&message_around(&string)).unwrap(), b"document");
    }

    #[test]
    fn a_message_truncated_within_its_content_has_no_content() {
        let message = message(b"document");
        let end = message.windows(8).position(|bytes| bytes == b"document");

        for length in 0..end.unwrap() + 8 {
            assert!(content_of(&message[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_malformed_message_has_no_content() {
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
            assert!(content_of(&bytes).is_err(), "{bytes:?}");
        }
    }
}
