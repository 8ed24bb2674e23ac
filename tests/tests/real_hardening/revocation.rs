//! Tests of certificates that are no longer allowed to write.

use std::fs;
use std::process::Output;
use std::time::{Duration, SystemTime};

use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, DEADLINE, Kubectl,
};
use kubelet_authenticator_test_support::process::poll;
use node_attestation_core::crd::{RevokedKey, RevokedNodeCredentialsSpec};
use node_attestation_core::identifiers::{CertificateUid, RecordUid};
use node_attestation_core::ledger::{RevocationDecisions, Revocations, RevokedGenerations};
use node_attestation_runtime::hardening::revocation::{self, POLICY_NAME, Revocation};
use serde_json::{Value, json};

use crate::bed::{Bed, Request, assert_done, assert_refused, said};

const BINDING: &str = "validatingadmissionpolicybinding";
const LIST: &str = "revokednodecredentials";
const DEFINITION: &str = "revokednodecredentials.attestation.cluster.x-k8s.io";

/// An arbitrary time, because the tests do not use any other clock.
pub fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(60 * 365 * 24)
}

pub fn week() -> SystemTime {
    now() + Duration::from_hours(7 * 24)
}

fn uid(record: u8, generation: u64) -> CertificateUid {
    CertificateUid {
        record: RecordUid::new([record; 16]),
        generation,
    }
}

/// Revokes these generations and all earlier generations.
fn apply(bed: &Bed, revoked: &[CertificateUid], now: SystemTime) -> Revocation {
    let before = |uid: &CertificateUid| RevokedGenerations {
        lowest_valid: uid.generation + 1,
        until: week(),
    };
    let revoked = revoked.iter();
    let records = RevokedNodeCredentialsSpec {
        revoked: revoked
            .map(|uid| (uid.record.to_string(), before(uid)))
            .collect(),
        ..RevokedNodeCredentialsSpec::default()
    };
    apply_list(bed, &Revocations::unread(), &records, now)
}

fn apply_list(
    bed: &Bed,
    list: &Revocations,
    records: &RevokedNodeCredentialsSpec,
    now: SystemTime,
) -> Revocation {
    bed.run(revocation::apply(bed.client(), list, records, now))
        .unwrap()
}

/// Labels the node's own Node with a value that differs each time.
pub fn label(node: &Kubectl, name: &str, value: usize) -> Output {
    let label = format!("example.com/tried={value}");
    node.run(["label", "node", name, &label, "--overwrite"])
}

/// Waits until the API server rejects the node's writes, or accepts them. The API server receives the list of revoked
/// credentials with a separate watch.
#[track_caller]
pub fn wait_until(node: &Kubectl, name: &str, refused: bool) {
    let mut tries = 0;
    let reached = poll(DEADLINE, || {
        tries += 1;
        let output = label(node, name, tries);
        let is_refused = said(&output).contains("is revoked");
        assert_eq!(is_refused, !output.status.success(), "{}", said(&output));
        (is_refused == refused).then_some(())
    });
    assert!(reached.is_some(), "refused should be {refused}");
}

pub fn add_node(cluster: &ControlPlane, name: &str) {
    let kubectl = cluster.kubectl();
    kubectl.apply_object(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
    }));
    kubectl.apply_object(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name},
    }));
}

fn add_pod(cluster: &ControlPlane, node: &str, name: &str) -> Value {
    let kubectl = cluster.kubectl();
    let account = ["serviceaccounts", "--field-selector=metadata.name=default"];
    kubectl.wait_for(&account, "of every namespace", DEADLINE, |_| true);
    kubectl.apply_object(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "none"}]},
    }));
    kubectl.json(["get", "pod", name])
}

/// Makes each kind of write that a kubelet can make. Returns the descriptions of the writes that succeeded.
fn writes(bed: &Bed, kubelet: &Kubectl, node: &str, round: usize) -> Vec<(&'static str, Output)> {
    let pod = format!("{node}-{round}");
    let uid = add_pod(&bed.cluster, node, &pod)["metadata"]["uid"].clone();
    let uid = format!("--bound-object-uid={}", uid.as_str().unwrap());
    let evicted = format!("{node}-{round}-evicted");
    add_pod(&bed.cluster, node, &evicted);
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, object: Value| {
        let path = directory.path().join(name);
        fs::write(&path, object.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let eviction = file(
        "eviction",
        json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": evicted, "namespace": "default"},
        }),
    );
    let event = file(
        "event",
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": pod, "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": node, "namespace": "default"},
            "reason": "Tried", "type": "Normal", "source": {"component": "kubelet"},
        }),
    );
    let evictions = format!("/api/v1/namespaces/default/pods/{evicted}/eviction");
    // `kubectl patch` reads the object first, which kubelets are not allowed to do.
    let now = |kind: &str, name: &str| bed.cluster.kubectl().json(["get", kind, name]);
    let put = |path: &str, object: Value| {
        kubelet.run(["replace", "--raw", path, "-f", &file("status", object)])
    };
    let node_status = || {
        let mut object = now("node", node);
        object["status"]["addresses"] = json!([{"type": "Hostname", "address": pod}]);
        object["metadata"]["resourceVersion"] = Value::Null;
        put(&format!("/api/v1/nodes/{node}/status"), object)
    };
    let pod_status = || {
        let mut object = now("pod", &pod);
        object["status"]["message"] = "tried".into();
        put(
            &format!("/api/v1/namespaces/default/pods/{pod}/status"),
            object,
        )
    };
    let lease = json!({"spec": {"leaseTransitions": round}}).to_string();
    vec![
        ("its node", label(kubelet, node, 1000 + round)),
        ("its node's status", node_status()),
        (
            "its lease",
            kubelet.run([
                "patch",
                "lease",
                node,
                "-n",
                "kube-node-lease",
                "--type=merge",
                "-p",
                &lease,
            ]),
        ),
        ("a pod's status", pod_status()),
        (
            "a token of a pod's account",
            kubelet.run([
                "create",
                "token",
                "default",
                "--bound-object-kind=Pod",
                &format!("--bound-object-name={pod}"),
                &uid,
            ]),
        ),
        (
            "an eviction",
            kubelet.run(["create", "--raw", &evictions, "-f", &eviction]),
        ),
        (
            "the end of a pod",
            kubelet.run([
                "delete",
                "pod",
                &pod,
                "--grace-period=0",
                "--force",
                "--wait=false",
            ]),
        ),
        ("an event", kubelet.run(["create", "-f", &event])),
        (
            "a request",
            Request::ours(&format!("csr-{pod}"), node).file(kubelet),
        ),
    ]
}

#[test]
fn a_revoked_certificate_cannot_write_for_its_node() {
    const NODE: &str = "robbed";
    let bed = &Bed::start(Controllers::Certificates, &[]);
    add_node(&bed.cluster, NODE);
    let thief = bed.node_with_uid(NODE, &uid(1, 1).to_string());
    let rightful = bed.node_with_uid(NODE, &uid(1, 2).to_string());
    for (what, output) in writes(bed, &thief, NODE, 1) {
        assert!(output.status.success(), "{what}: {}", said(&output));
    }

    apply(bed, &[uid(1, 1), uid(2, 1)], now());
    wait_until(&thief, NODE, true);

    let words = format!(
        "the credential {} of system:node:robbed is revoked",
        uid(1, 1)
    );
    for (what, output) in writes(bed, &thief, NODE, 2) {
        assert!(!output.status.success(), "{what} was written");
        assert_refused(&output, &words);
    }
    for (what, output) in writes(bed, &rightful, NODE, 3) {
        assert!(output.status.success(), "{what}: {}", said(&output));
    }
}

#[test]
fn a_certificate_uid_without_a_record_is_not_refused() {
    const NODE: &str = "foreign";
    let bed = Bed::start(Controllers::None, &[]);
    add_node(&bed.cluster, NODE);
    let revoked = bed.node_with_uid(NODE, &uid(4, 1).to_string());
    apply(&bed, &[uid(4, 1)], now());
    wait_until(&revoked, NODE, true);

    let record = uid(4, 1).record.to_string();
    for (n, foreign) in [
        record.clone(),
        format!("{record}."),
        format!("{record}.one"),
        format!("{record}.01"),
        format!("{record}.9999999999999999999"),
        format!("x{record}.1"),
        "b9c2".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        assert_done(&label(&bed.node_with_uid(NODE, foreign), NODE, n));
    }
    assert_done(&label(&bed.node(NODE), NODE, 100));
}

#[test]
fn a_revoked_certificate_can_still_read() {
    const NODE: &str = "reader";
    let bed = &Bed::start(Controllers::None, &[]);
    add_node(&bed.cluster, NODE);
    let revoked = bed.node_with_uid(NODE, &uid(2, 1).to_string());
    apply(bed, &[uid(1, 1), uid(2, 1)], now());
    wait_until(&revoked, NODE, true);

    for words in [
        &["get", "node", NODE][..],
        &["get", "pods", "-A", "--field-selector=spec.nodeName=reader"],
        &["get", "certificatesigningrequests"],
        &["get", "services", "-A"],
        &["auth", "whoami"],
    ] {
        assert_done(&revoked.run(words));
    }
}

#[test]
fn a_node_cannot_remove_itself_from_the_revocation_list() {
    let bed = Bed::start(Controllers::None, &[]);
    apply(&bed, &[uid(3, 1)], now());
    let thief = bed.node_with_uid("lister", &uid(3, 2).to_string());

    let patch = r#"{"spec":{"revoked":null}}"#;
    let name = "node-attestation-controller";
    let output = thief.run(["patch", LIST, name, "--type=merge", "-p", patch]);

    assert_refused(&output, "cannot");
    assert_eq!(listed(&bed).len(), 1);
}

fn listed(bed: &Bed) -> Vec<String> {
    let list = bed.cluster.kubectl().json(["get", LIST]);
    let revoked = &list["items"][0]["spec"]["revoked"];
    let entries = revoked.as_object().into_iter().flatten();
    entries.map(|(uid, _)| uid.clone()).collect()
}

fn is_bound(bed: &Bed) -> bool {
    let binding = ["get", BINDING, POLICY_NAME];
    bed.cluster.kubectl().run(binding).status.success()
}

#[test]
fn the_revocation_policy_is_bound_only_while_an_entry_exists() {
    let bed = Bed::start(Controllers::None, &[]);
    add_node(&bed.cluster, "n");
    let node = bed.node_with_uid("n", &uid(1, 1).to_string());
    assert_eq!(apply(&bed, &[], now()), Revocation::default());
    let definition = ["get", "crd", DEFINITION];
    assert!(!bed.cluster.kubectl().run(definition).status.success());
    assert!(!is_bound(&bed));

    assert_eq!(apply(&bed, &[uid(1, 1)], now()).listed, 1);
    assert!(is_bound(&bed));
    wait_until(&node, "n", true);
    assert_eq!(listed(&bed), [uid(1, 1).record.to_string()]);

    // The controller no longer has to keep the revocation.
    assert_eq!(apply(&bed, &[uid(1, 1)], week()), Revocation::default());
    assert!(!is_bound(&bed));
    wait_until(&node, "n", false);
    assert_eq!(listed(&bed), Vec::<String>::new());

    // The policy is applied again, while the objects from the first application still exist.
    apply(&bed, &[uid(1, 1)], now());
    wait_until(&node, "n", true);
}

#[test]
fn an_unchanged_revocation_list_is_not_written() {
    let bed = Bed::start(Controllers::None, &[]);
    let versions = || {
        let kinds = [LIST, BINDING, "validatingadmissionpolicy", "crd"];
        kinds.map(|kind| bed.cluster.kubectl().ok(["get", kind, "-o", VERSIONS]))
    };
    apply(&bed, &[uid(1, 1), uid(2, 1)], now());
    let before = versions();

    apply(&bed, &[uid(1, 1), uid(2, 1)], now());

    assert_eq!(versions(), before);
}

/// The records come from a backup.
#[test]
fn an_obsolete_entry_stays_in_the_list_until_it_expires() {
    let bed = Bed::start(Controllers::None, &[]);
    add_node(&bed.cluster, "n");
    let stolen = bed.node_with_uid("n", &uid(1, 1).to_string());
    apply(&bed, &[uid(1, 2), uid(2, 1)], now());
    let both = [1, 2].map(|record| uid(record, 1).record.to_string());

    apply(&bed, &[uid(1, 1)], now());

    assert_eq!(listed(&bed), both);
    wait_until(&stolen, "n", true);
    let other = bed.node_with_uid("n", &uid(1, 2).to_string());
    wait_until(&other, "n", true);
    let last = week() - Duration::from_secs(2);
    apply(&bed, &[], last);
    assert_eq!(listed(&bed), both);
    apply(&bed, &[], week());
    assert!(listed(&bed).is_empty());
    wait_until(&stolen, "n", false);
}

const VERSIONS: &str = "jsonpath={.items[*].metadata.resourceVersion}";

#[test]
fn a_deleted_revocation_list_is_restored_and_blocks_no_node() {
    let bed = Bed::start(Controllers::None, &[]);
    add_node(&bed.cluster, "n");
    let node = bed.node_with_uid("n", &uid(1, 1).to_string());
    let other = bed.node_with_uid("n", &uid(1, 2).to_string());
    let kubectl = bed.cluster.kubectl().clone();
    apply(&bed, &[uid(1, 1)], now());
    wait_until(&node, "n", true);

    kubectl.ok(["delete", LIST, "--all"]);
    wait_until(&node, "n", false);
    apply(&bed, &[uid(1, 1)], now());
    wait_until(&node, "n", true);

    kubectl.ok(["delete", "crd", DEFINITION]);
    wait_until(&node, "n", false);
    assert_done(&label(&other, "n", 0));

    // An API server that starts without the definition allows all writes, including the writes that restore the
    // definition.
    bed.cluster.restart_apiserver();
    assert_done(&label(&other, "n", 1));
    kubectl.ok(["create", "namespace", "written-meanwhile"]);
    apply(&bed, &[uid(1, 1)], now());
    wait_until(&node, "n", true);
    assert_done(&label(&other, "n", 2));
}

#[test]
fn the_generation_floor_refuses_lower_ones_and_survives_a_restart() {
    let bed = Bed::start(Controllers::None, &[]);
    add_node(&bed.cluster, "n");
    add_node(&bed.cluster, "other");
    let node = bed.node_with_uid("n", &uid(1, 4).to_string());
    let other = bed.node_with_uid("other", &uid(2, 5).to_string());
    let floor = |floor| {
        let list = Revocations::unread();
        list.decide(RevocationDecisions {
            floor,
            ..RevocationDecisions::default()
        });
        apply_list(&bed, &list, &RevokedNodeCredentialsSpec::default(), now());
        list
    };

    floor(5);
    wait_until(&node, "n", true);
    assert_done(&label(&other, "other", 0));

    // If a controller has no value for the floor (0), it keeps the stored floor.
    let list = floor(0);
    wait_until(&node, "n", true);
    assert!(!list.is_empty());
}

#[test]
fn a_definition_of_an_earlier_version_gets_the_fields_of_this_one() {
    let bed = Bed::start(Controllers::None, &[]);
    let kubectl = bed.cluster.kubectl();
    apply(&bed, &[uid(1, 1)], now());
    let fields = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let remove = |field: &str| json!({"op": "remove", "path": format!("{fields}/{field}")});
    let patch = json!([remove("lowestValidGeneration"), remove("revokedKeys")]).to_string();
    kubectl.ok(["patch", "crd", DEFINITION, "--type=json", "-p", &patch]);
    let list = Revocations::unread();
    list.decide(RevocationDecisions {
        floor: 5,
        ..RevocationDecisions::default()
    });

    apply_list(&bed, &list, &RevokedNodeCredentialsSpec::default(), now());

    let written = kubectl.json(["get", LIST, "node-attestation-controller"]);
    assert_eq!(written["spec"]["lowestValidGeneration"], 5);
}

#[test]
fn the_longest_list_fits_into_the_api_server() {
    let bed = Bed::start(Controllers::None, &[]);
    let record = |n: u32| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        RecordUid::new(bytes).to_string()
    };
    let until = |n: u32| week() + Duration::from_secs(n.into());
    let key = |n: u32| RevokedKey {
        node_name: "n".repeat(253),
        generation: u64::MAX >> 1,
        provider_id: Some(format!("metal:///{}", "p".repeat(503))),
        revoked_at: now(),
        until: until(n),
    };
    let desired = RevokedNodeCredentialsSpec {
        revoked: (0..10_001)
            .map(|n| {
                let revoked = RevokedGenerations {
                    lowest_valid: u64::MAX >> 1,
                    until: until(n),
                };
                (record(n), revoked)
            })
            .collect(),
        lowest_valid_generation: u64::MAX >> 1,
        revoked_keys: (0..300).map(|n| (record(n).repeat(2), key(n))).collect(),
    };

    let outcome = apply_list(&bed, &Revocations::unread(), &desired, now());

    assert_eq!((outcome.listed, outcome.left_out), (10_000, 1));
    let list = bed
        .cluster
        .kubectl()
        .ok(["get", LIST, "-o", "json", "--show-managed-fields"]);
    println!("{} bytes", list.len());
    assert_eq!(listed(&bed).len(), 10_000);
}
