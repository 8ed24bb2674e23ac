use x509_cert::der::Decode as _;

use super::*;
use crate::csr::encode::{oid as encoded_oid, sequence, set, tlv, utf8};

fn attribute(kind: ObjectIdentifier, value: Vec<u8>) -> Vec<u8> {
    sequence(&[encoded_oid(kind), value])
}

fn organization(name: &str) -> Vec<u8> {
    set(&[attribute(oid::ORGANIZATION, utf8(name))])
}

fn common_name(name: &str) -> Vec<u8> {
    set(&[attribute(oid::COMMON_NAME, utf8(name))])
}

fn read(parts: &[Vec<u8>]) -> Result<NodeName, InvalidSubject> {
    node_name(&Name::from_der(&sequence(parts)).unwrap())
}

#[test]
fn the_subject_of_a_kubelet_names_its_node() {
    let name = read(&[organization("system:nodes"), common_name("system:node:n1")]);

    assert_eq!(name.unwrap().as_str(), "n1");
}

#[test]
fn a_printable_string_subject_is_accepted() {
    let printable = |text: &str| tlv(0x13, text.as_bytes());
    let name = read(&[
        set(&[attribute(oid::ORGANIZATION, printable("system:nodes"))]),
        set(&[attribute(oid::COMMON_NAME, printable("system:node:n1"))]),
    ]);

    assert_eq!(name.unwrap().as_str(), "n1");
}

#[test]
fn an_organization_other_than_system_nodes_is_refused() {
    let node = || common_name("system:node:n1");
    for parts in [
        vec![node()],
        vec![organization("system:masters"), node()],
        vec![
            organization("system:nodes"),
            organization("system:masters"),
            node(),
        ],
        vec![
            organization("system:masters"),
            organization("system:nodes"),
            node(),
        ],
        vec![],
    ] {
        assert_eq!(read(&parts), Err(InvalidSubject::Organization));
    }
}

#[test]
fn an_invalid_or_missing_common_name_is_refused() {
    let nodes = || organization("system:nodes");

    assert_eq!(read(&[nodes()]), Err(InvalidSubject::CommonNamePrefix));
    assert_eq!(
        read(&[nodes(), common_name("n1")]),
        Err(InvalidSubject::CommonNamePrefix)
    );
    for name in [
        "system:node:",
        "system:node:N1",
        "system:node:n1\0",
        "system:node:a/b",
    ] {
        assert_eq!(
            read(&[nodes(), common_name(name)]),
            Err(InvalidSubject::NodeName),
            "{name:?}"
        );
    }
}

#[test]
fn a_non_canonical_subject_encoding_is_refused() {
    let (nodes, node) = (organization("system:nodes"), common_name("system:node:n1"));
    let mut together = [
        attribute(oid::ORGANIZATION, utf8("system:nodes")),
        attribute(oid::COMMON_NAME, utf8("system:node:n1")),
    ];
    together.sort();
    let teletex = set(&[attribute(oid::COMMON_NAME, tlv(0x14, b"system:node:n1"))]);
    let not_utf8 = set(&[attribute(oid::COMMON_NAME, tlv(0x0c, b"system:node:\xff"))]);

    for parts in [
        vec![node.clone(), nodes.clone()],
        vec![set(&together)],
        vec![nodes.clone(), node.clone(), node],
        vec![nodes.clone(), teletex],
        vec![nodes, not_utf8],
    ] {
        assert_eq!(read(&parts), Err(InvalidSubject::NotCanonical));
    }
}

#[test]
fn an_unexpected_subject_attribute_is_refused() {
    let unit = ObjectIdentifier::new_unwrap("2.5.4.11");
    let parts = [
        organization("system:nodes"),
        set(&[attribute(unit, utf8("x"))]),
        common_name("system:node:n1"),
    ];

    assert_eq!(read(&parts), Err(InvalidSubject::ExtraAttribute));
}
