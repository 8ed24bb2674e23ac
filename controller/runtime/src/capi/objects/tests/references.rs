//! Tests of references from Machines to their `InfraMachine`s and `KubeadmConfig`s.

use super::*;

#[test]
fn a_reference_to_another_namespace_is_ignored() {
    let machine = Contract::V1Beta1.machine("m1");
    for pointer in [
        "/spec/bootstrap/configRef/namespace",
        "/spec/infrastructureRef/namespace",
    ] {
        let read: Machine = kept(with(machine.clone(), pointer, json!("tenant-b"))).unwrap();
        let left = [read.config.is_some(), read.infra_name.is_some()];
        assert_eq!(
            left.into_iter().filter(|left| *left).count(),
            1,
            "{pointer}"
        );
    }
}

#[test]
fn only_a_machine_without_a_provider_id_keeps_its_infra_reference() {
    for contract in BOTH {
        let machine = contract.machine("m1");
        let named: Machine = kept(machine.clone()).unwrap();
        assert_eq!(named.infrastructure, None);

        for none in [Value::Null, json!("no ID")] {
            let unnamed = with(machine.clone(), "/spec/providerID", none);
            let unnamed: Machine = kept(unnamed).unwrap();
            let reference = unnamed.infrastructure.unwrap();
            assert_eq!(reference.group, "infrastructure.cluster.x-k8s.io");
            assert_eq!(reference.kind, "GenericMachine");
            assert_eq!(reference.name, "m1-infra");
            assert_eq!(unnamed.infra_name, named.infra_name);
        }
    }
}

#[test]
fn a_config_reference_has_group_kind_name_and_version() {
    for (contract, version) in [
        (Contract::V1Beta1, Some("v1beta1".to_owned())),
        (Contract::V1Beta2, None),
    ] {
        let machine: Machine = kept(contract.machine("m1")).unwrap();
        let expected = Reference {
            group: "bootstrap.cluster.x-k8s.io".to_owned(),
            version,
            kind: "KubeadmConfig".to_owned(),
            name: "m1-config".to_owned(),
        };
        assert_eq!(machine.config.unwrap().complete(), expected);
    }
}

#[test]
fn a_reference_with_path_characters_is_ignored() {
    let unnamed = |contract: Contract| {
        let machine = contract.machine("m1");
        with(machine, "/spec/providerID", Value::Null)
    };
    let machine = unnamed(Contract::V1Beta1);
    let valid: Machine = kept(machine.clone()).unwrap();
    assert!(valid.infrastructure.is_some() && valid.infra_name.is_some());
    for (pointer, text) in [
        (
            "/spec/infrastructureRef/apiVersion",
            "x-k8s.io/../../api/v1",
        ),
        ("/spec/infrastructureRef/apiVersion", "x-k8s.io/v1?watch=1"),
        ("/spec/infrastructureRef/apiVersion", "../v1"),
        ("/spec/infrastructureRef/name", "../../tenant-b/x"),
        ("/spec/infrastructureRef/name", "m1?watch=1"),
        ("/spec/infrastructureRef/name", ""),
    ] {
        let read: Machine = kept(with(machine.clone(), pointer, json!(text))).unwrap();
        assert_eq!(read.infrastructure, None, "{pointer}: {text}");
        assert_eq!(read.infra_name, None, "{pointer}: {text}");
        assert!(read.config.is_some(), "{pointer}: {text}");
    }
    let machine = unnamed(Contract::V1Beta2);
    let group = "/spec/infrastructureRef/apiGroup";
    let read: Machine = kept(with(machine, group, json!("../../api"))).unwrap();
    assert_eq!((read.infrastructure, read.infra_name), (None, None));
}
