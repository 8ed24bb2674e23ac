//! Unusual encodings of certificates that vendors have signed.

use rcgen::{KeyPair, SigningKey as _};

use crate::tlv::{CONTEXT_0, INTEGER, OCTET_STRING, OID, SEQUENCE, SET, UTC_TIME, tlv};

const BOOLEAN: u8 = 0x01;
const GENERALIZED_TIME: u8 = 0x18;

/// The bit in the tag of an element that contains other elements.
const CONSTRUCTED: u8 = 0x20;

/// A DER element.
#[derive(Debug, Clone)]
pub(super) enum Element {
    Primitive(u8, Vec<u8>),
    Constructed(u8, Vec<Element>),
}

impl Element {
    /// Parses the element at the beginning. Returns the remaining bytes.
    fn parse(der: &[u8]) -> (Self, &[u8]) {
        let (tag, length) = (der[0], usize::from(der[1]));
        let (length, start) = if length < 0x80 {
            (length, 2)
        } else {
            let digits = &der[2..2 + length - 0x80];
            let digit = |sum: usize, digit: &u8| sum * 256 + usize::from(*digit);
            (digits.iter().fold(0, digit), 2 + digits.len())
        };
        let (content, rest) = der[start..].split_at(length);
        let element = if tag & CONSTRUCTED == 0 {
            Self::Primitive(tag, content.to_vec())
        } else {
            Self::Constructed(tag, Self::parse_all(content))
        };
        (element, rest)
    }

    fn parse_all(der: &[u8]) -> Vec<Self> {
        let (mut elements, mut rest) = (Vec::new(), der);
        while !rest.is_empty() {
            let (element, behind) = Self::parse(rest);
            elements.push(element);
            rest = behind;
        }
        elements
    }

    fn to_der(&self) -> Vec<u8> {
        match self {
            Self::Primitive(tag, content) => tlv(*tag, content),
            Self::Constructed(tag, elements) => {
                let parts: Vec<u8> = elements.iter().flat_map(Self::to_der).collect();
                tlv(*tag, &parts)
            }
        }
    }

    /// Changes this element, and then the elements in it.
    fn change(&mut self, encoding: fn(&mut Self)) {
        encoding(self);
        if let Self::Constructed(_, elements) = self {
            for element in elements {
                element.change(encoding);
            }
        }
    }
}

/// Returns the certificate in a different encoding, signed again with the key of its issuer.
pub(super) fn signed_again(
    certificate: &[u8],
    issuer: &KeyPair,
    encoding: fn(&mut Element),
) -> Vec<u8> {
    let (certificate, _) = Element::parse(certificate);
    let Element::Constructed(tag, mut parts) = certificate else {
        panic!("it is not a certificate");
    };
    parts[0].change(encoding);
    let signature = issuer.sign(&parts[0].to_der()).expect("it signs");
    let Element::Primitive(_, bits) = &mut parts[2] else {
        panic!("it has no signature");
    };
    *bits = [&[0], &signature[..]].concat();
    Element::Constructed(tag, parts).to_der()
}

/// Writes the default value of `critical`, which DER omits.
pub(super) fn explicit_defaults(element: &mut Element) {
    if let Element::Constructed(SEQUENCE, parts) = element
        && let [
            Element::Primitive(OID, _),
            Element::Primitive(OCTET_STRING, _),
        ] = parts.as_slice()
    {
        parts.insert(1, Element::Primitive(BOOLEAN, vec![0]));
    }
}

/// Encodes every date as a GeneralizedTime, which RFC 5280 permits only for dates in 2050 or later.
pub(super) fn general_times(element: &mut Element) {
    if let Element::Primitive(tag, text) = element
        && *tag == UTC_TIME
    {
        let century = if text[0] < b'5' { "20" } else { "19" };
        *tag = GENERALIZED_TIME;
        *text = [century.as_bytes(), text.as_slice()].concat();
    }
}

/// Writes zeros before the digits of the serial number.
pub(super) fn leading_zeros(element: &mut Element) {
    if let Element::Constructed(SEQUENCE, parts) = element
        && let [
            Element::Constructed(CONTEXT_0, _),
            Element::Primitive(INTEGER, serial),
            ..,
        ] = parts.as_mut_slice()
    {
        *serial = [&[0, 0], serial.as_slice()].concat();
    }
}

/// Writes all attributes of a name in one set, which is not sorted.
pub(super) fn one_set(element: &mut Element) {
    let is_set = |part: &Element| matches!(part, Element::Constructed(SET, _));
    if let Element::Constructed(SEQUENCE, parts) = element
        && parts.len() > 1
        && parts.iter().all(is_set)
    {
        let attributes = parts.drain(..).flat_map(|part| match part {
            Element::Constructed(_, attributes) => attributes,
            Element::Primitive(..) => Vec::new(),
        });
        let attributes = attributes.collect();
        parts.push(Element::Constructed(SET, attributes));
    }
}
