//! Tests of attackers who have root on one worker.

use std::path::Path;

use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::fleet::assert_later_generation;
use kubelet_authenticator_tests::management::Machine;
use serde_json::{Value, json};

use crate::SCENE;

#[test]
fn root_on_a_worker_cannot_get_another_nodes_name() {
    let own = SCENE.cluster.machine("root-own").create();
    let other = SCENE.cluster.machine("root-other").create();
    let credential = SCENE.join(&own);

    let name = SCENE.file(&credential, &SCENE.rightful(&other));

    SCENE.assert_denied(&name, "RequesterIsAnotherNode");
}

#[test]
fn root_on_a_worker_cannot_claim_another_machine() {
    let own = SCENE.cluster.machine("claims-as-own").create();
    let other = SCENE.cluster.machine("claims-as-other").create();
    let credential = SCENE.join(&own);

    let name = SCENE.file(
        &credential,
        &SCENE.stamped(own.node_name(), other.provider_id()),
    );

    SCENE.assert_denied(&name, "NodeNameMismatch");
}

/// Asserts that the API server rejects a certificate signing request with a revoked certificate, as it rejects any
/// other write.
#[track_caller]
fn assert_renewal_is_refused(machine: &Machine, kubeconfig: &Path) {
    let kubectl = SCENE.cluster.control_plane().kubectl_with(kubeconfig);
    let request = SCENE.rightful(machine).to_json();
    let output = kubectl.run_with_input(["create", "-f", "-"], &request.to_string());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("is revoked"),
        "{output:?}"
    );
}

#[test]
fn a_certificate_is_refused_after_its_machine_is_deleted() {
    let machine = SCENE.cluster.machine("is-gone").create();
    let credential = SCENE.join(&machine);
    let plane = SCENE.cluster.control_plane();
    let kubectl = plane.kubectl_with(&credential);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "is-gone"}});
    kubectl.create_object(&node);

    machine.remove();

    let record = SCENE.wait_for_record("is-gone", |record| record["spec"]["tombstone"].is_object());
    let object = record["metadata"]["name"].as_str().unwrap();
    let event = SCENE.wait_for_event(object, "RecordRetired");
    assert_eq!(event["involvedObject"]["kind"], "NodeIdentity");
    assert_eq!(event["involvedObject"]["uid"], record["metadata"]["uid"]);
    assert_eq!(record["spec"]["tombstone"]["reason"], "MachineGone");
    let said = SCENE.refused_write(&credential, "is-gone");
    assert!(said.contains("system:node:is-gone"), "{said}");
    assert_renewal_is_refused(&machine, &credential);
}

/// The annotation that resets this generation of the record.
fn reset_of(record: &Value) -> String {
    let generation = &record["spec"]["generation"];
    format!("attestation.cluster.x-k8s.io/reset={generation}")
}

#[test]
fn a_certificate_from_before_a_reset_cannot_write_or_renew() {
    let machine = SCENE.cluster.machine("was-reset").create();
    let former = SCENE.join(&machine);
    let plane = SCENE.cluster.control_plane();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "was-reset"}});
    plane.kubectl_with(&former).create_object(&node);
    let reset = reset_of(&SCENE.record("was-reset"));
    let record = format!("{}.was-reset", SCENE.cluster.name());
    let namespace = SCENE.cluster.namespace();
    let annotate = [
        "annotate",
        "nodeidentities",
        &record,
        "--namespace",
        namespace,
        &reset,
    ];
    SCENE.management().ok(annotate);

    let present = SCENE.join(&machine);

    assert_later_generation(&SCENE.record("was-reset"));
    let said = SCENE.refused_write(&former, "was-reset");
    assert!(said.contains("revoked"), "{said}");
    assert_renewal_is_refused(&machine, &former);
    let label = ["label", "node", "was-reset", "a.example/written-by=present"];
    plane.kubectl_with(&present).ok(label);

    // docs/security.md lists the operations that still work, because reads are authorized by name.
    plane.kubectl_with(&former).ok(["get", "node", "was-reset"]);
}

#[test]
fn a_repeated_reset_has_no_effect() {
    let machine = SCENE.cluster.machine("reset-twice").create();
    SCENE.join(&machine);
    let joined = SCENE.record("reset-twice");
    let (first, reset) = (&joined["spec"]["generation"], reset_of(&joined));
    let record = format!("{}.reset-twice", SCENE.cluster.name());
    let namespace = SCENE.cluster.namespace();
    let kubectl = SCENE.management();
    let annotate = [
        "annotate",
        "nodeidentities",
        &record,
        "--namespace",
        namespace,
        &reset,
    ];
    kubectl.ok(annotate);
    SCENE.join(&machine);
    let event = SCENE.wait_for_event("reset-twice", "IdentityReset");
    let note = event["message"].as_str().unwrap();
    assert!(
        note.contains(&format!("reset by an operator (generation {first})")),
        "{note}"
    );
    let consumed = SCENE.record("reset-twice");
    let second = &consumed["spec"]["generation"];
    assert!(note.contains(&format!("generation {second}")), "{note}");
    let annotations = &consumed["metadata"]["annotations"];
    assert!(
        annotations["attestation.cluster.x-k8s.io/reset"].is_null(),
        "{annotations}"
    );

    kubectl.ok(annotate);
    let lives = SCENE.cluster.control_plane();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "reset-twice"}});
    lives.kubectl().create_object(&node);
    make_ready("reset-twice");
    let name = SCENE.file(&machine.bootstrap_kubeconfig(), &SCENE.rightful(&machine));

    let event = SCENE.assert_waits("reset-twice", &name, "IdentityLive");
    assert_eq!(SCENE.record("reset-twice")["spec"]["generation"], *second);
    assert_unanswered(Later::event(&event), || SCENE.request(&name));
}

/// Makes the Node look as if its kubelet had just reported.
fn make_ready(node_name: &str) {
    let now = jiff::Timestamp::now();
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    let status = json!({"status": {"conditions": [condition]}}).to_string();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": node_name, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": node_name, "leaseDurationSeconds": 40,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string(),
        },
    });
    let kubectl = SCENE.kubectl();
    kubectl.apply_object(&lease);
    let patch = [
        "patch",
        "node",
        node_name,
        "--subresource=status",
        "--patch",
        &status,
    ];
    kubectl.ok(patch);
}
