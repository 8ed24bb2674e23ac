//! A DER writer without checks, which can also encode invalid structures.

pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;

pub fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
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

pub fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(SEQUENCE, &parts.concat())
}

pub fn set(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(SET, &parts.concat())
}

pub fn oid(dotted: &str) -> Vec<u8> {
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

pub fn utf8(text: &str) -> Vec<u8> {
    tlv(0x0c, text.as_bytes())
}

pub fn printable(text: &str) -> Vec<u8> {
    tlv(0x13, text.as_bytes())
}

pub fn octets(content: &[u8]) -> Vec<u8> {
    tlv(0x04, content)
}

/// A bit string that consists of complete bytes.
pub fn bits(content: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[0], content].concat())
}

pub fn boolean(value: bool) -> Vec<u8> {
    tlv(0x01, &[if value { 0xff } else { 0 }])
}

pub fn integer(content: &[u8]) -> Vec<u8> {
    tlv(0x02, content)
}

pub fn null() -> Vec<u8> {
    vec![0x05, 0x00]
}
