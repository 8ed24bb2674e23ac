//! The cost of a lookup in a cluster with many objects.

use super::*;
use crate::shared::Lock;
use crate::shared::testing::most_visited;

/// The number of objects of each kind. The benchmark `neighbours` has more objects.
const MANY: usize = 1000;

/// More entries than a lookup visits at a time.
const FEW: usize = 600;

/// The number of entries by which the visits can grow if the number of objects is four times as large: a small multiple
/// of its logarithm.
const GROWTH: usize = 8;

/// A name of 200 characters.
fn long(name: &str, number: usize) -> String {
    format!("{name}{number:0>199}")
}

/// A Machine whose `KubeadmConfig` is missing, with the label of a pool that does not exist.
fn hostile_machine(number: usize) -> Value {
    let name = long("m", number);
    let machine = with(
        V2.machine(&name),
        "/spec/bootstrap/configRef/name",
        json!(long("c", number)),
    );
    let labels = json!({
        "cluster.x-k8s.io/cluster-name": "prod-1", "cluster.x-k8s.io/pool-name": format!("zz-{number}"),
    });
    with(machine, "/metadata/labels", labels)
}

/// Cluster `prod-1` with this number of Machines and pools, whose `KubeadmConfig`s are missing.
fn crowd(count: usize) -> (Objects, CapiInventory) {
    let objects = answered_by(bootstrap_api);
    seen::<Cluster>(&objects, V2.cluster());
    for number in 0..count {
        seen::<objects::Machine>(&objects, hostile_machine(number));
        seen::<MachinePool>(&objects, V2.pool(&long("p", number), &[]));
    }
    listed(&objects);
    let inventory = inventory_of(&objects);
    (objects, inventory)
}

/// Asserts that `run` never visits more than a few entries while it holds a lock, and that this number does not grow
/// with the number of objects in the state that `build` creates.
fn assert_few<T>(what: &str, build: impl Fn(usize) -> T, run: impl Fn(&T, usize)) {
    let [some, all] = [MANY / 4, MANY].map(|count| {
        let built = build(count);
        most_visited(|| run(&built, count))
    });
    assert!(all.contains_key(&Lock::Clusters), "{all:?}");
    for (lock, visited) in all {
        let before = some.get(&lock).copied().unwrap_or_default();
        assert!(
            visited < FEW && visited <= before + GROWTH,
            "{what}: {visited} entries under {lock}, and {before} with a quarter of the objects"
        );
    }
}

#[test]
fn the_structs_of_a_machine_its_config_and_its_record_are_small() {
    use std::mem::size_of;

    use node_attestation_core::ledger::Stored;

    // The cache stores one object of each type for each node, so an increase in the size of a type must be deliberate.
    assert_eq!(size_of::<objects::Machine>(), 320);
    assert_eq!(size_of::<BootstrapConfig>(), 32);
    assert_eq!(size_of::<Stored>(), 528);
}

#[test]
fn an_unknown_token_visits_few_objects_among_many() {
    assert_few("token", crowd, |(_, inventory), _| {
        for _ in 0..2 {
            assert_eq!(by_token(inventory, "zzzzzz"), None);
        }
    });
}

/// Like [`cluster`], but with this number of Machines that `change` modifies.
fn many(count: usize, change: impl Fn(Value) -> Value) -> (Objects, CapiInventory) {
    let (objects, inventory) = cluster(V2);
    for number in 0..count {
        let name = format!("x{number}");
        seen::<objects::Machine>(&objects, change(V2.machine(&name)));
        configured(&objects, V2.config(&name, &format!("{number:0>6}")));
    }
    (objects, inventory)
}

fn named(inventory: &CapiInventory, machine: &str, asked: &str) -> Result<Naming, Unavailable> {
    let machine = block_on(inventory.by_machine_name(machine))
        .unwrap()
        .unwrap();
    block_on(inventory.naming(&machine, &NodeName::parse(asked).unwrap()))
}

#[test]
fn a_name_query_visits_few_objects_with_a_large_pool() {
    let build = |count: usize| {
        let (objects, inventory) = cluster(V2);
        let ids: Vec<String> = (0..count)
            .map(|number| format!("generic:///pool/{number}"))
            .collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        seen::<MachinePool>(&objects, V2.pool("p1", &ids));
        configured(&objects, V2.config("p1", "poolp1"));
        (objects, inventory)
    };

    assert_few("name", build, |(_, inventory), _| {
        assert_eq!(named(inventory, "m1", "m1").unwrap(), Naming::Own);
        let shared = named(inventory, "m1", "m2").unwrap();
        assert!(matches!(shared, Naming::Another(_)), "{shared:?}");
        assert_eq!(block_on(inventory.by_name("7")).unwrap().len(), 1);
        assert!(by_id(inventory, "generic:///pool/7").is_some());
    });
}

#[test]
fn a_provider_id_shared_by_many_machines_is_refused_in_few_visits() {
    let id = "generic:///rack/one";
    let build = |count| {
        many(count, |machine| {
            with(machine, "/spec/providerID", json!(id))
        })
    };

    assert_few("provider ID", build, |(_, inventory), _| {
        let error = not_now(inventory, id);
        assert_eq!(error, "Machine x0 and Machine x1 have the same provider ID");
    });
}

#[test]
fn a_token_shared_by_many_machines_has_no_owner_and_visits_few_objects() {
    let annotations = json!({"attestation.cluster.x-k8s.io/bootstrap-token-id": "shared"});
    let build = |count| {
        let annotated = |machine| with(machine, "/metadata/annotations", annotations.clone());
        let (objects, inventory) = many(count, annotated);
        for number in 0..count {
            configured(&objects, V2.config(&format!("x{number}"), "tokens"));
        }
        (objects, inventory)
    };

    assert_few("token", build, |(_, inventory), _| {
        for token in ["shared", "tokens"] {
            assert_eq!(by_token(inventory, token), None);
        }
    });
}

#[test]
fn a_name_reported_by_many_hosts_is_resolved_in_few_visits() {
    let addresses = json!([
        {"type": "Hostname", "address": "m1"}, {"type": "InternalIP", "address": "10.0.0.7"},
    ]);
    let reporting = |machine| with(machine, "/status/addresses", addresses.clone());
    let build = |count| many(count, reporting);

    assert_few("reported name", build, |(_, inventory), _| {
        assert_eq!(named(inventory, "m1", "m1").unwrap(), Naming::Own);
        let shared = Naming::Shared {
            other: "m1".to_owned(),
        };
        assert_eq!(named(inventory, "x7", "m1").unwrap(), shared);
        let have_it = block_on(inventory.by_name("m1")).unwrap();
        assert!(have_it.len() > 1 && have_it.iter().any(|machine| machine.name == "m1"));
        let address = "10.0.0.7".parse().unwrap();
        assert!(block_on(inventory.by_address(address)).unwrap().len() > 1);
    });
}

#[test]
fn the_lookup_by_a_shared_infra_machine_visits_few_machines() {
    let infrastructure = V2.reference("infrastructure.cluster.x-k8s.io", "GenericMachine", "one");
    let referring = |machine| with(machine, "/spec/infrastructureRef", infrastructure.clone());
    let build = |count| many(count, referring);

    assert_few("name", build, |(_, inventory), _| {
        let shared = named(inventory, "x7", "one").unwrap();
        assert!(matches!(shared, Naming::Shared { .. }), "{shared:?}");
        let error = block_on(inventory.by_name("one")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "more than 64 machines can have the node name one"
        );
    });
}

#[test]
fn a_name_on_several_grounds_belongs_to_64_machines_at_most() {
    let (objects, inventory) = cluster(V2);
    let see = |name: String, pointer: &str, value: Value| {
        let reported = json!([{"type": "Hostname", "address": "one"}]);
        let machine = with(V2.machine(&name), "/status/addresses", reported);
        seen::<objects::Machine>(&objects, with(machine, pointer, value));
        configured(&objects, V2.config(&name, &format!("{name:0>6}")));
    };
    let found = |number: usize| {
        let node = json!({"name": "one"});
        see(format!("n{number}"), "/status/nodeRef", node);
    };
    let infrastructure = V2.reference("infrastructure.cluster.x-k8s.io", "GenericMachine", "one");
    for number in 0..32 {
        let name = format!("i{number}");
        see(name, "/spec/infrastructureRef", infrastructure.clone());
        found(number);
        // These Machines only report the name, and do not have it.
        see(
            format!("a{number}"),
            "/status/addresses/0/type",
            json!("Hostname"),
        );
    }

    let all = block_on(inventory.by_name("one")).unwrap();
    assert_eq!(all.len(), 64);
    assert!(all.iter().all(|machine| !machine.name.starts_with('a')));

    found(32);
    let error = block_on(inventory.by_name("one")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "more than 64 machines can have the node name one"
    );
}

#[test]
fn the_lookup_by_a_shared_config_visits_few_machines() {
    let config = "/spec/bootstrap/configRef/name";
    let build = |count: usize| {
        let (objects, inventory) = cluster(V2);
        for number in 0..count {
            let machine = V2.machine(&format!("x{number}"));
            let machine = with(machine, config, json!("m1-config"));
            seen::<objects::Machine>(&objects, machine);
        }
        (objects, inventory)
    };

    assert_few("configuration", build, |(objects, inventory), _| {
        let name = "/spec/joinConfiguration/nodeRegistration/name";
        configured(objects, with(V2.config("m1", "token1"), name, json!("n1")));
        assert_eq!(by_token(inventory, "token1"), None);
        let naming = named(inventory, "m2", "n1").unwrap();
        assert!(matches!(naming, Naming::Another(_)), "{naming:?}");
    });
}

#[test]
fn a_list_of_many_machines_is_read_in_small_pages() {
    let build = |count| many(count, |machine| machine);

    assert_few("lists", build, |(_, inventory), count| {
        let all = count + 2;
        assert_eq!(block_on(inventory.token_machines()).unwrap().len(), all);
        let tokens = block_on(inventory.machine_tokens()).unwrap();
        assert_eq!(tokens.joining.tokens.len(), all);
        let chosen = inventory.chosen_machines(|machine| Some(machine.name.to_owned()));
        assert_eq!(block_on(chosen).unwrap().len(), all);
        assert!(
            block_on(inventory.nodes_without(|_| true))
                .unwrap()
                .is_empty()
        );
        assert!(
            block_on(inventory.control_plane_nodes())
                .unwrap()
                .is_empty()
        );
    });
}
