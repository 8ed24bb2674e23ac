//! Tests of the subject.

use crate::refusal::Denial;
use crate::testing::{Csr, NODE_CN, denied, der, envelope, object};

const O: &str = "2.5.4.10";
const CN: &str = "2.5.4.3";

fn nodes() -> (&'static str, Vec<u8>) {
    (O, der::utf8("system:nodes"))
}

fn node(name: &str) -> (&'static str, Vec<u8>) {
    (CN, der::utf8(name))
}

#[track_caller]
fn denied_subject(attributes: &[(&str, Vec<u8>)]) -> Denial {
    denied_csr(&Csr::with_subject(attributes))
}

#[track_caller]
fn denied_csr(csr: &Csr) -> Denial {
    denied(&object(envelope(&csr.der())))
}

#[test]
fn a_subject_without_an_organization_is_denied() {
    assert_eq!(
        denied_subject(&[node(NODE_CN)]),
        Denial::SubjectOrganization
    );
}

#[test]
fn an_organization_other_than_system_nodes_is_denied() {
    for organization in [
        "system:masters",
        "System:Nodes",
        "system:nodes ",
        "",
        "system:node",
    ] {
        let subject = [(O, der::utf8(organization)), node(NODE_CN)];

        assert_eq!(
            denied_subject(&subject),
            Denial::SubjectOrganization,
            "{organization:?}"
        );
    }
}

#[test]
fn a_second_organization_is_denied_in_either_order() {
    let masters = || (O, der::utf8("system:masters"));

    for subject in [
        [nodes(), masters(), node(NODE_CN)],
        [masters(), nodes(), node(NODE_CN)],
        [nodes(), nodes(), node(NODE_CN)],
    ] {
        assert_eq!(denied_subject(&subject), Denial::SubjectOrganization);
    }
}

#[test]
fn a_common_name_with_another_prefix_is_denied() {
    for name in [
        "n1",
        "system:nodes:n1",
        "System:Node:n1",
        " system:node:n1",
        "system:admin",
    ] {
        assert_eq!(
            denied_subject(&[nodes(), node(name)]),
            Denial::SubjectCommonName,
            "{name:?}"
        );
    }
    assert_eq!(denied_subject(&[nodes()]), Denial::SubjectCommonName);
}

#[test]
fn an_empty_node_name_is_denied() {
    assert_eq!(
        denied_subject(&[nodes(), node("system:node:")]),
        Denial::SubjectNodeName
    );
}

#[test]
fn an_invalid_node_name_is_denied() {
    let long = "n".repeat(254);
    for name in [
        "N1",
        "n1\0",
        "n1/x",
        "n\u{ff11}",
        "n1 ",
        "n1.",
        "*",
        "..",
        &long,
    ] {
        let subject = [nodes(), node(&format!("system:node:{name}"))];

        assert_eq!(
            denied_subject(&subject),
            Denial::SubjectNodeName,
            "{name:?}"
        );
    }
}

#[test]
fn two_common_names_are_denied() {
    let subject = [nodes(), node("system:node:n2"), node(NODE_CN)];

    assert_eq!(denied_subject(&subject), Denial::SubjectNotCanonical);
}

#[test]
fn a_subject_with_another_order_is_denied() {
    assert_eq!(
        denied_subject(&[node(NODE_CN), nodes()]),
        Denial::SubjectNotCanonical
    );
}

#[test]
fn several_values_in_one_part_are_denied() {
    let attribute = |(oid, value): (&str, Vec<u8>)| der::sequence(&[der::oid(oid), value]);
    let mut values = [attribute(nodes()), attribute(node(NODE_CN))];
    values.sort();
    let csr = Csr {
        subject: vec![der::set(&values)],
        ..Csr::valid()
    };

    assert_eq!(denied_csr(&csr), Denial::SubjectNotCanonical);
}

#[test]
fn an_unsupported_string_type_in_the_subject_is_denied() {
    let bmp: Vec<u8> = NODE_CN.encode_utf16().flat_map(u16::to_be_bytes).collect();
    for (tag, text) in [
        (0x1e, bmp.as_slice()),
        (0x14, NODE_CN.as_bytes()),
        (0x16, NODE_CN.as_bytes()),
        (0x04, NODE_CN.as_bytes()),
    ] {
        let subject = [nodes(), (CN, der::tlv(tag, text))];

        assert_eq!(
            denied_subject(&subject),
            Denial::SubjectNotCanonical,
            "tag {tag:#x}"
        );
    }
}

#[test]
fn text_that_is_not_utf8_is_denied() {
    let subject = [nodes(), (CN, der::tlv(0x0c, b"system:node:\xff"))];

    assert_eq!(denied_subject(&subject), Denial::SubjectNotCanonical);
}

#[test]
fn an_extra_subject_attribute_is_denied() {
    let serial_number = "2.5.4.5";
    let locality = "2.5.4.7";
    let organizational_unit = "2.5.4.11";
    let ldap_uid = "0.9.2342.19200300.100.1.1";
    let kubernetes_uid = "1.3.6.1.4.1.57683.2";
    for extra in [
        serial_number,
        locality,
        organizational_unit,
        ldap_uid,
        kubernetes_uid,
    ] {
        let subject = [nodes(), node(NODE_CN), (extra, der::utf8("x"))];

        assert_eq!(
            denied_subject(&subject),
            Denial::SubjectExtraAttribute,
            "{extra}"
        );
    }
}

#[test]
fn an_empty_subject_is_denied() {
    assert_eq!(denied_subject(&[]), Denial::SubjectOrganization);
}
