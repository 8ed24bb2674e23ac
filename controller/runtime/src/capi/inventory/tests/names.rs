//! Tests of the names that a machine's Node can have.

use node_attestation_core::inventory::Naming;

use super::*;

/// Whether the Node of this machine can have this name.
fn naming(inventory: &CapiInventory, machine: &str, asked: &str) -> Naming {
    let machine = block_on(inventory.by_machine_name(machine));
    let machine = machine.unwrap().expect("a machine");
    let asked = NodeName::parse(asked).unwrap();
    block_on(inventory.naming(&machine, &asked)).unwrap()
}

fn shared_with(other: &str) -> Naming {
    Naming::Shared {
        other: other.to_owned(),
    }
}

/// The result if the Node must have one of these names, listed in order of preference.
fn but(names: &[&str]) -> Naming {
    let names = names.iter().map(|name| NodeName::parse(name).unwrap());
    Naming::Another(names.collect())
}

/// The Machine, for which the infrastructure reports this address.
fn reporting(machine: &str, kind: &str, address: &str) -> Value {
    let addresses = json!([{"type": kind, "address": address}]);
    with(V2.machine(machine), "/status/addresses", addresses)
}

const WRITTEN: &str = "/spec/joinConfiguration/nodeRegistration/name";

#[test]
fn a_node_name_must_match_the_machine_or_a_reported_hostname() {
    for contract in BOTH {
        let (_, inventory) = cluster(contract);
        for own in ["m1-infra", "m1", "m1.example.com"] {
            assert_eq!(naming(&inventory, "m1", own), Naming::Own, "{own}");
        }
        let names = but(&["m1-infra", "m1", "m1.example.com"]);
        for other in ["m2", "m2-infra", "m2.example.com", "n9", "10.0.0.7"] {
            assert_eq!(naming(&inventory, "m1", other), names, "{other}");
        }
    }
    let (objects, inventory) = cluster(V2);
    for (kind, address) in [
        ("ExternalDNS", "n9"),
        ("InternalIP", "n9"),
        ("Hostname", "not a name"),
    ] {
        seen::<objects::Machine>(&objects, reporting("m1", kind, address));
        let expected = but(&["m1-infra", "m1"]);
        assert_eq!(naming(&inventory, "m1", "n9"), expected, "{kind}");
    }
    seen::<objects::Machine>(&objects, reporting("m1", "Hostname", "10.0.0.9"));
    let expected = but(&["m1-infra", "m1"]);
    assert_eq!(naming(&inventory, "m1", "10.0.0.9"), expected);
}

/// A Machine whose `InfraMachine`, `KubeadmConfig` and Node have its name, as created by Cluster API's own
/// controllers.
fn of_one_name(name: &str) -> Value {
    let machine = with(
        V2.machine(name),
        "/spec/infrastructureRef/name",
        json!(name),
    );
    let machine = with(machine, "/spec/bootstrap/configRef/name", json!(name));
    with(machine, "/status/nodeRef", json!({"name": name}))
}

#[test]
fn a_machine_is_found_if_its_objects_all_have_the_node_name() {
    let (objects, inventory) = cluster(V2);
    seen::<objects::Machine>(&objects, of_one_name("n1"));
    configured(
        &objects,
        with(V2.config("n1", "tokenn"), "/metadata/name", json!("n1")),
    );
    // Another host reports the name, but a report has less weight than the Machine's own name.
    seen::<objects::Machine>(&objects, reporting("m2", "Hostname", "n1"));

    let Some(TokenOwner::Machine(found)) = by_token(&inventory, "tokenn") else {
        panic!("no machine")
    };
    assert_eq!(found.name, "n1");
    assert_eq!(naming(&inventory, "n1", "n1"), Naming::Own);
    assert_eq!(naming(&inventory, "m2", "n1"), shared_with("n1"));
    for (name, count) in [("n1", 2), ("m1", 1), ("n2", 0)] {
        let found = block_on(inventory.by_name(name)).unwrap();
        assert_eq!(found.len(), count, "{name}");
    }

    // Only the Machine's own name remains, and it still has more weight.
    let machine = with(V2.machine("n1"), "/spec/bootstrap", Value::Null);
    seen::<objects::Machine>(&objects, machine);
    assert_eq!(by_token(&inventory, "tokenn"), None);
    assert_eq!(naming(&inventory, "m2", "n1"), shared_with("n1"));
}

#[test]
fn the_final_dot_of_a_reported_name_is_ignored() {
    let (objects, inventory) = cluster(V2);
    let name = "ip-10-0-0-1.corp.test";
    for kind in ["InternalDNS", "Hostname"] {
        let reported = reporting("m1", kind, "IP-10-0-0-1.corp.test.");
        seen::<objects::Machine>(&objects, reported);

        assert_eq!(naming(&inventory, "m1", name), Naming::Own, "{kind}");
        let found = block_on(inventory.by_name(name)).unwrap();
        assert_eq!(found.len(), 1, "{kind}");
        assert_eq!(found[0].dns_names, [name], "{kind}");
    }
}

#[test]
fn an_explicit_node_name_is_the_only_name() {
    let (objects, inventory) = cluster(V2);
    let config = with(V2.config("m1", "token1"), WRITTEN, json!("n1"));
    configured(&objects, config);

    assert_eq!(naming(&inventory, "m1", "n1"), Naming::Own);
    for other in ["m1-infra", "m1", "m1.example.com"] {
        assert_eq!(naming(&inventory, "m1", other), but(&["n1"]), "{other}");
    }
    // The ledger knows the holder of the name.
    let config = with(V2.config("m2", "token2"), WRITTEN, json!("n1"));
    configured(&objects, config);
    assert_eq!(naming(&inventory, "m1", "n1"), Naming::Own);
}

#[test]
fn a_name_is_compared_only_with_the_current_objects() {
    let (objects, inventory) = cluster(V2);
    let written = |machine: &str, token: &str, name: Value| {
        configured(&objects, with(V2.config(machine, token), WRITTEN, name));
    };
    let reported = |name: &str| {
        seen::<objects::Machine>(&objects, reporting("m2", "Hostname", name));
    };
    reported("m1");
    assert_eq!(naming(&inventory, "m1", "m1"), Naming::Own);
    seen::<objects::Machine>(&objects, reporting("m1", "Hostname", "n9"));
    reported("n9");
    assert_eq!(naming(&inventory, "m1", "n9"), shared_with("m2"));
    reported("n8");
    assert_eq!(naming(&inventory, "m1", "n9"), Naming::Own);

    written("m2", "token2", json!("n9"));
    assert_eq!(naming(&inventory, "m1", "n9"), shared_with("m2"));
    written("m2", "token2", Value::Null);
    assert_eq!(naming(&inventory, "m1", "n9"), Naming::Own);
}

#[test]
fn the_node_name_is_unknown_until_the_config_is_known() {
    let (_, inventory) = unconfigured();

    assert_eq!(naming(&inventory, "m1", "m1-infra"), Naming::Unknown);
}

#[test]
fn a_reported_name_is_accepted_until_the_machine_is_provisioned() {
    for (contract, pointer) in [
        (Contract::V1Beta1, "/status/infrastructureReady"),
        (
            Contract::V1Beta2,
            "/status/initialization/infrastructureProvisioned",
        ),
    ] {
        let (objects, inventory) = cluster(contract);
        let machine = with(contract.machine("m1"), "/status/addresses", Value::Null);
        let not_yet = with(machine.clone(), pointer, json!(false));
        seen::<objects::Machine>(&objects, not_yet);

        assert_eq!(naming(&inventory, "m1", "n9"), Naming::Unknown);
        assert_eq!(naming(&inventory, "m1", "m1"), Naming::Own);
        let names = but(&["m1-infra", "m1"]);
        assert_eq!(naming(&inventory, "m1", "m2.example.com"), names);
        let provisioning = || {
            by_id(&inventory, "generic:///rack/m1")
                .unwrap()
                .provisioning
        };
        assert!(provisioning(), "{contract:?}");

        seen::<objects::Machine>(&objects, machine);
        assert!(!provisioning(), "{contract:?}");
        assert_eq!(naming(&inventory, "m1", "n9"), names);
    }
}

#[test]
fn a_name_reported_for_two_machines_is_ambiguous() {
    let (objects, inventory) = cluster(V2);
    let host = "m1.example.com";
    seen::<objects::Machine>(&objects, reporting("m2", "InternalDNS", host));

    assert_eq!(naming(&inventory, "m1", host), shared_with("m2"));
    assert_eq!(naming(&inventory, "m2", host), shared_with("m1"));

    seen::<objects::Machine>(&objects, reporting("m2", "ExternalDNS", host));
    assert_eq!(naming(&inventory, "m1", host), Naming::Own);
}

#[test]
fn a_name_of_machine_objects_overrides_a_reported_name() {
    let (objects, inventory) = cluster(V2);
    for name in ["m1-infra", "m1"] {
        seen::<objects::Machine>(&objects, reporting("m2", "Hostname", name));

        assert_eq!(naming(&inventory, "m1", name), Naming::Own, "{name}");
        assert_eq!(naming(&inventory, "m2", name), shared_with("m1"), "{name}");
    }
    let config = with(V2.config("m1", "token1"), WRITTEN, json!("n1"));
    configured(&objects, config);
    seen::<objects::Machine>(&objects, reporting("m2", "Hostname", "n1"));
    assert_eq!(naming(&inventory, "m1", "n1"), Naming::Own);
    assert_eq!(naming(&inventory, "m2", "n1"), shared_with("m1"));
}

#[test]
fn a_name_reported_for_two_machines_belongs_to_the_one_with_the_node() {
    let (objects, inventory) = cluster(V2);
    let host = "m1.example.com";
    let node = json!({ "name": host });
    let joined = with(V2.machine("m1"), "/status/nodeRef", node.clone());
    seen::<objects::Machine>(&objects, joined);
    seen::<objects::Machine>(&objects, reporting("m2", "Hostname", host));

    assert_eq!(naming(&inventory, "m1", host), Naming::Own);
    assert_eq!(naming(&inventory, "m2", host), shared_with("m1"));

    // A Node reports its own machine, so the Node's name remains available to other machines.
    let machine = with(V2.machine("m1"), "/status/addresses", Value::Null);
    seen::<objects::Machine>(&objects, with(machine, "/status/nodeRef", node));
    let names = but(&["m1-infra", "m1"]);
    assert_eq!(naming(&inventory, "m1", host), names);
    assert_eq!(naming(&inventory, "m2", host), shared_with("m1"));
}

#[test]
fn a_reported_name_does_not_apply_to_a_pool_member() {
    let (objects, inventory) = cluster(V2);
    let member = "generic:///pool/b";
    seen::<objects::Machine>(&objects, reporting("m1", "Hostname", "b"));
    assert_eq!(naming(&inventory, "m1", "b"), Naming::Own);

    seen::<MachinePool>(&objects, V2.pool("p1", &[member]));

    assert_eq!(naming(&inventory, "m1", "b"), shared_with(member));
    let member = by_id(&inventory, member).unwrap();
    for (asked, expected) in [("b", Naming::Own), ("c", but(&["b"]))] {
        let asked = NodeName::parse(asked).unwrap();
        let naming = block_on(inventory.naming(&member, &asked)).unwrap();
        assert_eq!(naming, expected);
    }
}
