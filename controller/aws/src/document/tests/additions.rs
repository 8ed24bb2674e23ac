//! Tests for rows B5 to B9: the valid message with an additional element.

use kubelet_authenticator_test_support::instance_identity::message::{Attribute, to_lines};

use super::super::cms::SignedMessage;
use super::{SIGNER, SIGNERS, denial, message};
use crate::denial::AwsDenial;

const CONSTRUCTED: u8 = 0x20;
const NULL: [u8; 2] = [0x05, 0x00];

fn structure() -> AwsDenial {
    AwsDenial::DocumentStructure("an element is missing or has an unexpected type")
}

fn unsigned_attributes() -> AwsDenial {
    AwsDenial::DocumentStructure("it has unsigned attributes")
}

fn attributes(detail: &'static str) -> AwsDenial {
    AwsDenial::DocumentAttributes(detail)
}

fn parameters() -> AwsDenial {
    AwsDenial::DocumentAlgorithm("an algorithm has parameters")
}

/// A DER element with its members, in order.
enum Element {
    Leaf(Vec<u8>),
    Node(u8, Vec<Element>),
}

impl Element {
    /// The elements in these bytes.
    fn all(mut der: &[u8]) -> Vec<Self> {
        let mut elements = Vec::new();
        while !der.is_empty() {
            let (header, length) = match der[1] {
                0x81 => (3, usize::from(der[2])),
                0x82 => (4, usize::from(u16::from_be_bytes([der[2], der[3]]))),
                short => (2, usize::from(short)),
            };
            let (element, rest) = der.split_at(header + length);
            elements.push(if element[0] & CONSTRUCTED == 0 {
                Self::Leaf(element.to_vec())
            } else {
                Self::Node(element[0], Self::all(&element[header..]))
            });
            der = rest;
        }
        elements
    }

    /// The members of the element at this position.
    fn members(&mut self, place: &[usize]) -> &mut Vec<Self> {
        let Self::Node(_, members) = self else {
            panic!("it has members");
        };
        match place {
            [] => members,
            [first, rest @ ..] => members[*first].members(rest),
        }
    }

    fn to_der(&self) -> Vec<u8> {
        match self {
            Self::Leaf(der) => der.clone(),
            Self::Node(tag, members) => {
                let content: Vec<u8> = members.iter().flat_map(Self::to_der).collect();
                let length = u16::try_from(content.len()).unwrap().to_be_bytes();
                let header = match length {
                    [0, short @ 0..0x80] => vec![*tag, short],
                    [0, low] => vec![*tag, 0x81, low],
                    [high, low] => vec![*tag, 0x82, high, low],
                };
                [header, content].concat()
            }
        }
    }
}

/// The reason for denying the valid message after this change to the members of an element.
fn changed(place: &[usize], change: impl FnOnce(&mut Vec<Element>)) -> AwsDenial {
    let mut elements = Element::all(&message().to_der());
    let element = &mut elements[0];
    let valid = to_lines(&element.to_der());
    assert!(SIGNERS.verify(&valid).is_ok(), "as it was taken apart");
    change(element.members(place));
    SIGNERS.verify(&to_lines(&element.to_der())).unwrap_err()
}

/// The position of `SignerInfo`, or of an element inside it.
fn in_signer(place: &[usize]) -> Vec<usize> {
    [&[1, 0, 3, 0], place].concat()
}

#[test]
fn an_extra_element_in_any_structure_is_denied() {
    for (what, place, expected) in [
        ("ContentInfo", vec![], structure()),
        ("its content", vec![1], structure()),
        ("SignedData", vec![1, 0], structure()),
        ("digestAlgorithms", vec![1, 0, 1], {
            AwsDenial::DocumentAlgorithm("different digest algorithm")
        }),
        ("its one", vec![1, 0, 1, 0], parameters()),
        ("EncapsulatedContentInfo", vec![1, 0, 2], structure()),
        ("eContent", vec![1, 0, 2, 1], structure()),
        ("signerInfos", vec![1, 0, 3], structure()),
        ("SignerInfo", in_signer(&[]), unsigned_attributes()),
        ("issuerAndSerialNumber", in_signer(&[1]), structure()),
        ("digestAlgorithm", in_signer(&[2]), parameters()),
        (
            "signedAttrs",
            in_signer(&[3]),
            attributes("an attribute is malformed"),
        ),
        (
            "Attribute",
            in_signer(&[3, 0]),
            attributes("an attribute is malformed"),
        ),
        (
            "its values",
            in_signer(&[3, 0, 1]),
            attributes("an attribute is malformed"),
        ),
        ("signatureAlgorithm", in_signer(&[4]), parameters()),
    ] {
        let denied = changed(&place, |members| {
            members.push(Element::Leaf(NULL.to_vec()));
        });

        assert_eq!(denied, expected, "{what}");
    }
    let der = [message().to_der(), NULL.to_vec()].concat();
    assert_eq!(SignedMessage::parse(&der).unwrap_err(), structure());
}

#[test]
fn an_extra_element_in_the_algorithm_protection_is_denied() {
    let of_attribute = |index: usize| in_signer(&[3, index, 1, 0]);
    let attributes_of = message().signers[0].attributes.len();
    let protection = (0..attributes_of).rev().find(|&index| {
        let mut elements = Element::all(&message().to_der());
        let [Element::Node(..)] = elements[0].members(&in_signer(&[3, index, 1]))[..] else {
            return false;
        };
        true
    });

    let denied = changed(&of_attribute(protection.unwrap()), |members| {
        members.push(Element::Leaf(NULL.to_vec()));
    });

    assert_eq!(denied, attributes("the protected algorithms differ"));
}

#[test]
fn a_nonempty_null_in_an_algorithm_is_denied() {
    for place in [in_signer(&[2]), in_signer(&[4]), vec![1, 0, 1, 0]] {
        let denied = changed(&place, |members| {
            members.truncate(1);
            members.push(Element::Leaf(vec![0x05, 0x01, 0x00]));
        });

        assert_eq!(denied, parameters(), "{place:?}");
    }
}

#[test]
fn more_than_16_signed_attributes_are_denied() {
    let with = |count: u64| {
        message().resigned(&SIGNER, |signer| {
            for number in signer.attributes.len().try_into().unwrap()..count {
                let kind = vec![1, 2, 3, number].leak();
                signer.attributes.push(Attribute::single(kind, NULL.into()));
            }
        })
    };

    assert!(super::verify(&with(16)).is_ok());
    assert_eq!(denial(&with(17)), attributes("there are too many"));
}
