//! Tests of the ranges that limit the addresses in serving certificates.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use futures::executor::block_on;
use kubelet_attestation::names::Provider;

use super::serving::{approved, denied_by};
use super::serving_names::with_own;
use super::serving_reported::guest_reported;
use crate::decide::*;
use crate::identifiers::ServingName;
use crate::testing::serving::{
    ADDRESS, ADDRESS_6, dns, ip, joined, other_machine, serving, serving_cluster,
    serving_cluster_of, serving_for, serving_machine,
};
use crate::testing::{UID, decided, issued_at, now, renewal};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The cluster, with these address ranges for serving certificates.
fn limited(cluster: Context, ranges: &[&str]) -> Context {
    let mut cluster = cluster;
    let ranges = ranges.iter().map(|range| range.parse().unwrap());
    cluster.serving.address_ranges = ranges.collect();
    cluster
}

fn out_of_range(text: &str) -> Denial {
    Denial::ServingAddressOutOfRange(address(text))
}

#[test]
fn an_address_outside_all_configured_ranges_is_denied() {
    const V4: &[&str] = &["198.51.100.16/28"];
    const V6: &[&str] = &["2001:db8:0:1::/64"];
    const BOTH: &[&str] = &["198.51.100.16/28", "203.0.113.9/32", "2001:db8:0:1::/64"];
    for (ranges, text, is_in) in [
        (&[][..], "198.51.100.15", true),
        (&[], "2001:db8:0:2::", true),
        (V4, "198.51.100.15", false),
        (V4, "198.51.100.16", true),
        (V4, "198.51.100.31", true),
        (V4, "198.51.100.32", false),
        (V4, "2001:db8:0:1::", false),
        (V6, "2001:db8:0:0:ffff:ffff:ffff:ffff", false),
        (V6, "2001:db8:0:1::", true),
        (V6, "2001:db8:0:1:ffff:ffff:ffff:ffff", true),
        (V6, "2001:db8:0:2::", false),
        (V6, "198.51.100.16", false),
        (BOTH, "198.51.100.16", true),
        (BOTH, "203.0.113.9", true),
        (BOTH, "2001:db8:0:1::1", true),
        (BOTH, "203.0.113.8", false),
        (BOTH, "203.0.113.10", false),
        (&["0.0.0.0/0"], "198.51.100.15", true),
        (&["0.0.0.0/0"], "2001:db8:0:1::1", false),
        (&["::/0"], "2001:db8:0:1::1", true),
        (&["::/0"], "198.51.100.15", false),
    ] {
        let cluster = limited(with_own(&ServingName::Ip(address(text))), ranges);

        let decision = decided(&serving_for(&[ip(address(text))]), &cluster);

        let denial = match &decision {
            Decision::Approve(_) => None,
            Decision::Deny(denial) => Some(denial),
            Decision::Ignore(_) | Decision::Fail(_) | Decision::Retry(_) | Decision::Issue(_) => {
                panic!("{text} in {ranges:?}: {decision:?}")
            }
        };
        let expected = (!is_in).then(|| out_of_range(text));
        assert_eq!(denial, expected.as_ref(), "{text} in {ranges:?}");
    }
}

#[test]
fn one_address_out_of_range_at_any_position_denies_the_request() {
    let cluster = limited(serving_cluster(), &["192.0.2.0/24"]);
    let (own, outside) = (ip(ADDRESS), ip(address(ADDRESS_6)));

    for names in [
        vec![outside.clone(), own.clone(), dns("n1")],
        vec![dns("n1"), outside.clone(), own.clone()],
        vec![dns("n1"), own.clone(), outside],
    ] {
        assert_eq!(
            denied_by(&serving_for(&names), &cluster),
            out_of_range(ADDRESS_6)
        );
    }
    approved(&serving_for(&[dns("n1"), own]), &cluster);
}

#[test]
fn address_ranges_do_not_limit_names() {
    let cluster = limited(serving_cluster(), &["203.0.113.0/24"]);

    approved(&serving_for(&[dns("n1"), dns("m1.internal")]), &cluster);
}

#[test]
fn a_range_does_not_permit_other_invalid_addresses() {
    let everything = &["0.0.0.0/0", "::/0"];
    let by = |cluster: Context, asked: [u8; 4]| {
        denied_by(&serving_for(&[ip(asked)]), &limited(cluster, everything))
    };
    let name = |asked: [u8; 4]| ServingName::Ip(asked.into());
    let (unknown, reserved) = ([192, 0, 2, 9], [10, 96, 0, 1]);
    let mut other = other_machine();
    other.addresses.push(ADDRESS.into());
    let shared = joined(serving_cluster_of(vec![serving_machine(), other]));

    assert_eq!(
        by(serving_cluster(), unknown),
        Denial::ServingNameNotReported(name(unknown), "m1".to_owned())
    );
    assert_eq!(
        by(shared, ADDRESS),
        Denial::ServingNameOfAnotherMachine(name(ADDRESS), "m2".to_owned())
    );
    assert_eq!(
        by(with_own(&name(reserved)), reserved),
        Denial::ServingNameReserved(name(reserved))
    );
}

#[test]
fn a_non_canonical_address_matches_no_range() {
    let mapped = Ipv4Addr::from(ADDRESS).to_ipv6_mapped();
    for ranges in [&["::/0"][..], &["192.0.2.0/24"], &["0.0.0.0/0", "::/0"]] {
        let cluster = limited(serving_cluster(), ranges);

        assert_eq!(
            denied_by(&serving_for(&[ip(IpAddr::from(mapped))]), &cluster),
            Denial::ServingNameMalformed("::ffff:192.0.2.1".to_owned())
        );
    }
}

#[test]
fn a_node_reported_address_outside_the_allowed_ranges_is_denied() {
    let (inside, outside) = ("198.51.100.7", "198.51.100.70");
    let names = [inside, outside].map(|text| ServingName::Ip(address(text)));
    let asks = |text: &str, cluster: Context| {
        let request = serving_for(&[ip(address(text))]);
        decided(&request, &limited(cluster, &["198.51.100.0/26"]))
    };
    let reported = || guest_reported(Some(names.to_vec()));

    let decision = asks(inside, reported());
    assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");
    // In the last cluster, the controller cannot read the Nodes.
    for cluster in [reported(), guest_reported(None)] {
        let decision = asks(outside, cluster);
        let Decision::Deny(denial) = decision else {
            panic!("not denied: {decision:?}")
        };
        assert_eq!(denial, out_of_range(outside));
    }
}

#[test]
fn a_serving_renewal_outside_a_new_address_range_is_denied() {
    let cluster = serving_cluster();
    let mut ours = serving();
    ours.spec.signer_name = Provider::NULL.serving_signer();
    approved(&serving(), &cluster);
    issued_at(&ours, &cluster, now());

    // The new context contains the same records.
    let cluster = limited(cluster, &["198.51.100.0/24"]);

    for request in [&serving(), &ours] {
        assert_eq!(denied_by(request, &cluster), out_of_range("192.0.2.1"));
    }
    // The node can still renew its certificate.
    issued_at(&renewal(UID), &cluster, now());
    approved(&serving_for(&[dns("n1")]), &cluster);
}

#[test]
fn the_denial_names_the_address_and_the_setting() {
    assert_eq!(
        out_of_range(ADDRESS_6).to_string(),
        "2001:db8::1 is outside servingAddressRanges"
    );
}

#[test]
fn an_explanation_shows_the_ranges_that_are_set() {
    let saw = |cluster: &Context| {
        let explained = block_on(explain(&serving(), cluster, now(), || Duration::ZERO));
        let mut steps = explained.steps.into_iter();
        let step = steps.find(|step| step.check == "request-format");
        step.unwrap().saw
    };
    let both = &["192.0.2.0/24", "2001:db8::/32"];

    let without = saw(&serving_cluster());
    let limited = saw(&limited(serving_cluster(), both));

    assert_eq!(without.as_deref(), Some("node n1, for n1, 192.0.2.1"));
    assert_eq!(
        limited.as_deref(),
        Some("node n1, for n1, 192.0.2.1; addresses are limited to 192.0.2.0/24, 2001:db8::/32")
    );
}
