//! The tokens of all Machines and pools.

use super::configs::{counted, joined, taken};
use super::*;

/// The inventory of the Machines `m1`, `m2` and `m3`, and of the pools `p1` and `p2`. The `KubeadmConfig` of the owner
/// `unreadable` cannot be decoded. Machine `m1` has joined, and `m3` is being deleted.
fn without(unreadable: &'static str) -> CapiInventory {
    let objects = answered_by(move |path| match path.rsplit_once("/kubeadmconfigs/") {
        Some((_, name)) => {
            let owner = name.strip_suffix("-config").unwrap();
            let config = V2.config(owner, &format!("{owner:0>6}"));
            if owner == unreadable {
                with(config, "/spec", json!(7))
            } else {
                config
            }
        }
        None => bootstrap_api(path),
    });
    seen::<Cluster>(&objects, V2.cluster());
    let deletion = json!("2026-01-01T00:00:00Z");
    let deleted = with(V2.machine("m3"), "/metadata/deletionTimestamp", deletion);
    for machine in [joined("m1"), V2.machine("m2"), deleted] {
        seen::<objects::Machine>(&objects, machine);
    }
    for pool in ["p1", "p2"] {
        seen::<MachinePool>(&objects, V2.pool(pool, &[]));
    }
    listed(&objects);
    inventory_of(&objects)
}

#[test]
fn an_unreadable_config_hides_only_the_token_of_its_owner() {
    for unreadable in ["none", "m1", "m2", "m3", "p1", "p2"] {
        let inventory = without(unreadable);
        let machines = block_on(inventory.machine_tokens()).unwrap();
        let pools = block_on(inventory.pool_tokens()).unwrap();

        let readable = |owners: &[&str]| -> BTreeSet<TokenId> {
            let owners = owners.iter().filter(|owner| **owner != unreadable);
            owners.map(|owner| token(&format!("{owner:0>6}"))).collect()
        };
        let [all_joined, all_joining] = ["m1", "m2"].map(|owner| unreadable != owner);
        assert_eq!(machines.joined.tokens, readable(&["m1"]), "{unreadable}");
        assert_eq!(machines.joined.are_all, all_joined, "{unreadable}");
        assert_eq!(machines.joining.tokens, readable(&["m2"]), "{unreadable}");
        assert_eq!(machines.joining.are_all, all_joining, "{unreadable}");
        assert_eq!(machines.deleting, readable(&["m3"]), "{unreadable}");
        assert_eq!(pools.tokens, readable(&["p1", "p2"]), "{unreadable}");
        assert_eq!(pools.are_all, !unreadable.starts_with('p'), "{unreadable}");
    }
}

#[test]
fn an_unreadable_config_delays_only_the_requests_of_its_owner() {
    let owners = ["m1", "m2", "m3", "p1", "p2"];
    for unreadable in owners {
        let error = format!("cannot read KubeadmConfig {unreadable}-config: ");
        // An inventory keeps the configurations that it has read for an earlier token.
        let owner = |text: &str| block_on(without(unreadable).by_token(&token(text)));
        for name in owners {
            let found = owner(&format!("{name:0>6}"));
            if name == unreadable {
                let found = found.unwrap_err().to_string();
                assert!(found.starts_with(&error), "{found}");
            } else {
                let found = match found.unwrap().unwrap() {
                    TokenOwner::Machine(machine) => machine.name,
                    TokenOwner::Pool { name, .. } => name,
                };
                assert_eq!(found, name, "{unreadable}");
            }
        }
        // The token can belong to any machine.
        let found = owner("zzzzzz").unwrap_err().to_string();
        assert!(found.starts_with(&error), "{found}");
    }

    let inventory = without("m2");
    let found = |name: &str| {
        let id = id(&format!("generic:///rack/{name}"));
        block_on(inventory.by_provider_id(&id))
    };
    assert_eq!(found("m1").unwrap().unwrap().name, "m1");
    let error = found("m2").unwrap_err().to_string();
    let begin = "cannot read KubeadmConfig m2-config: ";
    assert!(error.starts_with(begin), "{error}");
}

#[test]
fn a_name_waits_while_the_config_of_a_joining_machine_is_unreadable() {
    let naming = |unreadable: &'static str| {
        let inventory = without(unreadable);
        let found = block_on(inventory.by_provider_id(&id("generic:///rack/m1")));
        let asked = NodeName::parse("m1").unwrap();
        block_on(inventory.naming(&found.unwrap().unwrap(), &asked))
    };
    for unreadable in ["none", "p1"] {
        assert!(naming(unreadable).is_ok(), "{unreadable}");
    }

    // This configuration can contain the name, and would have precedence.
    let error = naming("m2").unwrap_err().to_string();

    let begin = "cannot read KubeadmConfig m2-config: ";
    assert!(error.starts_with(begin), "{error}");
}

/// The joining Machines `a000` to `a199`, whose `KubeadmConfig`s cannot be decoded, and Machine `m1` and pool `p1`.
fn with_many_unreadable() -> CapiInventory {
    let objects = answered_by(|path| match path.rsplit_once("/kubeadmconfigs/") {
        Some((_, name)) => {
            let owner = name.strip_suffix("-config").unwrap();
            let config = V2.config(owner, &format!("{owner:0>6}"));
            if ["m1", "p1"].contains(&owner) {
                config
            } else {
                with(config, "/spec", json!(7))
            }
        }
        None => bootstrap_api(path),
    });
    seen::<Cluster>(&objects, V2.cluster());
    for number in 0..200 {
        seen::<objects::Machine>(&objects, V2.machine(&format!("a{number:03}")));
    }
    seen::<objects::Machine>(&objects, V2.machine("m1"));
    seen::<MachinePool>(&objects, V2.pool("p1", &[]));
    listed(&objects);
    inventory_of(&objects)
}

#[test]
fn many_unreadable_configs_do_not_hide_the_token_of_another_machine() {
    let inventory = with_many_unreadable();
    // The inventory reads the pools after the machines.
    let joining = || {
        let machines = block_on(inventory.machine_tokens()).unwrap();
        assert_eq!(block_on(inventory.pool_tokens()).unwrap().tokens.len(), 1);
        machines.joining
    };
    for _ in 0..4 {
        assert_eq!(joining().tokens, BTreeSet::new());
    }

    let last = joining();

    assert_eq!(last.tokens, [token("0000m1")].into());
    assert!(!last.are_all);
}

#[test]
fn many_unreadable_configs_do_not_delay_the_requests_of_another_machine() {
    let inventory = with_many_unreadable();
    let owner = |text: &str| block_on(inventory.by_token(&token(text)));
    let begin = "cannot read KubeadmConfig a";
    // Each call reads only a limited number of configurations.
    let error = owner("0000m1").unwrap_err().to_string();
    assert!(error.starts_with(begin), "{error}");

    let found = owner("0000m1").unwrap().unwrap();

    assert!(matches!(found, TokenOwner::Machine(machine) if machine.name == "m1"));
    // Each of these configurations can contain an unknown token.
    for _ in 0..4 {
        let error = owner("zzzzzz").unwrap_err().to_string();
        assert!(error.starts_with(begin), "{error}");
    }
}

#[test]
fn an_unreadable_config_hides_only_its_own_control_plane_node() {
    let nodes = |unreadable: &'static str| {
        let objects = answered_by(move |path| match path.rsplit_once("/kubeadmconfigs/") {
            Some((_, "m1-config")) if unreadable == "m1" => {
                with(V2.config("m1", "0000m1"), "/spec", json!(7))
            }
            Some((_, config)) => {
                let owner = config.strip_suffix("-config").unwrap();
                let name = "/spec/joinConfiguration/nodeRegistration/name";
                let config = V2.config(owner, &format!("{owner:0>6}"));
                with(config, name, json!(format!("node-{owner}")))
            }
            None => bootstrap_api(path),
        });
        seen::<Cluster>(&objects, V2.cluster());
        for name in ["m1", "m2"] {
            let labels = json!({
                "cluster.x-k8s.io/cluster-name": "prod-1",
                "cluster.x-k8s.io/control-plane": "",
            });
            let machine = with(V2.machine(name), "/metadata/labels", labels);
            seen::<objects::Machine>(&objects, machine);
        }
        listed(&objects);
        let inventory = inventory_of(&objects);
        let nodes = block_on(inventory.control_plane_nodes()).unwrap();
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        (nodes, block_on(inventory.nodes_without(|_| true)))
    };

    let (all, without) = nodes("none");
    assert_eq!(all, ["node-m1", "node-m2"]);
    assert_eq!(without.unwrap().len(), 2);

    let (readable, without) = nodes("m1");
    assert!(readable.contains(&"node-m2".to_owned()), "{readable:?}");
    assert!(!readable.contains(&"node-m1".to_owned()), "{readable:?}");
    // The start of enforcement waits until each Node is known.
    let error = without.unwrap_err().to_string();
    let begin = "cannot read KubeadmConfig m1-config: ";
    assert!(error.starts_with(begin), "{error}");
}

#[test]
fn a_node_with_a_record_does_not_depend_on_an_unreadable_config() {
    let objects = answered_by(|path| match path.rsplit_once("/kubeadmconfigs/") {
        Some(_) => with(V2.config("m1", "0000m1"), "/spec", json!(7)),
        None => bootstrap_api(path),
    });
    seen::<Cluster>(&objects, V2.cluster());
    seen::<objects::Machine>(&objects, with_label(joined("m1")));
    listed(&objects);
    let inventory = inventory_of(&objects);
    let without = |recorded: &str| block_on(inventory.nodes_without(|node| node != recorded));

    assert_eq!(without("m1").unwrap(), BTreeSet::new());

    let error = without("m2").unwrap_err().to_string();
    let begin = "cannot read KubeadmConfig m1-config: ";
    assert!(error.starts_with(begin), "{error}");
}

#[test]
fn tokens_are_known_after_a_few_calls_have_read_all_configs() {
    let (objects, inventory, read) = counted();
    for number in 0..120 {
        seen::<objects::Machine>(&objects, joined(&format!("m{number:03}")));
    }

    let mut reads = Vec::new();
    let tokens = loop {
        let tokens = block_on(inventory.machine_tokens()).unwrap().joined;
        reads.push(taken(&read).len());
        if tokens.are_all {
            break tokens.tokens;
        }
        assert_eq!(tokens.tokens.len(), reads.iter().sum::<usize>());
    };

    assert_eq!(reads, [50, 50, 20]);
    assert_eq!(tokens.len(), 120);
    let again = block_on(inventory.machine_tokens()).unwrap();
    assert_eq!(again.joined.tokens.len(), 120);
    assert!(taken(&read).is_empty());
}

#[test]
fn pool_tokens_exclude_machines_and_pools_in_deletion() {
    let (objects, inventory, _) = counted();
    seen::<objects::Machine>(&objects, joined("m1"));
    seen::<MachinePool>(&objects, V2.pool("p1", &[]));
    let deletion = json!("2026-01-01T00:00:00Z");
    let deleted = with(V2.pool("p2", &[]), "/metadata/deletionTimestamp", deletion);
    seen::<MachinePool>(&objects, deleted);
    let tokens = || block_on(inventory.pool_tokens()).unwrap().tokens;
    assert_eq!(tokens(), [token("0000p1")].into());

    // The bootstrap provider has replaced the token.
    configured(&objects, V2.config("p1", "second"));

    assert_eq!(tokens(), [token("second")].into());
}

#[test]
fn pool_tokens_are_unknown_until_all_configs_are_read() {
    let (objects, inventory, read) = counted();
    for number in 0..120 {
        seen::<MachinePool>(&objects, V2.pool(&format!("p{number:03}"), &[]));
    }

    let mut reads = Vec::new();
    let tokens = loop {
        let tokens = block_on(inventory.pool_tokens()).unwrap();
        reads.push(taken(&read).len());
        if tokens.are_all {
            break tokens.tokens;
        }
    };

    assert_eq!(reads, [50, 50, 20]);
    assert_eq!(tokens.len(), 120);
}

#[test]
fn only_tokens_of_machines_without_a_node_are_joining() {
    let (objects, inventory) = cluster(V2);
    let all = || block_on(inventory.machine_tokens()).unwrap();
    let joining = || all().joining.tokens;
    assert_eq!(joining(), [token("token1"), token("token2")].into());
    assert_eq!(all().joined.tokens, BTreeSet::new());

    seen::<objects::Machine>(&objects, joined("m1"));

    assert_eq!(joining(), [token("token2")].into());
    assert_eq!(all().joined.tokens, [token("token1")].into());

    // m2 shares the token with m1, which has joined.
    configured(&objects, V2.config("m2", "token1"));
    assert_eq!(joining(), [token("token1")].into());

    let deletion = json!("2026-01-01T00:00:00Z");
    let deleted = with(V2.machine("m2"), "/metadata/deletionTimestamp", deletion);
    seen::<objects::Machine>(&objects, deleted);
    assert_eq!(joining(), BTreeSet::new());
    assert_eq!(all().deleting, [token("token1")].into());
}
