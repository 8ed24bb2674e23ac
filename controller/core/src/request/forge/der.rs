//! A DER writer that obeys: it encodes what no honest library would.

pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

pub(crate) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    let len = content.len().to_be_bytes();
    let len = &len[len.iter().take_while(|byte| **byte == 0).count()..];
    match len {
        [] => bytes.push(0),
        [short] if *short < 0x80 => bytes.push(*short),
        long => {
            bytes.push(0x80 | u8::try_from(long.len()).unwrap());
            bytes.extend(long);
        }
    }
    bytes.extend(content);
    bytes
}

pub(crate) fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(SEQUENCE, &parts.concat())
}

pub(crate) fn set(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(SET, &parts.concat())
}

pub(crate) fn oid(dotted: &str) -> Vec<u8> {
    let arcs: Vec<u32> = dotted.split('.').map(|arc| arc.parse().unwrap()).collect();
    let mut content = Vec::new();
    for arc in [&[arcs[0] * 40 + arcs[1]], &arcs[2..]].concat() {
        let mut groups = vec![u8::try_from(arc & 0x7f).unwrap()];
        let mut rest = arc >> 7;
        while rest > 0 {
            groups.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        content.extend(groups.iter().rev());
    }
    tlv(0x06, &content)
}

pub(crate) fn utf8(text: &str) -> Vec<u8> {
    tlv(0x0c, text.as_bytes())
}

pub(crate) fn printable(text: &str) -> Vec<u8> {
    tlv(0x13, text.as_bytes())
}

pub(crate) fn octets(content: &[u8]) -> Vec<u8> {
    tlv(0x04, content)
}

/// A bit string of whole bytes.
pub(crate) fn bits(content: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[0], content].concat())
}

pub(crate) fn boolean(value: bool) -> Vec<u8> {
    tlv(0x01, &[if value { 0xff } else { 0 }])
}

pub(crate) fn integer(content: &[u8]) -> Vec<u8> {
    tlv(0x02, content)
}

pub(crate) fn null() -> Vec<u8> {
    vec![0x05, 0x00]
}
