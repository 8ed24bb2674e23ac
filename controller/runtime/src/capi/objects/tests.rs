mod references;
mod sizes;

use kube::api::{ObjectList, WatchEvent};
use kube::core::{ApiResource, GroupVersionKind};
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::TokenId;
use serde_json::{Value, json};

use super::*;
use crate::capi::testing::{BOTH, Contract, kept, with};
use crate::client::NamedBy;
use crate::testing::{hostile_values, with_each_value};
use crate::watch::oversized::hides_no_other as hides_no_other_oversized;

fn id(text: &str) -> ProviderId {
    ProviderId::parse(text).unwrap()
}

#[test]
fn a_cluster_is_parsed_in_both_api_contracts() {
    for contract in BOTH {
        let cluster: Cluster = kept(contract.cluster()).unwrap();

        assert_eq!(cluster.uid, "Cluster-prod-1");
        assert!(!cluster.paused && !cluster.deleting);
        let endpoint = cluster.endpoint.unwrap();
        assert_eq!((&*endpoint.host, endpoint.port), ("203.0.113.7", 6443));
        assert_eq!(cluster.service_ranges, ["10.96.0.0/12", "fd00:1::/108"]);
        let infrastructure = cluster.infrastructure.unwrap();
        assert_eq!(infrastructure.group, "infrastructure.cluster.x-k8s.io");
        assert_eq!(infrastructure.kind, "GenericCluster");
        assert_eq!(infrastructure.name, "prod-1");
        let version = (contract == Contract::V1Beta1).then(|| "v1beta1".to_owned());
        assert_eq!(infrastructure.version, version);
        assert_eq!(cluster.control_plane, None);
        let group = "controlplane.cluster.x-k8s.io";
        let reference = contract.reference(group, "AWSManagedControlPlane", "prod-1");
        let managed = with(contract.cluster(), "/spec/controlPlaneRef", reference);
        let managed: Cluster = kept(managed).unwrap();
        let kind = managed.control_plane.as_deref();
        assert_eq!(kind, Some("AWSManagedControlPlane"));
    }
}

#[test]
fn a_cluster_is_paused_by_its_spec_or_its_annotation() {
    let cluster = Contract::V1Beta2.cluster();
    for (pointer, value, expected) in [
        ("/spec/paused", json!(true), true),
        ("/spec/paused", json!(false), false),
        (
            "/metadata/annotations",
            json!({"cluster.x-k8s.io/paused": "true"}),
            true,
        ),
        (
            "/metadata/annotations",
            json!({"cluster.x-k8s.io/paused": ""}),
            true,
        ),
        ("/metadata/annotations", json!({"other": "true"}), false),
    ] {
        let read: Cluster = kept(with(cluster.clone(), pointer, value.clone())).unwrap();
        assert_eq!(read.paused, expected, "{pointer} {value}");
    }
}

#[test]
fn a_cluster_without_optional_fields_is_read() {
    let mut cluster = Contract::V1Beta2.cluster();
    cluster["spec"] = json!({"controlPlaneEndpoint": {"host": "", "port": 0}});
    cluster["status"] = Value::Null;

    let read: Cluster = kept(cluster.clone()).unwrap();

    assert_eq!((read.endpoint, read.infrastructure), (None, None));
    for port in [-1, 65536] {
        let cluster = with(
            cluster.clone(),
            "/spec/controlPlaneEndpoint",
            json!({"host": "a", "port": port}),
        );
        assert_eq!(kept::<Cluster>(cluster).unwrap().endpoint, None);
    }
    cluster.as_object_mut().unwrap().remove("spec");
    assert!(kept::<Cluster>(cluster).is_some());
}

#[test]
fn a_machine_is_parsed_in_both_api_contracts() {
    for contract in BOTH {
        let machine: Machine = kept(contract.machine("m1")).unwrap();

        assert_eq!(machine.uid, "Machine-m1");
        assert_eq!(machine.cluster, "prod-1");
        assert_eq!(machine.provider_id, Some(id("generic:///rack/m1")));
        assert!(machine.has_bootstrap_data && !machine.deleting && !machine.control_plane);
        assert_eq!(machine.config.unwrap().name, "m1-config");
        assert_eq!(machine.infra_name.as_deref(), Some("m1-infra"));
        assert_eq!(machine.dns_names, ["m1.example.com"]);
        let addresses: Vec<_> = machine.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.7", "2001:db8::7", "198.51.100.7"]);
        assert_eq!(machine.pool, None);
    }
}

#[test]
fn bootstrap_data_is_ready_by_status_or_secret_name() {
    let bare = |contract: Contract| {
        let machine = with(contract.machine("m1"), "/status", json!({}));
        with(machine, "/spec/bootstrap/dataSecretName", Value::Null)
    };
    for contract in BOTH {
        assert!(!kept::<Machine>(bare(contract)).unwrap().has_bootstrap_data);
    }
    for (contract, pointer, value, expected) in [
        (
            Contract::V1Beta1,
            "/status/bootstrapReady",
            json!(true),
            true,
        ),
        (
            Contract::V1Beta1,
            "/status/bootstrapReady",
            json!(false),
            false,
        ),
        (
            Contract::V1Beta2,
            "/status/initialization",
            json!({"bootstrapDataSecretCreated": true}),
            true,
        ),
        (
            Contract::V1Beta2,
            "/status/initialization",
            json!({"bootstrapDataSecretCreated": false}),
            false,
        ),
        (
            Contract::V1Beta2,
            "/spec/bootstrap/dataSecretName",
            json!("mine"),
            true,
        ),
        (
            Contract::V1Beta2,
            "/spec/bootstrap/dataSecretName",
            json!(""),
            false,
        ),
        // The condition repeats the provider's report, so its status can change back to false.
        (
            Contract::V1Beta2,
            "/status/conditions",
            json!([{"type": "BootstrapConfigReady", "status": "True"}]),
            false,
        ),
    ] {
        let machine: Machine = kept(with(bare(contract), pointer, value.clone())).unwrap();
        assert_eq!(machine.has_bootstrap_data, expected, "{pointer} {value}");
    }
}

#[test]
fn a_machines_labels_and_deletion_are_read() {
    let machine = Contract::V1Beta2.machine("m1");
    let labels = json!({
        "cluster.x-k8s.io/cluster-name": "prod-1", "cluster.x-k8s.io/control-plane": "",
        "cluster.x-k8s.io/pool-name": "p1",
    });
    let labelled: Machine = kept(with(machine.clone(), "/metadata/labels", labels)).unwrap();
    assert!(labelled.control_plane);
    assert_eq!(labelled.pool.as_deref(), Some("p1"));

    let owner = |kind, api_version| {
        let owners = json!([{
            "apiVersion": api_version, "kind": kind, "name": "p2", "uid": "u", "controller": true,
        }]);
        kept::<Machine>(with(machine.clone(), "/metadata/ownerReferences", owners)).unwrap()
    };
    let pool = owner("MachinePool", "cluster.x-k8s.io/v1beta1").pool;
    assert_eq!(pool.as_deref(), Some("p2"));
    assert_eq!(owner("MachineSet", "cluster.x-k8s.io/v1beta1").pool, None);
    assert_eq!(owner("MachinePool", "example.com/v1").pool, None);

    let at = json!("2027-01-01T00:00:00Z");
    let deleting: Machine = kept(with(machine, "/metadata/deletionTimestamp", at)).unwrap();
    assert!(deleting.deleting);
}

#[test]
fn an_invalid_field_counts_as_missing() {
    let machine = Contract::V1Beta2.machine("m1");
    for id in ["", "m1", "generic:///", "generic:///a b"] {
        let read: Machine = kept(with(machine.clone(), "/spec/providerID", json!(id))).unwrap();
        assert_eq!(read.provider_id, None, "{id}");
    }
    let addresses = json!([{"type": "InternalIP"}, {"type": "Hostname", "address": ""}]);
    let read: Machine = kept(with(machine, "/status/addresses", addresses)).unwrap();
    assert!(read.addresses.is_empty() && read.dns_names.is_empty());
}

#[test]
fn the_cluster_of_a_machine_comes_from_its_spec_or_its_label() {
    let machine = Contract::V1Beta2.machine("m1");
    let other = with(machine.clone(), "/spec/clusterName", json!("prod-2"));
    assert_eq!(kept::<Machine>(other).unwrap().cluster, "prod-2");

    let labelled = with(machine, "/spec/clusterName", Value::Null);
    assert_eq!(kept::<Machine>(labelled.clone()).unwrap().cluster, "prod-1");
    let none = with(labelled, "/metadata/labels", json!({}));
    assert_eq!(kept::<Machine>(none), None);
}

#[test]
fn a_pool_is_parsed_in_both_api_contracts() {
    for contract in BOTH {
        let ids = ["generic:///rack/a", "not an ID", "generic:///rack/b"];
        let pool: MachinePool = kept(contract.pool("p1", &ids)).unwrap();

        assert_eq!(pool.uid, "MachinePool-p1");
        assert_eq!(pool.cluster, "prod-1");
        let expected = [id(ids[0]), id(ids[2])].into_iter().collect();
        assert_eq!(pool.provider_ids, expected);
        assert_eq!(pool.config.unwrap().name, "p1-config");
        assert!(pool.has_bootstrap_data && !pool.deleting);
    }
    let none = with(
        Contract::V1Beta2.pool("p1", &[]),
        "/spec/providerIDList",
        Value::Null,
    );
    let none = kept::<MachinePool>(none).unwrap().provider_ids;
    assert!(none.iter().next().is_none());
}

#[test]
fn only_the_token_id_of_a_bootstrap_token_is_kept() {
    for contract in BOTH {
        let config: BootstrapConfig = kept(contract.config("m1", "abcdef")).unwrap();

        assert_eq!(config.token, Some(TokenId::parse("abcdef").unwrap()));
        assert_eq!(config.node_name, None);
        let raw: Raw<BootstrapConfig> =
            serde_json::from_value(contract.config("m1", "abcdef")).unwrap();
        for shown in [format!("{config:?}"), format!("{raw:?}")] {
            assert!(
                !shown.contains("secret") && !shown.contains("hidden"),
                "{shown}"
            );
        }
    }
}

#[test]
fn an_invalid_token_counts_as_missing() {
    let pointer = "/spec/joinConfiguration/discovery/bootstrapToken/token";
    for token in ["", "abcdef", "ABCDEF.secretsecretsecr", ".secretsecretsecr"] {
        let config = with(
            Contract::V1Beta2.config("m1", "abcdef"),
            pointer,
            json!(token),
        );
        assert_eq!(
            kept::<BootstrapConfig>(config).unwrap().token,
            None,
            "{token}"
        );
    }
    for (pointer, value) in [
        (pointer, Value::Null),
        ("/spec/joinConfiguration/discovery", json!({})),
        ("/spec/joinConfiguration", Value::Null),
        ("/spec", Value::Null),
    ] {
        let config = with(Contract::V1Beta2.config("m1", "abcdef"), pointer, value);
        assert_eq!(
            kept::<BootstrapConfig>(config).unwrap().token,
            None,
            "{pointer}"
        );
    }
}

#[test]
fn only_an_explicit_node_name_is_read() {
    let name = |config| kept::<BootstrapConfig>(config).unwrap().node_name;
    let config = Contract::V1Beta2.config("m1", "abcdef");
    let join = "/spec/joinConfiguration/nodeRegistration/name";
    for (text, expected) in [
        ("node-1", Some("node-1")),
        (" Node-1.Example.com ", Some("node-1.example.com")),
        ("{{ ds.meta_data.local_hostname }}", None),
        ("'{{ v1.local_hostname }}'", None),
        ("$(hostname)", None),
        ("", None),
    ] {
        let expected = expected.map(|name| NodeName::parse(name).unwrap());
        assert_eq!(
            name(with(config.clone(), join, json!(text))),
            expected,
            "{text}"
        );
    }
    let init = json!({"nodeRegistration": {"name": "first"}});
    let init = with(config, "/spec/initConfiguration", init);
    assert_eq!(name(init), NodeName::parse("first").ok());
}

#[test]
fn a_control_plane_config_is_recognized() {
    let config = Contract::V1Beta2.config("m1", "abcdef");
    let joins: BootstrapConfig = kept(with(
        config.clone(),
        "/spec/joinConfiguration/controlPlane",
        json!({}),
    ))
    .unwrap();

    assert!(joins.control_plane);
    assert!(!kept::<BootstrapConfig>(config).unwrap().control_plane);
}

#[test]
fn deep_nesting_in_unused_fields_is_accepted() {
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    let cluster = with(
        Contract::V1Beta2.cluster(),
        "/spec/topology",
        json!({"variables": [{"name": "deep", "value": "HERE"}]}),
    );
    let cluster = cluster.to_string().replace("\"HERE\"", &deep);
    let listed = format!(r#"{{"metadata": {{}}, "items": [{cluster}]}}"#);
    let event = format!(r#"{{"type": "ADDED", "object": {cluster}}}"#);

    let list: ObjectList<Raw<Cluster>> = serde_json::from_str(&listed).unwrap();
    let event: WatchEvent<Raw<Cluster>> = serde_json::from_str(&event).unwrap();

    assert_eq!(list.items.len(), 1);
    assert!(matches!(event, WatchEvent::Added(_)));
}

/// Asserts that a list skips the unreadable forms of this object, and returns its readable forms. Also reads each form
/// separately.
fn skips_what_cannot_be_read<W: Kept>(good: &Value) {
    let no_timestamp = json!("9999-12-31T23:59:59Z");
    let entry = json!([{"manager": "m", "operation": "Update", "time": no_timestamp}]);
    for (pointer, value, is_read) in [
        ("/metadata/managedFields", entry, true),
        ("/metadata/managedFields", json!({"a": 1}), true),
        ("/metadata/creationTimestamp", no_timestamp.clone(), true),
        ("/metadata/deletionTimestamp", no_timestamp, true),
        ("/metadata/annotations", json!({"a": ["b"]}), true),
        ("/metadata/ownerReferences", json!([{"kind": 5}]), true),
        ("/status", json!("none"), false),
        ("/spec", json!([5]), false),
        ("/metadata", json!("none"), true),
    ] {
        let hostile = with(json!({"object": good}), &format!("/object{pointer}"), value);
        let list = json!({"metadata": {}, "items": [hostile["object"], 5, null, good]});

        let mut list: ObjectList<Raw<W>> = serde_json::from_value(list).unwrap();

        let good = list.items.pop().unwrap();
        assert!(good.kept().unwrap().is_some(), "{pointer}");
        let hostile = list.items.swap_remove(0);
        assert_eq!(hostile.object.is_ok(), is_read, "{pointer}");
    }
}

/// Asserts that the controller can still read the object from a page that also contains, before the object, a copy with
/// a hostile value. Tries each hostile value in each place.
fn hides_no_other<W: Kept>(good: &Value) {
    for (place, hostile) in with_each_value(good, &hostile_values()) {
        let list = format!(r#"{{"metadata": {{}}, "items": [{hostile}, {good}]}}"#);
        let list: Result<ObjectList<Raw<W>>, _> = serde_json::from_str(&list);
        let mut items = list
            .unwrap_or_else(|error| panic!("{place}: {error}"))
            .items;
        let event = format!(r#"{{"type": "MODIFIED", "object": {hostile}}}"#);
        let event: Result<WatchEvent<Raw<W>>, _> = serde_json::from_str(&event);
        assert!(matches!(event, Ok(WatchEvent::Modified(_))), "{place}");
        let good = items.pop().unwrap().kept();
        assert!(good.unwrap().is_some(), "{place}");
        // The object can be readable or unreadable.
        drop(items.pop().unwrap().kept());
    }
}

#[test]
fn an_unusual_value_does_not_hide_other_clusters_or_machines() {
    for contract in BOTH {
        hides_no_other::<Cluster>(&contract.cluster());
        hides_no_other::<Machine>(&contract.machine("m1"));
        hides_no_other::<MachinePool>(&contract.pool("p1", &["generic:///rack/a"]));
        hides_no_other::<BootstrapConfig>(&contract.config("m1", "abcdef"));
        hides_no_other::<InfraMachine>(&contract.machine("m1-infra"));
        hides_no_other::<InfraMachinePool>(&contract.machine("m1-infra"));
    }
}

/// Cluster API's objects of this kind in all namespaces.
fn all<W: Watched>(client: kube::Client) -> kube::Api<Raw<W>> {
    let kind = GroupVersionKind::gvk(CORE_GROUP, "v1beta2", W::KIND);
    kube::Api::all_with(client, &ApiResource::from_gvk(&kind))
}

#[tokio::test(start_paused = true)]
async fn an_oversized_object_does_not_hide_other_clusters_or_machines() {
    let of = Contract::V1Beta2;
    let pool = of.pool("p1", &["generic:///rack/a"]);
    hides_no_other_oversized(NamedBy::Operator, &of.cluster(), all::<Cluster>).await;
    hides_no_other_oversized(NamedBy::Operator, &of.machine("m1"), all::<Machine>).await;
    hides_no_other_oversized(NamedBy::Operator, &pool, all::<MachinePool>).await;
}

#[test]
fn one_unreadable_object_does_not_prevent_reads_of_others() {
    for contract in BOTH {
        skips_what_cannot_be_read::<Cluster>(&contract.cluster());
        skips_what_cannot_be_read::<Machine>(&contract.machine("m1"));
        skips_what_cannot_be_read::<MachinePool>(&contract.pool("p1", &["generic:///rack/a"]));
        skips_what_cannot_be_read::<BootstrapConfig>(&contract.config("m1", "abcdef"));
        let infrastructure = contract.machine("m1-infra");
        skips_what_cannot_be_read::<InfraMachine>(&infrastructure);
        skips_what_cannot_be_read::<InfraMachinePool>(&infrastructure);
    }
}

#[test]
fn an_object_is_named_with_its_namespace() {
    assert_eq!(
        "fleet/prod-1".parse(),
        Ok(ObjectKey::new("fleet", "prod-1"))
    );
    for text in ["prod-1", "/prod-1", "fleet/", "/", "", "a/b/c"] {
        assert_eq!(text.parse::<ObjectKey>(), Err(InvalidObjectKey), "{text}");
    }
}
