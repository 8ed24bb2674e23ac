use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use node_attestation_core::inventory::MachineState;
use serde_json::{Value, json};

use super::super::objects::{Cluster, MachinePool, Watched, label_value};
use super::super::testing::{
    BOTH, Contract, NAMESPACE, answered_by, bootstrap_api, kept, objects, seen, unanswered, with,
};
use super::*;

mod configs;
mod forged;
mod limits;
mod members;
mod names;
mod sizes;
mod tokens;

const V2: Contract = Contract::V1Beta2;

/// Runs `future` in a runtime with a clock.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().unwrap();
    runtime.block_on(future)
}

fn listed(objects: &Objects) {
    for kind in [Cluster::KIND, objects::Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
}

/// Stores a `KubeadmConfig` as if it had been read.
fn configured(objects: &Objects, config: Value) {
    let name = config["metadata"]["name"].as_str().unwrap().to_owned();
    let cluster = ObjectKey::new(NAMESPACE, "prod-1");
    objects.read_config(&cluster, &name, Ok(kept(config)));
}

fn inventory_of(objects: &Objects) -> CapiInventory {
    CapiInventory::new(objects.clone(), ObjectKey::new(NAMESPACE, "prod-1"))
}

/// Cluster `prod-1` with Machines `m1` and `m2`, which have the tokens `token1` and `token2`.
fn cluster(contract: Contract) -> (Objects, CapiInventory) {
    let objects = objects();
    seen::<Cluster>(&objects, contract.cluster());
    for (machine, token) in [("m1", "token1"), ("m2", "token2")] {
        seen::<objects::Machine>(&objects, contract.machine(machine));
        configured(&objects, contract.config(machine, token));
    }
    listed(&objects);
    let inventory = inventory_of(&objects);
    (objects, inventory)
}

/// Cluster `prod-1` with Machine `m1`, whose `KubeadmConfig` is missing.
fn unconfigured() -> (Objects, CapiInventory) {
    let objects = answered_by(bootstrap_api);
    seen::<Cluster>(&objects, V2.cluster());
    seen::<objects::Machine>(&objects, V2.machine("m1"));
    listed(&objects);
    let inventory = inventory_of(&objects);
    (objects, inventory)
}

fn id(text: &str) -> ProviderId {
    ProviderId::parse(text).unwrap()
}

fn token(text: &str) -> TokenId {
    TokenId::parse(text).unwrap()
}

fn by_id(inventory: &CapiInventory, text: &str) -> Option<Machine> {
    block_on(inventory.by_provider_id(&id(text))).unwrap()
}

fn by_token(inventory: &CapiInventory, text: &str) -> Option<TokenOwner> {
    block_on(inventory.by_token(&token(text))).unwrap()
}

/// The reason why the inventory cannot answer for this machine.
fn not_now(inventory: &CapiInventory, text: &str) -> String {
    let error = block_on(inventory.by_provider_id(&id(text))).unwrap_err();
    error.to_string()
}

fn node_name(machine: &Machine) -> Option<&str> {
    machine.node_name.as_ref().map(NodeName::as_str)
}

#[test]
fn a_machine_is_found_by_its_provider_id() {
    for contract in BOTH {
        let (_, inventory) = cluster(contract);

        let machine = by_id(&inventory, "generic:///rack/m1").unwrap();

        assert_eq!(machine.name, "m1");
        assert_eq!(machine.state, MachineState::Ready);
        assert_eq!(machine.provider_id, Some(id("generic:///rack/m1")));
        assert_eq!(node_name(&machine), Some("m1-infra"));
        assert_eq!(machine.token_id, Some(token("token1")));
        assert_eq!(machine.dns_names, ["m1.example.com"]);
        assert_eq!(machine.addresses.len(), 3);
        assert_eq!((machine.pool, machine.control_plane), (None, false));
        assert!(!machine.provisioning);
        let object = machine.object.unwrap();
        assert_eq!(object.kind.as_deref(), Some("Machine"));
        assert_eq!(object.namespace.as_deref(), Some(NAMESPACE));
        assert_eq!(object.uid.as_deref(), Some("Machine-m1"));
        assert_eq!(by_id(&inventory, "generic:///rack/m3"), None);
    }
}

#[test]
fn a_machine_is_found_by_its_token() {
    for contract in BOTH {
        let (_, inventory) = cluster(contract);

        let Some(TokenOwner::Machine(machine)) = by_token(&inventory, "token2") else {
            panic!("no machine")
        };

        assert_eq!(machine.name, "m2");
        assert_eq!(by_token(&inventory, "token3"), None);
    }
}

#[test]
fn queries_fail_until_every_kind_is_listed() {
    let objects = objects();
    let inventory = inventory_of(&objects);
    seen::<Cluster>(&objects, V2.cluster());
    seen::<objects::Machine>(&objects, V2.machine("m1"));
    configured(&objects, V2.config("m1", "token1"));
    for kind in [Cluster::KIND, objects::Machine::KIND] {
        objects.listed(kind);
        let unlisted = "the management cluster's objects have not been listed yet";
        assert_eq!(not_now(&inventory, "generic:///rack/m1"), unlisted);
        assert!(objects.clusters().is_empty());
        let by_token = block_on(inventory.by_token(&token("token1")));
        assert_eq!(by_token.unwrap_err().to_string(), unlisted);
    }

    objects.listed(MachinePool::KIND);

    assert!(objects.is_ready());
    assert!(by_id(&inventory, "generic:///rack/m1").is_some());
    assert_eq!(objects.clusters().len(), 1);
}

#[test]
fn queries_fail_for_a_paused_or_missing_cluster() {
    let (objects, inventory) = cluster(V2);
    for (pointer, value) in [
        ("/spec/paused", json!(true)),
        (
            "/metadata/annotations",
            json!({"cluster.x-k8s.io/paused": ""}),
        ),
    ] {
        seen::<Cluster>(&objects, with(V2.cluster(), pointer, value));

        let errors = [
            block_on(inventory.by_token(&token("token1"))).unwrap_err(),
            block_on(inventory.by_name("m1")).unwrap_err(),
            block_on(inventory.by_address([10, 0, 0, 7].into())).unwrap_err(),
        ];
        let errors = errors.map(|error| error.to_string());
        for error in [not_now(&inventory, "generic:///rack/m1")]
            .iter()
            .chain(&errors)
        {
            assert_eq!(error, "Cluster tenant-a/prod-1 is paused");
        }
    }
    seen::<Cluster>(&objects, V2.cluster());
    assert!(by_id(&inventory, "generic:///rack/m1").is_some());

    let other = CapiInventory::new(objects, ObjectKey::new("tenant-b", "prod-1"));
    assert_eq!(
        not_now(&other, "generic:///rack/m1"),
        "Cluster tenant-b/prod-1 does not exist in the management cluster"
    );
}

#[test]
fn a_machine_of_another_cluster_is_not_found() {
    let (objects, inventory) = cluster(V2);
    let other = with(V2.machine("m3"), "/spec/clusterName", json!("prod-2"));
    seen::<objects::Machine>(&objects, other);
    configured(&objects, V2.config("m3", "token3"));

    assert_eq!(by_id(&inventory, "generic:///rack/m3"), None);
    assert_eq!(by_token(&inventory, "token3"), None);
    let elsewhere = with(V2.machine("m4"), "/metadata/namespace", json!("tenant-b"));
    seen::<objects::Machine>(&objects, elsewhere);
    assert_eq!(by_id(&inventory, "generic:///rack/m4"), None);
}

#[test]
fn two_machines_with_the_same_provider_id_are_an_error() {
    let (objects, inventory) = cluster(V2);
    let same = json!("generic:///rack/m1");
    seen::<objects::Machine>(&objects, with(V2.machine("m2"), "/spec/providerID", same));

    assert_eq!(
        not_now(&inventory, "generic:///rack/m1"),
        "Machine m1 and Machine m2 have the same provider ID"
    );
    assert_eq!(by_id(&inventory, "generic:///rack/m2"), None);

    seen::<objects::Machine>(&objects, V2.machine("m2"));
    assert_eq!(by_id(&inventory, "generic:///rack/m1").unwrap().name, "m1");
    assert_eq!(by_id(&inventory, "generic:///rack/m2").unwrap().name, "m2");
}

#[test]
fn the_machine_state_follows_its_status() {
    let (objects, inventory) = cluster(V2);
    let at = json!("2027-01-01T00:00:00Z");
    let pending = with(V2.machine("m1"), "/status", json!({}));
    let pending = with(pending, "/spec/bootstrap/dataSecretName", Value::Null);
    for (machine, expected) in [
        (V2.machine("m1"), MachineState::Ready),
        (pending.clone(), MachineState::Pending),
        (
            with(pending, "/metadata/deletionTimestamp", at),
            MachineState::Deleting,
        ),
    ] {
        seen::<objects::Machine>(&objects, machine);
        let machine = by_id(&inventory, "generic:///rack/m1").unwrap();
        assert_eq!(machine.state, expected);
    }
}

#[test]
fn the_node_name_falls_back_from_config_to_infrastructure_to_machine() {
    let (objects, inventory) = cluster(V2);
    let named = |objects: &Objects| {
        let machine = by_id(&inventory_of(objects), "generic:///rack/m1").unwrap();
        node_name(&machine).map(str::to_owned)
    };
    let pointer = "/spec/joinConfiguration/nodeRegistration/name";
    for (written, expected) in [("n1", "n1"), ("{{ v1.local_hostname }}", "m1-infra")] {
        let config = with(V2.config("m1", "token1"), pointer, json!(written));
        configured(&objects, config);
        assert_eq!(named(&objects).as_deref(), Some(expected));
        let found = block_on(inventory.by_name(expected)).unwrap();
        assert_eq!(found.len(), 1);
    }
    let machine = with(V2.machine("m1"), "/spec/infrastructureRef", Value::Null);
    seen::<objects::Machine>(&objects, machine);
    assert_eq!(named(&objects).as_deref(), Some("m1"));
}

#[test]
fn a_control_plane_node_needs_a_node_ref_that_the_machine_reports() {
    for contract in BOTH {
        let (objects, inventory) = cluster(contract);
        for (found, expected) in [
            ("m1.example.com", "m1.example.com"),
            // Cluster API has found this Node by the provider ID that the Node reports.
            ("somebody-elses", "m1-infra"),
        ] {
            let machine = with(
                contract.machine("m1"),
                "/status/nodeRef",
                json!({"name": found}),
            );
            seen::<objects::Machine>(&objects, with_label(machine));

            let names = block_on(inventory.control_plane_nodes()).unwrap();
            let names: Vec<_> = names.iter().map(NodeName::as_str).collect();
            assert_eq!(names, [expected]);
            let without = |accounted: &str| {
                block_on(inventory.nodes_without(|name| name != accounted)).unwrap()
            };
            assert_eq!(without(""), BTreeSet::from([found.to_owned()]));
            for accounted in [found, expected] {
                assert_eq!(without(accounted), BTreeSet::new());
            }
            let machine = by_id(&inventory, "generic:///rack/m1").unwrap();
            let node = machine.node.as_ref().map(NodeName::as_str);
            // The name that the machine must use does not change.
            assert_eq!(
                (node, node_name(&machine)),
                (Some(expected), Some("m1-infra"))
            );
        }
    }
}

/// The Machine with the control-plane label.
fn with_label(machine: Value) -> Value {
    with(
        machine,
        "/metadata/labels",
        json!({"cluster.x-k8s.io/control-plane": "", "cluster.x-k8s.io/cluster-name": "prod-1"}),
    )
}

#[test]
fn a_node_has_no_name_while_its_config_is_unknown() {
    let (objects, inventory) = unconfigured();
    let machine = by_id(&inventory, "generic:///rack/m1").unwrap();
    assert_eq!((machine.node_name, machine.token_id), (None, None));

    // The configuration object of another bootstrap provider does not contain a node name.
    let other = V2.reference("bootstrap.cluster.x-k8s.io", "RKE2Config", "m1");
    let machine = with(V2.machine("m1"), "/spec/bootstrap/configRef", other);
    seen::<objects::Machine>(&objects, machine);
    let machine = by_id(&inventory, "generic:///rack/m1").unwrap();
    assert_eq!(node_name(&machine), Some("m1-infra"));
}

#[test]
fn a_token_shared_by_two_machines_has_no_owner() {
    let (objects, inventory) = cluster(V2);
    configured(&objects, V2.config("m2", "token1"));

    assert_eq!(by_token(&inventory, "token1"), None);

    configured(&objects, V2.config("m2", "token2"));
    assert!(by_token(&inventory, "token1").is_some());
}

#[test]
fn a_replaced_token_has_no_owner() {
    let (objects, inventory) = cluster(V2);

    configured(&objects, V2.config("m1", "token9"));

    assert_eq!(by_token(&inventory, "token1"), None);
    assert!(by_token(&inventory, "token9").is_some());
    let machine = by_id(&inventory, "generic:///rack/m1").unwrap();
    assert_eq!(machine.token_id, Some(token("token9")));
}

#[test]
fn a_control_plane_machine_has_the_label_or_the_configuration() {
    let (objects, inventory) = cluster(V2);
    let labels = json!({"cluster.x-k8s.io/control-plane": ""});
    seen::<objects::Machine>(&objects, with(V2.machine("m1"), "/metadata/labels", labels));
    let joins = with(
        V2.config("m2", "token2"),
        "/spec/joinConfiguration/controlPlane",
        json!({}),
    );
    configured(&objects, joins);

    for name in ["m1", "m2"] {
        let machine = by_id(&inventory, &format!("generic:///rack/{name}")).unwrap();
        assert!(machine.control_plane, "{name}");
    }
}

#[test]
fn a_machine_is_found_by_each_address_and_name_that_is_reported() {
    let (objects, inventory) = cluster(V2);
    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.8"}]);
    seen::<objects::Machine>(
        &objects,
        with(V2.machine("m2"), "/status/addresses", addresses),
    );
    let names = |found: Vec<Machine>| -> Vec<String> {
        found.into_iter().map(|machine| machine.name).collect()
    };
    let by_address = |address: &str| {
        let address = address.parse().unwrap();
        names(block_on(inventory.by_address(address)).unwrap())
    };
    let by_name = |name| names(block_on(inventory.by_name(name)).unwrap());

    assert_eq!(by_address("10.0.0.7"), ["m1"]);
    assert_eq!(by_address("2001:db8::7"), ["m1"]);
    assert_eq!(by_address("10.0.0.8"), ["m2"]);
    assert!(by_address("10.0.0.9").is_empty());
    assert_eq!(by_name("m1.example.com"), ["m1"]);
    assert_eq!(by_name("m2-infra"), ["m2"]);
    assert!(by_name("m2.example.com").is_empty());

    seen::<objects::Machine>(&objects, V2.machine("m2"));
    assert_eq!(by_address("10.0.0.7"), ["m1", "m2"]);
}

#[tokio::test(start_paused = true)]
async fn queries_fail_if_a_watch_is_silent_for_a_minute() {
    let kinds = [Cluster::KIND, objects::Machine::KIND, MachinePool::KIND];
    let (objects, inventory) = cluster(V2);
    let machine = id("generic:///rack/m1");
    for silent in kinds {
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(inventory.by_provider_id(&machine).await.is_ok(), "{silent}");

        for kind in kinds.into_iter().filter(|kind| *kind != silent) {
            objects.heard(kind);
        }
        tokio::time::advance(Duration::from_secs(2)).await;

        let error = inventory.by_provider_id(&machine).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the watch of {silent}s is delayed")
        );
        assert_eq!(inventory.machine_tokens().await, None, "{silent}");
        for kind in kinds {
            objects.heard(kind);
        }
        assert!(inventory.by_provider_id(&machine).await.is_ok(), "{silent}");
    }
}
