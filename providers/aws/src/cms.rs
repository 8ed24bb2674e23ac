//! The identity document inside the CMS message of the metadata's `rsa2048`.
//!
//! Nothing is verified here: the message comes from the instance's own metadata, and the controller
//! verifies it. But the node takes its identity, and the content of its proof, from the signed
//! bytes and not from beside them.
//!
//! The message is in BER, with indefinite lengths and a string in segments (RFC 5652, X.690).

use std::iter;

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const CONSTRUCTED: u8 = 0x20;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The context-specific, constructed tag 0: explicit content.
const EXPLICIT: u8 = 0xa0;

/// AWS's messages nest indefinite lengths five deep.
const MAX_DEPTH: u32 = 8;

/// The signed content of a CMS message. `None` for anything else.
pub(crate) fn content(message: &[u8]) -> Option<Vec<u8>> {
    let mut info = inside(message, SEQUENCE)?;
    take(&mut info, OBJECT_IDENTIFIER)?;
    let mut signed_data = inside(take(&mut info, EXPLICIT)?, SEQUENCE)?;
    take(&mut signed_data, INTEGER)?;
    take(&mut signed_data, SET)?;
    let mut content_info = take(&mut signed_data, SEQUENCE)?;
    take(&mut content_info, OBJECT_IDENTIFIER)?;
    let (string, _) = element(take(&mut content_info, EXPLICIT)?, 0)?;
    match string.tag {
        OCTET_STRING => Some(string.content.to_vec()),
        tag if tag == OCTET_STRING | CONSTRUCTED => {
            let mut pieces = string.content;
            let next = || (!pieces.is_empty()).then(|| take(&mut pieces, OCTET_STRING));
            let pieces: Option<Vec<&[u8]>> = iter::from_fn(next).collect();
            Some(pieces?.concat())
        }
        _ => None,
    }
}

/// An element. The content does not include the end marker of an indefinite length.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
}

/// The content of the first element of `bytes`, if it has this tag.
fn inside(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    let mut bytes = bytes;
    take(&mut bytes, tag)
}

/// Removes the first element of `bytes`, and returns its content if it has this tag.
fn take<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (element, rest) = element(bytes, 0)?;
    *bytes = rest;
    (element.tag == tag).then_some(element.content)
}

fn element(bytes: &[u8], depth: u32) -> Option<(Element<'_>, &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    // No such message has a tag of several bytes.
    if tag & 0x1f == 0x1f {
        return None;
    }
    let element = |content| Element { tag: *tag, content };
    if *first == 0x80 {
        let (content, rest) = open(rest, depth + 1)?;
        return Some((element(content), rest)).filter(|_| tag & CONSTRUCTED != 0);
    }
    let (length, rest) = length(*first, rest)?;
    let (content, rest) = rest.split_at_checked(length)?;
    Some((element(content), rest))
}

fn length(first: u8, rest: &[u8]) -> Option<(usize, &[u8])> {
    if first < 0x80 {
        return Some((usize::from(first), rest));
    }
    let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
    let length = digits.iter().try_fold(0_usize, |length, digit| {
        length.checked_mul(256)?.checked_add(usize::from(*digit))
    })?;
    Some((length, rest))
}

/// The elements before the end marker of an indefinite length, and the bytes after the marker.
fn open(bytes: &[u8], depth: u32) -> Option<(&[u8], &[u8])> {
    if depth > MAX_DEPTH {
        return None;
    }
    let mut rest = bytes;
    while !rest.starts_with(&[0, 0]) {
        (_, rest) = element(rest, depth)?;
    }
    let content = bytes.get(..bytes.len() - rest.len())?;
    Some((content, rest.get(2..)?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

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
