//! Tests of limits on the parts of an object that the controller stores while the object exists.

use std::collections::BTreeMap;

use super::*;
use crate::capi::objects::MemberLimit;
use crate::capi::objects::pool::MAX_PROVIDER_IDS;

#[test]
fn a_cluster_of_any_size_uses_bounded_memory() {
    let cluster = Contract::V1Beta2.cluster();
    let labels: BTreeMap<_, _> = (0..10_000)
        .map(|number| (number.to_string(), "a"))
        .collect();
    let labelled = with(cluster.clone(), "/metadata/labels", json!(labels));
    assert_eq!(
        kept::<Cluster>(labelled),
        kept::<Cluster>(cluster.clone()),
        "labels that are not read"
    );

    let long = "a".repeat(1 << 20);
    // Each comma adds a name, which uses more memory than the comma.
    let attestors = ",".repeat(1024);
    for (pointer, value) in [
        (
            "/metadata/annotations",
            json!({"attestation.cluster.x-k8s.io/authorized-attestors": attestors}),
        ),
        ("/spec/controlPlaneEndpoint/host", json!(long)),
        (
            "/spec/controlPlaneRef",
            json!({"apiVersion": "a.b/v1", "kind": long, "name": "a"}),
        ),
        ("/spec/infrastructureRef/kind", json!(long)),
        ("/spec/infrastructureRef/name", json!(long)),
        ("/spec/clusterNetwork/services/cidrBlocks", json!([long])),
        (
            "/spec/clusterNetwork/services/cidrBlocks",
            json!(vec!["10.0.0.0/8"; 100_000]),
        ),
    ] {
        let read: Cluster = kept(with(cluster.clone(), pointer, value)).unwrap();
        let shown = format!("{read:?}").len();
        assert!(shown < 4096, "{pointer}: {shown}");
    }
}

#[test]
fn service_ranges_over_the_limit_are_marked_as_invalid() {
    let of = |count: usize| {
        let cluster = with(
            Contract::V1Beta2.cluster(),
            "/spec/clusterNetwork/services/cidrBlocks",
            json!(vec!["10.0.0.0/8"; count]),
        );
        kept::<Cluster>(cluster).unwrap().service_ranges
    };
    assert_eq!(of(100), ["10.0.0.0/8"; 100]);
    let more = of(200);
    assert_eq!(more.len(), 101);
    assert_eq!(more[100], "more than 100 ranges");
}

#[test]
fn a_machine_with_long_names_uses_bounded_memory() {
    let machine = Contract::V1Beta2.machine("m1");
    let long = "a".repeat(1 << 20);
    let address = json!([{"type": "InternalDNS", "address": long}]);
    let labels = json!({"cluster.x-k8s.io/cluster-name": "prod-1"});
    let owner = json!([{
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool", "name": long, "uid": "u",
    }]);
    for (pointer, value) in [
        ("/spec/clusterName", json!(long)),
        ("/spec/infrastructureRef/kind", json!(long)),
        ("/spec/providerID", json!(format!("a:///{long}"))),
        ("/status/addresses", address),
        ("/metadata/ownerReferences", owner),
    ] {
        let object = with(machine.clone(), pointer, value);
        let object = with(object, "/metadata/labels", labels.clone());
        let read: Machine = kept(object).unwrap();
        let shown = format!("{read:?}").len();
        assert!(shown < 4096, "{pointer}: {shown}");
    }
}

#[test]
fn the_reported_addresses_of_a_machine_have_a_limit_in_total() {
    let of = |addresses: &[String]| {
        let of = |address: &String| json!({"type": "InternalDNS", "address": address});
        let addresses: Vec<_> = addresses.iter().map(of).collect();
        let machine = Contract::V1Beta2.machine("m1");
        kept::<Machine>(with(machine, "/status/addresses", json!(addresses))).unwrap()
    };
    let ipv6: Vec<String> = (0..64)
        .map(|number| format!("fd00:1111:1111:1111:1111:1111:1111:11{number}"))
        .collect();
    let machine = of(&ipv6);
    assert_eq!((ipv6[63].len(), machine.addresses.len()), (39, 64));
    assert!(machine.provisioned);
    let more: Vec<String> = ipv6.iter().cloned().chain(["fd00::1".to_owned()]).collect();
    assert!(!of(&more).provisioned, "another address can be its own");
    let name = |number: usize| format!("{number:0>63}.{}", "a.".repeat(92) + "abcde");
    let names: Vec<String> = (0..64).map(name).collect();
    assert_eq!(names[0].len(), 253);
    let machine = of(&names);
    assert_eq!(
        (machine.dns_names.len(), machine.host_names.len()),
        (16, 16)
    );
    assert!(!machine.provisioned, "another name can be its own");
}

#[test]
fn the_members_of_a_pool_are_limited_as_in_its_definition() {
    let ids: Vec<_> = (0..2 * MAX_PROVIDER_IDS)
        .map(|number| format!("a:///{number}"))
        .collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    for (count, cut) in [
        (MAX_PROVIDER_IDS, None),
        (MAX_PROVIDER_IDS + 1, Some(MemberLimit::Pool)),
        (2 * MAX_PROVIDER_IDS, Some(MemberLimit::Pool)),
    ] {
        let pool: MachinePool = kept(Contract::V1Beta2.pool("p1", &ids[..count])).unwrap();
        assert_eq!(pool.provider_ids.iter().count(), MAX_PROVIDER_IDS);
        assert_eq!(pool.cut, cut, "{count}");
    }
}
