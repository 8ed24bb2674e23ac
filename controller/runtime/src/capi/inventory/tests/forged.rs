//! Tests of a tenant that forges statuses, so that they refer to machines in another namespace.

use super::*;

/// Each status field of Cluster API's objects that the controller or another program reads, with a value that refers to
/// a machine of `tenant-a`.
fn fields() -> Value {
    let condition = json!({
        "type": objects::NODE_ATTESTED, "status": "True", "reason": "Attested", "message": "forged",
        "lastTransitionTime": "2027-01-01T00:00:00Z",
    });
    json!({
        "bootstrapReady": true,
        "infrastructureReady": true,
        "controlPlaneReady": true,
        "initialization": {
            "bootstrapDataSecretCreated": true, "infrastructureProvisioned": true,
            "controlPlaneInitialized": true,
        },
        "addresses": [
            {"type": "InternalIP", "address": "10.0.0.7"},
            {"type": "InternalDNS", "address": "m1.example.com"},
            {"type": "Hostname", "address": "m1.example.com"},
        ],
        "nodeRef": {"name": "m1-infra"},
        "nodeRefs": [{"name": "m1-infra"}],
        "conditions": [condition],
        "v1beta2": {"conditions": [condition]},
        "phase": "Deleting",
        "infrastructureMachineKind": "GenericMachine",
        "kubeletClientCertificateSigner": "example.com/forged",
        "kubeletServingCertificateSigner": "example.com/forged",
    })
}

/// A status for each field, and a status with all fields.
fn statuses() -> Vec<Value> {
    let all = fields();
    let each = all.as_object().unwrap().iter();
    let each = each.map(|(field, value)| json!({ field: value }));
    each.chain([all.clone()]).collect()
}

/// The inventory's answers about the machines of a Cluster.
fn answers(inventory: &CapiInventory) -> Vec<String> {
    let ids = ["generic:///rack/m1", "generic:///rack/m2", "metal:///p1"];
    let ids = ids.map(|text| block_on(inventory.by_provider_id(&id(text))).unwrap());
    let tokens = ["token1", "token2", "poolp1"].map(|text| by_token(inventory, text));
    let names = ["m1", "m1-infra", "m2", "p1"];
    let names = names.map(|name| block_on(inventory.by_name(name)).unwrap());
    let address = block_on(inventory.by_address([10, 0, 0, 7].into()));
    let nodes = block_on(inventory.nodes_without(|_| true));
    let control_plane = block_on(inventory.control_plane_nodes());
    let token_machines = block_on(inventory.token_machines());
    vec![
        format!("{ids:?}"),
        format!("{tokens:?}"),
        format!("{names:?}"),
        format!("{address:?}"),
        format!("{nodes:?} {control_plane:?} {token_machines:?}"),
    ]
}

/// The object with this status, moved to the namespace of another tenant.
fn forged(object: Value, status: &Value) -> Value {
    let object = with(object, "/metadata/namespace", json!("tenant-b"));
    with(object, "/status", status.clone())
}

#[test]
fn a_forged_status_does_not_change_answers_in_another_namespace() {
    let (objects, inventory) = cluster(V2);
    let pool = || V2.pool("p1", &["metal:///p1"]);
    seen::<MachinePool>(&objects, pool());
    configured(&objects, V2.config("p1", "poolp1"));
    let victim = ObjectKey::new(NAMESPACE, "prod-1");
    let (of_cluster, before) = (objects.cluster(&victim), answers(&inventory));
    assert!(before[0].contains("\"m1\""), "{before:?}");
    // The controller reads fields with these names.
    let machine = |status: &Value| kept::<objects::Machine>(forged(V2.machine("m1"), status));
    assert_ne!(machine(&fields()), machine(&json!({})));

    for status in statuses() {
        seen::<Cluster>(&objects, forged(V2.cluster(), &status));
        for machine in ["m1", "m2", "m3"] {
            seen::<objects::Machine>(&objects, forged(V2.machine(machine), &status));
        }
        seen::<MachinePool>(&objects, forged(pool(), &status));

        assert_eq!(answers(&inventory), before, "{status}");
        assert_eq!(objects.cluster(&victim), of_cluster, "{status}");
    }
}

#[test]
fn no_status_field_of_a_cluster_is_read() {
    let cluster = |status: &Value| kept::<Cluster>(forged(V2.cluster(), status));

    for status in statuses() {
        assert_eq!(cluster(&status), cluster(&json!({})), "{status}");
    }
}
