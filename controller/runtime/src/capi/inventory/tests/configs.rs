//! Tests of `KubeadmConfig`s. The inventory reads them separately, when an answer depends on them.

use std::sync::Mutex;

use futures::future::FutureExt as _;

use super::*;

/// An API server with the `KubeadmConfig` of each Machine, and the names of the objects that were read from it.
pub(super) fn counted() -> (Objects, CapiInventory, Arc<Mutex<Vec<String>>>) {
    let read = Arc::new(Mutex::new(Vec::new()));
    let reads = read.clone();
    let objects = answered_by(move |path| match path.rsplit_once("/kubeadmconfigs/") {
        Some((_, name)) => {
            reads.lock().unwrap().push(name.to_owned());
            let machine = name.strip_suffix("-config").unwrap();
            V2.config(machine, &format!("{machine:0>6}"))
        }
        None => bootstrap_api(path),
    });
    seen::<Cluster>(&objects, V2.cluster());
    listed(&objects);
    let inventory = inventory_of(&objects);
    (objects, inventory, read)
}

/// The `KubeadmConfig`s that were read since the previous call, in order.
pub(super) fn taken(read: &Mutex<Vec<String>>) -> Vec<String> {
    let mut names = take(&mut *read.lock().unwrap());
    names.sort();
    names
}

/// The Machine, after Cluster API has found its Node.
pub(super) fn joined(name: &str) -> Value {
    with(V2.machine(name), "/status/nodeRef", json!({"name": name}))
}

#[test]
fn a_bootstrap_config_is_read_once_and_only_when_needed() {
    let (objects, inventory, read) = counted();
    for name in ["m1", "m2"] {
        seen::<objects::Machine>(&objects, V2.machine(name));
    }
    assert!(taken(&read).is_empty());

    for _ in 0..2 {
        let machine = by_id(&inventory, "generic:///rack/m1").unwrap();
        assert_eq!(machine.token_id, Some(token("0000m1")));
    }

    assert_eq!(taken(&read), ["m1-config"]);
}

#[test]
fn the_configuration_of_a_machine_without_bootstrap_data_is_not_read() {
    let (objects, inventory, read) = counted();
    let pending = with(V2.machine("m1"), "/status", json!({}));
    let pending = with(pending, "/spec/bootstrap/dataSecretName", Value::Null);
    seen::<objects::Machine>(&objects, pending);

    let machine = by_id(&inventory, "generic:///rack/m1").unwrap();

    assert_eq!((machine.token_id, machine.node_name), (None, None));
    assert!(taken(&read).is_empty());
}

#[test]
fn a_token_owner_is_searched_first_among_the_joining_machines() {
    let (objects, inventory, read) = counted();
    seen::<objects::Machine>(&objects, joined("m1"));
    seen::<objects::Machine>(&objects, V2.machine("m2"));

    let owner = by_token(&inventory, "0000m2");
    assert!(matches!(owner, Some(TokenOwner::Machine(machine)) if machine.name == "m2"));
    assert_eq!(taken(&read), ["m2-config"]);

    let owner = by_token(&inventory, "0000m1");
    assert!(matches!(owner, Some(TokenOwner::Machine(machine)) if machine.name == "m1"));
    assert_eq!(taken(&read), ["m1-config"]);
}

#[test]
fn an_unknown_token_causes_one_read_of_each_config() {
    let (objects, inventory, read) = counted();
    seen::<objects::Machine>(&objects, joined("m1"));
    seen::<MachinePool>(&objects, V2.pool("p1", &[]));

    for _ in 0..3 {
        assert_eq!(by_token(&inventory, "zzzzzz"), None);
    }

    assert_eq!(taken(&read), ["m1-config", "p1-config"]);
}

#[test]
fn an_unserved_config_version_affects_only_the_machines_that_name_it() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let objects = answered_by(move |path| {
        counted.fetch_add(1, Ordering::Relaxed);
        match path.rsplit_once("/kubeadmconfigs/") {
            Some(_) => V2.config("m2", "0000m2"),
            None => bootstrap_api(path),
        }
    });
    seen::<Cluster>(&objects, V2.cluster());
    // Any user who can write the Machine can specify any version.
    let group = "bootstrap.cluster.x-k8s.io";
    let config = Contract::V1Beta1.reference(group, "KubeadmConfig", "m1-config");
    let machine = with(V2.machine("m1"), "/spec/bootstrap/configRef", config);
    seen::<objects::Machine>(&objects, machine);
    seen::<objects::Machine>(&objects, V2.machine("m2"));
    listed(&objects);
    let inventory = inventory_of(&objects);
    let found = |name: &str| {
        let machine = by_id(&inventory, &format!("generic:///rack/{name}")).unwrap();
        (machine.state, machine.token_id)
    };

    for _ in 0..2 {
        assert_eq!(found("m1"), (MachineState::Unread, None));
        let own = Some(token("0000m2"));
        assert_eq!(found("m2"), (MachineState::Ready, own));
    }
    // The calls are one lookup of the unserved version, two calls for the served version, and one read of the config of
    // `m2`.
    assert_eq!(by_token(&inventory, "zzzzzz"), None);
    assert_eq!(calls.load(Ordering::Relaxed), 4);

    configured(&objects, V2.config("m1", "0000m1"));
    let own = Some(token("0000m1"));
    assert_eq!(found("m1"), (MachineState::Ready, own));
}

#[test]
fn a_name_is_compared_with_the_configs_of_joining_machines() {
    let (objects, inventory, read) = counted();
    for name in ["m1", "m2"] {
        seen::<objects::Machine>(&objects, V2.machine(name));
    }
    seen::<objects::Machine>(&objects, joined("m3"));
    let machine = by_id(&inventory, "generic:///rack/m1").unwrap();

    let name = NodeName::parse("m1-infra").unwrap();
    let naming = block_on(inventory.naming(&machine, &name)).unwrap();

    assert_eq!(naming, Naming::Own);
    assert_eq!(taken(&read), ["m1-config", "m2-config"]);
}

#[test]
fn a_name_in_a_machines_config_is_not_compared_with_other_configs() {
    let (objects, inventory, read) = counted();
    for name in ["m1", "m2"] {
        seen::<objects::Machine>(&objects, V2.machine(name));
    }
    let name = "/spec/joinConfiguration/nodeRegistration/name";
    configured(&objects, with(V2.config("m1", "0000m1"), name, json!("n1")));
    let machine = by_id(&inventory, "generic:///rack/m1").unwrap();

    let naming = block_on(inventory.naming(&machine, &NodeName::parse("n1").unwrap())).unwrap();

    assert_eq!(naming, Naming::Own);
    assert!(taken(&read).is_empty());
}

#[test]
fn a_config_is_dropped_with_its_machine_but_not_on_a_machine_update() {
    let (objects, inventory, read) = counted();
    let machine = || V2.machine("m1");
    seen::<objects::Machine>(&objects, joined("m2"));
    seen::<objects::Machine>(&objects, machine());
    by_id(&inventory, "generic:///rack/m1").unwrap();
    seen::<objects::Machine>(&objects, joined("m1"));
    by_id(&inventory, "generic:///rack/m1").unwrap();
    assert_eq!(taken(&read), ["m1-config"]);

    let nobodys = with(machine(), "/spec/clusterName", Value::Null);
    let nobodys = with(nobodys, "/metadata/labels", json!({}));
    seen::<objects::Machine>(&objects, nobodys);
    let cluster = ObjectKey::new(NAMESPACE, "prod-1");
    let forgotten = objects.look(&cluster, |_, members| {
        let holders = members.with_token(&token("0000m1"));
        assert!(holders.machines.is_empty() && holders.pools.is_empty());
        assert!(members.config("m1-config").is_none());
    });
    assert!(forgotten.is_some());
}

#[test]
fn concurrent_queries_read_a_config_once() {
    let (objects, inventory, read) = counted();
    seen::<objects::Machine>(&objects, V2.machine("m1"));
    let id = id("generic:///rack/m1");

    let asked = (0..8).map(|_| inventory.by_provider_id(&id));
    for found in block_on(futures::future::join_all(asked)) {
        assert!(found.unwrap().is_some());
    }

    assert_eq!(taken(&read), ["m1-config"]);
}

#[test]
fn a_waiting_lookup_keeps_no_copy_of_its_result() {
    let objects = unanswered();
    seen::<Cluster>(&objects, V2.cluster());
    seen::<objects::Machine>(&objects, V2.machine("m1"));
    listed(&objects);
    let inventory = inventory_of(&objects);
    let copied = Arc::new(());
    let look = |view: View<'_>| -> Result<Arc<()>, Unavailable> {
        view.need(Need::All);
        Ok(copied.clone())
    };

    block_on(async {
        // The first call reads the config, and the other calls wait for its result.
        let calls = (0..3).map(|_| Box::pin(inventory.find_readable(look)));
        let mut calls: Vec<_> = calls.collect();
        for call in &mut calls {
            assert!(call.now_or_never().is_none());
        }

        assert_eq!(Arc::strong_count(&copied), 1);
    });
}

/// The Machine after an operator has assigned this token to it.
fn assigned(machine: Value, token: &str) -> Value {
    let annotations = json!({"attestation.cluster.x-k8s.io/bootstrap-token-id": token});
    with(machine, "/metadata/annotations", annotations)
}

/// The name of the Machine that owns the token.
fn owner_of(inventory: &CapiInventory, text: &str) -> Option<String> {
    match by_token(inventory, text)? {
        TokenOwner::Machine(machine) => Some(machine.name),
        TokenOwner::Pool { name, .. } => panic!("of pool {name}"),
    }
}

#[test]
fn an_assigned_token_owns_one_machine_and_a_shared_one_has_no_owner() {
    let (objects, inventory) = cluster(V2);
    assert_eq!(owner_of(&inventory, "manual"), None);

    seen::<objects::Machine>(&objects, assigned(V2.machine("m1"), "manual"));
    assert_eq!(owner_of(&inventory, "manual").as_deref(), Some("m1"));
    // The Machine's own token remains valid.
    assert_eq!(owner_of(&inventory, "token1").as_deref(), Some("m1"));
    let machine = by_id(&inventory, "generic:///rack/m1").unwrap();
    assert_eq!(machine.token_id, Some(token("token1")));
    assert_eq!(machine.assigned_token, Some(token("manual")));

    seen::<objects::Machine>(&objects, assigned(V2.machine("m2"), "manual"));
    assert_eq!(owner_of(&inventory, "manual"), None);
    for other in ["no token", "token2"] {
        seen::<objects::Machine>(&objects, assigned(V2.machine("m2"), other));
        assert_eq!(
            owner_of(&inventory, "manual").as_deref(),
            Some("m1"),
            "{other}"
        );
        assert_eq!(
            owner_of(&inventory, "token2").as_deref(),
            Some("m2"),
            "{other}"
        );
    }
}

#[test]
fn a_control_plane_machine_owns_its_token() {
    let (objects, inventory) = cluster(V2);
    let labels = json!({
        "cluster.x-k8s.io/cluster-name": "prod-1", "cluster.x-k8s.io/control-plane": "",
    });
    let machine = with(V2.machine("cp1"), "/metadata/labels", labels);
    seen::<objects::Machine>(&objects, machine);
    let config = with(
        V2.config("cp1", "contro"),
        "/spec/joinConfiguration/controlPlane",
        json!({}),
    );
    configured(&objects, config);

    assert_eq!(owner_of(&inventory, "contro").as_deref(), Some("cp1"));
    assert!(
        by_id(&inventory, "generic:///rack/cp1")
            .unwrap()
            .control_plane
    );
}

#[test]
fn only_machines_with_an_unshared_token_are_listed_and_no_pool_members() {
    let (objects, inventory) = cluster(V2);
    let named = || {
        let mut machines = block_on(inventory.token_machines()).unwrap();
        machines.sort_by(|a, b| a.name.cmp(&b.name));
        let machines = machines.into_iter();
        machines
            .map(|one| (one.name, one.token, one.has_node))
            .collect::<Vec<_>>()
    };
    let m1 = ("m1".to_owned(), token("token1"), false);
    assert_eq!(
        named(),
        [m1.clone(), ("m2".to_owned(), token("token2"), false)]
    );

    seen::<objects::Machine>(&objects, assigned(V2.machine("m2"), "manual"));
    assert_eq!(named(), std::slice::from_ref(&m1));
    let labels = json!({
        "cluster.x-k8s.io/cluster-name": "prod-1", "cluster.x-k8s.io/pool-name": "pool-1",
    });
    seen::<objects::Machine>(&objects, with(V2.machine("m2"), "/metadata/labels", labels));
    assert_eq!(named(), [m1]);
    seen::<objects::Machine>(&objects, joined("m1"));
    assert_eq!(named(), [("m1".to_owned(), token("token1"), true)]);
}
