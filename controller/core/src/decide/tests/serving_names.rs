//! Tests for row 30 of table A: names and addresses in a serving request that do not belong to the machine.

use crate::decide::*;
use crate::identifiers::ServingName;
use crate::inventory::{Machine, MachineState};
use crate::testing::serving::{
    ADDRESS, ADDRESS_6, SUBJECT_ALT_NAME_OID, dns, ip, joined, other_machine, serving_cluster,
    serving_cluster_of, serving_for, serving_machine, serving_object,
};
use crate::testing::{Csr, decided, der, extension};
use std::net::{IpAddr, Ipv6Addr};

#[track_caller]
fn denied_by(names: &[Vec<u8>], cluster: &Context) -> Denial {
    let decision = decided(&serving_for(names), cluster);
    let Decision::Deny(denial) = decision else {
        panic!("not denied: {decision:?}")
    };
    denial
}

#[track_caller]
fn denied(names: &[Vec<u8>]) -> Denial {
    denied_by(names, &serving_cluster())
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A cluster whose inventory also reports this name or address for machine `m1`.
pub(super) fn with_own(name: &ServingName) -> Context {
    let mut machine = serving_machine();
    match name {
        ServingName::Dns(name) => machine.dns_names.push(name.clone()),
        ServingName::Ip(address) => machine.addresses.push(*address),
    }
    joined(serving_cluster_of(vec![machine, other_machine()]))
}

#[test]
fn every_reported_name_and_address_of_the_machine_is_approved() {
    for names in [
        vec![dns("n1")],
        vec![dns("m1.internal")],
        vec![ip(ADDRESS)],
        vec![ip(address(ADDRESS_6))],
        vec![
            dns("m1.internal"),
            dns("n1"),
            ip(address(ADDRESS_6)),
            ip(ADDRESS),
        ],
    ] {
        let decision = decided(&serving_for(&names), &serving_cluster());
        assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");
    }
}

#[test]
fn an_address_or_name_not_reported_for_the_machine_is_denied() {
    for (name, encoded) in [
        (ServingName::Ip(address("192.0.2.9")), ip([192, 0, 2, 9])),
        (
            ServingName::Ip(address("2001:db8::9")),
            ip(address("2001:db8::9")),
        ),
        (ServingName::Ip(address("192.0.2.2")), ip([192, 0, 2, 2])),
        (
            ServingName::Dns("m2.internal".to_owned()),
            dns("m2.internal"),
        ),
        (ServingName::Dns("n2".to_owned()), dns("n2")),
        (ServingName::Dns("x.n1".to_owned()), dns("x.n1")),
        (
            ServingName::Dns("n1.internal".to_owned()),
            dns("n1.internal"),
        ),
        (ServingName::Dns("internal".to_owned()), dns("internal")),
    ] {
        let expected = Denial::ServingNameNotReported(name, "m1".to_owned());
        assert_eq!(denied(std::slice::from_ref(&encoded)), expected);
        // The name is listed next to the machine's own names, either before or after them.
        assert_eq!(denied(&[encoded.clone(), dns("n1")]), expected);
        assert_eq!(denied(&[dns("n1"), ip(ADDRESS), encoded]), expected);
    }
}

/// The cluster in which machine `m1` has joined. The machine can get more addresses later.
fn provisioning() -> Context {
    let machine = Machine {
        provisioning: true,
        ..serving_machine()
    };
    joined(serving_cluster_of(vec![machine, other_machine()]))
}

#[test]
fn an_address_of_a_machine_that_is_not_provisioned_yet_waits() {
    let early = serving_for(&[dns("n1"), ip([192, 0, 2, 9])]);

    let decision = decided(&early, &provisioning());

    let Decision::Retry(deferral) = decision else {
        panic!("not put off: {decision:?}")
    };
    assert_eq!(deferral.reason(), "MachineNotProvisioned");
    let expected =
        Denial::ServingNameNotReported(ServingName::Ip(address("192.0.2.9")), "m1".to_owned());
    assert_eq!(denied(&[dns("n1"), ip([192, 0, 2, 9])]), expected);
}

#[test]
fn names_reported_before_provisioning_are_approved() {
    let decision = decided(&serving_for(&[dns("n1"), ip(ADDRESS)]), &provisioning());
    assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");
}

#[test]
fn an_address_or_name_shared_with_another_machine_is_denied() {
    let shared = |change: fn(&mut Machine)| {
        let mut other = other_machine();
        change(&mut other);
        joined(serving_cluster_of(vec![serving_machine(), other]))
    };

    assert_eq!(
        denied_by(
            &[ip(ADDRESS)],
            &shared(|other| other.addresses.push(ADDRESS.into()))
        ),
        Denial::ServingNameOfAnotherMachine(ServingName::Ip(ADDRESS.into()), "m2".to_owned())
    );
    for (name, cluster) in [
        (
            "m1.internal",
            shared(|other| other.dns_names.push("m1.internal".to_owned())),
        ),
        ("n1", shared(|other| other.dns_names.push("n1".to_owned()))),
    ] {
        assert_eq!(
            denied_by(&[dns(name)], &cluster),
            Denial::ServingNameOfAnotherMachine(ServingName::Dns(name.to_owned()), "m2".to_owned())
        );
    }
}

#[test]
fn an_address_of_a_machine_being_deleted_waits() {
    let mut other = other_machine();
    other.addresses.push(ADDRESS.into());
    other.state = MachineState::Deleting;
    let cluster = joined(serving_cluster_of(vec![serving_machine(), other]));

    let decision = decided(&serving_for(&[ip(ADDRESS)]), &cluster);

    let Decision::Retry(Deferral::ServingNameNotFree(name, machine)) = decision else {
        panic!("not retried: {decision:?}")
    };
    assert_eq!(name, ServingName::Ip(ADDRESS.into()));
    assert_eq!(machine, "m2");
}

#[test]
fn reserved_names_are_denied_even_if_they_are_reported() {
    for name in [
        "localhost",
        "n1.localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "web.default.svc",
        "web.default.svc.cluster.local",
        "api.example.com",
    ] {
        let own = ServingName::Dns(name.to_owned());

        let denial = denied_by(&[dns(name)], &with_own(&own));

        assert_eq!(denial, Denial::ServingNameReserved(own));
    }
}

#[test]
fn reserved_addresses_are_denied_even_if_they_are_reported() {
    for text in [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "0.1.2.3",
        "255.255.255.255",
        "224.0.0.1",
        "169.254.169.254",
        "10.96.0.1",
        "10.111.255.255",
        "::",
        "::1",
        "::192.0.2.1",
        "ff02::1",
        "fe80::1",
        "2001:db8::6443",
    ] {
        let own = ServingName::Ip(address(text));

        let denial = denied_by(&[ip(address(text))], &with_own(&own));

        assert_eq!(denial, Denial::ServingNameReserved(own));
    }
}

#[test]
fn non_canonical_names_are_denied() {
    for name in [
        "",
        "*",
        "*.internal",
        "*.m1.internal",
        "M1.internal",
        "m1.internal.",
        ".m1.internal",
        "m1..internal",
        "m1_internal",
        "m1.internal\0.evil",
        "m1.internal ",
        "-m1",
        "192.0.2.1",
        "system:node:n1",
        &"a.".repeat(130),
    ] {
        assert_eq!(
            denied(&[dns(name)]),
            Denial::ServingNameMalformed(name.to_owned())
        );
    }
}

#[test]
fn non_canonical_addresses_are_denied() {
    let mapped: Ipv6Addr = std::net::Ipv4Addr::from(ADDRESS).to_ipv6_mapped();
    assert_eq!(
        denied(&[ip(IpAddr::from(mapped))]),
        Denial::ServingNameMalformed("::ffff:192.0.2.1".to_owned())
    );
    for octets in [
        &[][..],
        &[192, 0, 2],
        &[192, 0, 2, 1, 0],
        // An address with its mask, as in name constraints.
        &[192, 0, 2, 1, 255, 255, 255, 255],
        &[0; 15],
        &[0; 32],
    ] {
        let name = data_encoding::HEXLOWER.encode(octets);
        assert_eq!(
            denied(&[der::tlv(0x87, octets)]),
            Denial::ServingNameMalformed(name)
        );
    }
}

#[test]
fn names_other_than_dns_names_and_addresses_are_denied() {
    let other_name = [
        der::oid("1.3.6.1.4.1.311.20.2.3"),
        der::tlv(0xa0, &der::utf8("n1")),
    ];
    for (encoded, kind) in [
        (der::tlv(0xa0, &other_name.concat()), "otherName"),
        (der::tlv(0x81, b"root@n1"), "email"),
        (der::tlv(0x86, b"spiffe://example/n1"), "URI"),
        (der::tlv(0xa4, &der::sequence(&[])), "directoryName"),
        (der::tlv(0x88, &[0x2a, 0x03]), "registeredID"),
        (der::tlv(0x89, b"n1"), "unknown"),
        (der::utf8("n1"), "unknown"),
    ] {
        assert_eq!(
            denied(std::slice::from_ref(&encoded)),
            Denial::ServingNameKind(kind)
        );
        assert_eq!(
            denied(&[dns("n1"), ip(ADDRESS), encoded]),
            Denial::ServingNameKind(kind)
        );
    }
}

#[test]
fn an_empty_list_of_serving_names_is_denied() {
    assert_eq!(denied(&[]), Denial::ServingNamesMissing);
    let none = Csr {
        extensions: Vec::new(),
        attributes: Some(Vec::new()),
        ..Csr::valid()
    };
    let decision = decided(&serving_object(&none), &serving_cluster());
    assert!(
        matches!(decision, Decision::Deny(Denial::ServingNamesMissing)),
        "{decision:?}"
    );
}

#[test]
fn a_duplicate_serving_name_is_denied() {
    assert_eq!(
        denied(&[dns("n1"), ip(ADDRESS), dns("n1")]),
        Denial::ServingNameRepeated(ServingName::Dns("n1".to_owned()))
    );
    assert_eq!(
        denied(&[ip(ADDRESS), ip(ADDRESS)]),
        Denial::ServingNameRepeated(ServingName::Ip(ADDRESS.into()))
    );
}

#[test]
fn more_names_than_a_machine_has_are_denied() {
    let names: Vec<_> = (0..1025).map(|n| dns(&format!("n{n}"))).collect();

    assert_eq!(denied(&names), Denial::TooManyServingNames(1025));
    assert!(matches!(
        denied(&names[..1024]),
        Denial::ServingNameNotReported { .. }
    ));
}

#[test]
fn the_maximum_number_of_serving_names_is_approved() {
    let mut machine = serving_machine();
    let (mut names, mut asked) = (0..1024_u32, Vec::new());
    for n in names.by_ref().take(512) {
        let address = (0x2001_0db8_u128 << 96) + (u128::from(n) << 64) + 1;
        let address = IpAddr::from(Ipv6Addr::from(address));
        machine.addresses.push(address);
        asked.push(ip(address));
    }
    for n in names {
        let address = IpAddr::from((0xc612_0000 + n).to_be_bytes());
        machine.addresses.push(address);
        asked.push(ip(address));
    }
    let cluster = joined(serving_cluster_of(vec![machine, other_machine()]));

    let decision = decided(&serving_for(&asked), &cluster);

    assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");
}

#[test]
fn names_in_another_encoding_or_marked_as_critical_are_denied() {
    let with = |critical: bool, value: &[u8]| {
        let csr = Csr {
            extensions: vec![extension(SUBJECT_ALT_NAME_OID, critical, value)],
            ..Csr::valid()
        };
        let decision = decided(&serving_object(&csr), &serving_cluster());
        let Decision::Deny(denial) = decision else {
            panic!("not denied: {decision:?}")
        };
        denial
    };
    let names = der::sequence(&[dns("n1")]);
    let malformed = Denial::ServingNameKind("unknown");

    assert!(matches!(
        with(true, &names),
        Denial::CriticalExtension { .. }
    ));
    assert_eq!(with(false, &[names.clone(), vec![0]].concat()), malformed);
    assert_eq!(with(false, &der::set(&[dns("n1")])), malformed);
    assert_eq!(with(false, &der::octets(b"n1")), malformed);
    assert_eq!(with(false, &[]), malformed);
    let long_form = [&[0x30, 0x81, 0x04][..], &dns("n1")].concat();
    assert_eq!(with(false, &long_form), malformed);
}
