//! A DER writer for tests. It also writes encodings that a correct library never writes.

/// The encoding of one value, with at most 65535 bytes of content.
pub(super) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(content.len()).unwrap();
    let [high, low] = len.to_be_bytes();
    let len = match len {
        0..0x80 => vec![low],
        0x80..0x100 => vec![0x81, low],
        0x100.. => vec![0x82, high, low],
    };
    [&[tag], len.as_slice(), content].concat()
}

pub(super) fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(0x30, &parts.concat())
}

pub(super) fn set(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(0x31, &parts.concat())
}

pub(super) fn oid(oid: x509_cert::der::asn1::ObjectIdentifier) -> Vec<u8> {
    tlv(0x06, oid.as_bytes())
}

pub(super) fn utf8(text: &str) -> Vec<u8> {
    tlv(0x0c, text.as_bytes())
}
