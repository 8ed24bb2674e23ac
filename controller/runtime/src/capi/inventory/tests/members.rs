//! Tests of pools, and of machines that only the infrastructure reports.

use super::*;

const MEMBERS: [&str; 2] = ["generic:///pool/a", "generic:///pool/b"];

/// Like [`cluster`], but also with the pool `p1` and the token `poolp1`.
fn with_pool(contract: Contract) -> (Objects, CapiInventory) {
    let (objects, inventory) = cluster(contract);
    seen::<MachinePool>(&objects, contract.pool("p1", &MEMBERS));
    configured(&objects, contract.config("p1", "poolp1"));
    (objects, inventory)
}

/// A Machine for a member of `pool`. The infrastructure creates such Machines.
fn pool_machine(contract: Contract, name: &str, pool: &str, id: &str) -> Value {
    let machine = with(contract.machine(name), "/spec/providerID", json!(id));
    let bootstrap = json!({"dataSecretName": ""});
    let machine = with(machine, "/spec/bootstrap", bootstrap);
    let machine = with(machine, "/status", json!({}));
    with(
        machine,
        "/metadata/labels",
        json!({"cluster.x-k8s.io/pool-name": pool}),
    )
}

#[test]
fn a_pool_member_is_found_in_the_list_of_its_pool() {
    for contract in BOTH {
        let (_, inventory) = with_pool(contract);

        let member = by_id(&inventory, MEMBERS[1]).unwrap();

        assert_eq!(member.name, MEMBERS[1]);
        assert_eq!(member.state, MachineState::Ready);
        assert_eq!(node_name(&member), Some("b"));
        assert_eq!(member.pool.as_deref(), Some("p1"));
        assert_eq!(member.token_id, None);
        let object = member.object.unwrap();
        assert_eq!(object.kind.as_deref(), Some("MachinePool"));
        let pool = TokenOwner::Pool {
            name: "p1".to_owned(),
            object: Some(Box::new(object)),
        };
        assert_eq!(by_token(&inventory, "poolp1"), Some(pool));
        assert_eq!(by_id(&inventory, "generic:///pool/c"), None);
        let named = block_on(inventory.by_name("a")).unwrap();
        assert_eq!(named.len(), 1);
        assert_eq!(named[0].name, MEMBERS[0]);
    }
}

#[test]
fn a_pool_member_is_identified_by_its_machine_if_it_has_one() {
    for contract in BOTH {
        let (objects, inventory) = with_pool(contract);
        let machine = pool_machine(contract, "p1-a", "p1", MEMBERS[0]);
        seen::<objects::Machine>(&objects, machine);

        let member = by_id(&inventory, MEMBERS[0]).unwrap();

        assert_eq!(member.name, "p1-a");
        assert_eq!(member.state, MachineState::Ready);
        assert_eq!(node_name(&member), Some("p1-a-infra"));
        assert_eq!(member.pool.as_deref(), Some("p1"));
        // The other member's Machine does not exist yet. Until it exists, the member's record must not be retired.
        let other = by_id(&inventory, MEMBERS[1]).unwrap();
        assert_eq!(other.state, MachineState::Pending);
        assert!(block_on(inventory.by_name("b")).unwrap().is_empty());
    }
}

#[test]
fn a_pool_with_a_long_name_is_found_by_its_digest() {
    assert_eq!(label_value("a"), "a");
    assert_eq!(label_value(&"a".repeat(63)), "a".repeat(63));
    // The 32-bit FNV-1a hash of 64 times `a`, in URL-safe base64.
    let long = "a".repeat(64);
    let digest = label_value(&long);
    assert!(digest.starts_with("hash_") && digest.ends_with("_z"));
    assert_eq!(digest.len(), "hash__z".len() + 6);
    let (objects, inventory) = cluster(V2);
    seen::<MachinePool>(&objects, V2.pool(&long, &MEMBERS));
    let machine = pool_machine(V2, "m9", &digest, MEMBERS[0]);
    seen::<objects::Machine>(&objects, machine);

    let member = by_id(&inventory, MEMBERS[0]).unwrap();

    assert_eq!((&*member.name, member.pool), ("m9", Some(long)));
}

#[test]
fn the_state_of_a_pool_applies_to_its_members() {
    let (objects, inventory) = with_pool(V2);
    let pool = V2.pool("p1", &MEMBERS);
    let at = json!("2027-01-01T00:00:00Z");
    for (pool, expected) in [
        (
            with(pool.clone(), "/status", json!({})),
            MachineState::Pending,
        ),
        (
            with(pool, "/metadata/deletionTimestamp", at),
            MachineState::Deleting,
        ),
    ] {
        seen::<MachinePool>(&objects, pool);
        assert_eq!(by_id(&inventory, MEMBERS[0]).unwrap().state, expected);
    }
}

#[test]
fn a_provider_id_in_two_pools_or_a_foreign_machine_is_an_error() {
    let (objects, inventory) = with_pool(V2);
    seen::<MachinePool>(&objects, V2.pool("p2", &MEMBERS[..1]));
    assert_eq!(
        not_now(&inventory, MEMBERS[0]),
        "MachinePool p1 and MachinePool p2 have the same provider ID"
    );
    seen::<MachinePool>(&objects, V2.pool("p2", &[]));
    assert!(by_id(&inventory, MEMBERS[0]).is_some());

    let strange = with(V2.machine("m2"), "/spec/providerID", json!(MEMBERS[0]));
    seen::<objects::Machine>(&objects, strange);
    assert_eq!(
        not_now(&inventory, MEMBERS[0]),
        "Machine m2 and MachinePool p1 have the same provider ID"
    );
}

/// The answers of an API server with its groups and `m1`'s `InfraMachine`.
fn infrastructure(path: &str, provider_id: &str) -> Value {
    let group = "infrastructure.cluster.x-k8s.io";
    let version =
        |version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let resource = json!({
        "name": "genericmachines", "singularName": "", "namespaced": true,
        "kind": "GenericMachine", "verbs": ["get"],
    });
    let list = |resources: Value| {
        let kind = "APIResourceList";
        json!({"kind": kind, "groupVersion": "", "resources": resources})
    };
    match path {
        "/apis" => json!({"kind": "APIGroupList", "groups": [{
            "name": group, "versions": [version("v1"), version("v1beta2")],
            "preferredVersion": version("v1"),
        }]}),
        "/apis/infrastructure.cluster.x-k8s.io/v1" => list(json!([])),
        "/apis/infrastructure.cluster.x-k8s.io/v1beta1"
        | "/apis/infrastructure.cluster.x-k8s.io/v1beta2" => list(json!([resource])),
        "/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/tenant-a/genericmachines/m1-infra"
        | "/apis/infrastructure.cluster.x-k8s.io/v1beta2/namespaces/tenant-a/genericmachines/m1-infra" =>
        {
            json!({
                "metadata": {"name": "m1-infra", "namespace": NAMESPACE, "uid": "u"},
                "spec": {"providerID": provider_id},
            })
        }
        path => panic!("{path} is asked for"),
    }
}

/// A Machine without a provider ID, whose `InfraMachine` has this ID.
fn unprovisioned(contract: Contract, objects: &Objects) -> CapiInventory {
    seen::<Cluster>(objects, contract.cluster());
    let machine = with(contract.machine("m1"), "/spec/providerID", Value::Null);
    seen::<objects::Machine>(objects, machine);
    seen::<objects::Machine>(objects, contract.machine("m2"));
    configured(objects, contract.config("m1", "token1"));
    configured(objects, contract.config("m2", "token2"));
    listed(objects);
    inventory_of(objects)
}

#[test]
fn the_machine_of_a_token_has_the_provider_id_of_its_infra_machine() {
    for contract in BOTH {
        let objects = answered_by(|path| infrastructure(path, "generic:///rack/new"));
        let inventory = unprovisioned(contract, &objects);

        let Some(TokenOwner::Machine(machine)) = by_token(&inventory, "token1") else {
            panic!("no machine")
        };

        assert_eq!(machine.provider_id, Some(id("generic:///rack/new")));
        // Until the Machine has the ID, a lookup does not find the ID. However, the machine does not count as deleted.
        assert_eq!(by_id(&inventory, "generic:///rack/new"), None);
        let named = |name| block_on(inventory.by_machine_name(name)).unwrap();
        let named = ["m1", "m2", "m9"].map(|name| named(name).map(|machine| machine.provider_id));
        assert_eq!(
            named,
            [Some(None), Some(Some(id("generic:///rack/m2"))), None]
        );
    }
}

#[test]
fn a_machine_is_unnamed_only_if_its_infra_machine_has_no_provider_id() {
    let says = |spec: Value| {
        answered_by(move |path| {
            let mut answer = infrastructure(path, "");
            if path.ends_with("/m1-infra") {
                answer["spec"] = spec.clone();
            }
            answer
        })
    };
    for (objects, unnamed) in [
        (says(json!({})), true),
        (says(json!({ "providerID": "" })), true),
        (says(json!({ "providerID": "not an ID" })), false),
        (says(json!({ "providerID": "generic:///rack/m1" })), false),
    ] {
        let inventory = unprovisioned(V2, &objects);

        let Some(TokenOwner::Machine(machine)) = by_token(&inventory, "token1") else {
            panic!("no machine")
        };

        assert_eq!(machine.unnamed, unnamed);
    }
}

#[test]
fn an_infra_machine_of_an_unserved_kind_is_reported_as_an_outage() {
    let objects = answered_by(|path| match path {
        "/apis" => json!({"kind": "APIGroupList", "groups": []}),
        path => panic!("{path} is asked for"),
    });
    let inventory = unprovisioned(V2, &objects);

    let error = block_on(inventory.by_token(&token("token1"))).unwrap_err();

    assert_eq!(
        error.to_string(),
        "cannot read GenericMachine m1-infra: the API server does not serve the kind in the required version"
    );
}

#[test]
fn the_infrastructure_kind_is_looked_up_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let objects = answered_by(move |path| {
        count.fetch_add(1, Ordering::Relaxed);
        infrastructure(path, "")
    });
    let inventory = unprovisioned(V2, &objects);

    let requests = |_| {
        let owner = by_token(&inventory, "token1");
        assert!(matches!(owner, Some(TokenOwner::Machine(m)) if m.provider_id.is_none()));
        asked.swap(0, Ordering::Relaxed)
    };

    assert_eq!([1, 2].map(requests), [4, 1]);
    assert!(by_token(&inventory, "token2").is_some());
    assert_eq!(asked.load(Ordering::Relaxed), 0, "a Machine with its ID");
}

#[test]
fn an_infra_provider_id_of_another_machine_is_an_error() {
    let objects = answered_by(|path| infrastructure(path, "generic:///rack/m2"));
    let inventory = unprovisioned(V2, &objects);

    let error = block_on(inventory.by_token(&token("token1"))).unwrap_err();

    assert_eq!(
        error.to_string(),
        "Machine m1 and Machine m2 have the same provider ID"
    );
}

#[test]
fn unreadable_infrastructure_is_an_error() {
    let objects = answered_by(|_| {
        json!({
            "kind": "Status", "status": "Failure", "message": "later",
            "reason": "ServiceUnavailable", "code": 503,
        })
    });
    let inventory = unprovisioned(V2, &objects);

    let error = block_on(inventory.by_token(&token("token1"))).unwrap_err();

    let error = error.to_string();
    assert!(
        error.starts_with("cannot read GenericMachine m1-infra: "),
        "{error}"
    );
}

#[test]
fn an_undecodable_infra_machine_is_named_until_it_is_readable() {
    let is_readable = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&is_readable);
    let objects = answered_by(move |path| {
        let answer = infrastructure(path, "generic:///rack/m1");
        if answer["spec"].is_null() || now.load(Ordering::Relaxed) {
            return answer;
        }
        with(answer, "/spec", json!(7))
    });
    let inventory = unprovisioned(V2, &objects);
    assert_eq!(inventory.undecoded(), None);

    let error = block_on(inventory.by_token(&token("token1"))).unwrap_err();

    let named = "cannot read GenericMachine m1-infra";
    assert!(error.to_string().starts_with(named), "{error}");
    assert_eq!(inventory.undecoded().as_deref(), Some(named));
    is_readable.store(true, Ordering::Relaxed);
    assert!(by_token(&inventory, "token1").is_some());
    assert_eq!(inventory.undecoded(), None);
}
