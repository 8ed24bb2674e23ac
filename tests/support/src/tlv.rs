//! An encoder for BER and DER, with the features that the simulators need.

pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const NULL: u8 = 0x05;
pub(crate) const OID: u8 = 0x06;
pub(crate) const PRINTABLE_STRING: u8 = 0x13;
pub(crate) const UTC_TIME: u8 = 0x17;
pub(crate) const CONSTRUCTED_OCTET_STRING: u8 = 0x24;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
pub(crate) const CONTEXT_0: u8 = 0xa0;
pub(crate) const CONTEXT_1: u8 = 0xa1;

/// An element: the tag, the shortest form of the length, and the content.
pub(crate) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let bytes = length.to_be_bytes();
    let significant = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    let mut encoded = vec![tag];
    match significant {
        [] => encoded.push(0),
        [short] if *short < 0x80 => encoded.push(*short),
        long => {
            encoded.push(0x80 | u8::try_from(long.len()).unwrap());
            encoded.extend(long);
        }
    }
    encoded.extend(content);
    encoded
}

/// An element with an indefinite length: the tag, the content, and the end-of-contents marker.
pub(crate) fn indefinite(tag: u8, content: &[u8]) -> Vec<u8> {
    [&[tag, 0x80], content, &[0, 0]].concat()
}

pub(crate) fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(SEQUENCE, &parts.concat())
}

/// A SET whose members are in DER order.
pub(crate) fn set(mut parts: Vec<Vec<u8>>) -> Vec<u8> {
    parts.sort();
    tlv(SET, &parts.concat())
}

pub(crate) fn oid(arcs: &[u64]) -> Vec<u8> {
    let (head, tail) = arcs.split_at(2);
    let mut content = Vec::new();
    for arc in std::iter::once(&(head[0] * 40 + head[1])).chain(tail) {
        let mut groups = vec![u8::try_from(arc & 0x7f).unwrap()];
        let mut rest = arc >> 7;
        while rest > 0 {
            groups.push(0x80 | u8::try_from(rest & 0x7f).unwrap());
            rest >>= 7;
        }
        groups.reverse();
        content.extend(groups);
    }
    tlv(OID, &content)
}

/// A non-negative integer that consists of these big-endian bytes.
pub(crate) fn integer(magnitude: &[u8]) -> Vec<u8> {
    let zeros = magnitude.iter().take_while(|byte| **byte == 0).count();
    let mut content = magnitude[zeros..].to_vec();
    if content.first().is_none_or(|byte| *byte >= 0x80) {
        content.insert(0, 0);
    }
    tlv(INTEGER, &content)
}

/// An algorithm identifier whose parameters are NULL.
pub(crate) fn algorithm(arcs: &[u64]) -> Vec<u8> {
    sequence(&[oid(arcs), tlv(NULL, &[])])
}
