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

/// Whether the kept form of the object has this reference.
fn has_reference<K: Kept>(object: &Value, reference: fn(&K) -> bool) -> bool {
    kept::<K>(object.clone()).is_some_and(|kept| reference(&kept))
}

#[test]
fn a_reference_with_a_version_over_63_characters_is_not_kept() {
    let contract = Contract::V1Beta1;
    let unnamed = with(contract.machine("m1"), "/spec/providerID", Value::Null);
    let pool = contract.pool("p1", &[]);
    let template = contract.reference(ConfigReference::GROUP, "KubeadmConfigTemplate", "t");
    let deployment = json!({
        "metadata": {"name": "d", "namespace": "tenant-a"},
        "spec": {"template": {"spec": {"bootstrap": {"configRef": template}}}},
    });
    let infrastructure = contract.reference("infrastructure.cluster.x-k8s.io", "GenericPool", "p");
    let pool = with(
        pool,
        "/spec/template/spec/infrastructureRef",
        infrastructure,
    );
    let control_plane = contract.reference("controlplane.cluster.x-k8s.io", "Managed", "c");
    let managed = with(contract.cluster(), "/spec/controlPlaneRef", control_plane);
    for (len, is_kept) in [(63, true), (64, false)] {
        let long = |object: &Value, pointer: &str| {
            let pointer = format!("{pointer}/apiVersion");
            let version = object.pointer(&pointer).unwrap().as_str().unwrap();
            let (group, _) = version.split_once('/').unwrap();
            with(
                object.clone(),
                &pointer,
                json!(format!("{group}/{}", "a".repeat(len))),
            )
        };
        let config = long(&unnamed, "/spec/bootstrap/configRef");
        let is_kept_in_machine = has_reference::<Machine>(&config, |one| one.config.is_some());
        assert_eq!(is_kept_in_machine, is_kept, "{len}");
        let infra = long(&unnamed, "/spec/infrastructureRef");
        let of_machine = |one: &Machine| one.infrastructure.is_some() && one.infra_name.is_some();
        assert_eq!(
            has_reference::<Machine>(&infra, of_machine),
            is_kept,
            "{len}"
        );
        let config = long(&pool, "/spec/template/spec/bootstrap/configRef");
        let is_kept_in_pool = has_reference::<MachinePool>(&config, |one| one.config.is_some());
        assert_eq!(is_kept_in_pool, is_kept, "{len}");
        let infra = long(&pool, "/spec/template/spec/infrastructureRef");
        let of_pool = |one: &MachinePool| one.infrastructure.is_some();
        assert_eq!(
            has_reference::<MachinePool>(&infra, of_pool),
            is_kept,
            "{len}"
        );
        let infra = long(&managed, "/spec/infrastructureRef");
        let of_cluster = |one: &Cluster| one.infrastructure.is_some();
        assert_eq!(
            has_reference::<Cluster>(&infra, of_cluster),
            is_kept,
            "{len}"
        );
        let managed = long(&managed, "/spec/controlPlaneRef");
        let is_valid =
            |one: &ControlPlaneOf| matches!(one.reference, Some(ControlPlaneReference::Valid(_)));
        assert_eq!(
            has_reference::<ControlPlaneOf>(&managed, is_valid),
            is_kept,
            "{len}"
        );
        let template = long(&deployment, "/spec/template/spec/bootstrap/configRef");
        let of_deployment = |one: &MachineDeployment| one.template.is_some();
        assert_eq!(
            has_reference::<MachineDeployment>(&template, of_deployment),
            is_kept,
            "{len}"
        );
    }
}
