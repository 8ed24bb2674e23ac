//! Tests of kinds that a test defines, with the rules for custom resources.

use kubelet_authenticator_test_support::api_server::{ApiServer, Definition};
use serde_json::{Value, json};

use super::client::{Caller, message, read};

const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines";

/// A server that serves Machines in two versions.
fn server() -> ApiServer {
    let server = ApiServer::start();
    for version in ["v1beta2", "v1beta1"] {
        let machines = Definition::new("cluster.x-k8s.io", version, "Machine", "machines");
        server.define(machines.with_status());
    }
    server
}

fn machine(name: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": "a"}},
        "spec": {"clusterName": "a"},
        "status": {"phase": "Running"},
    })
}

fn path(name: &str) -> String {
    format!("{MACHINES}/{name}")
}

#[test]
fn a_status_is_written_only_by_its_subresource() {
    let server = server();
    let admin = Caller::admin(&server);

    let (code, created) = read(admin.post(MACHINES, &machine("m1")));
    assert_eq!((code, &created["status"]), (201, &Value::Null));
    assert_eq!(created["metadata"]["namespace"], "default");
    assert_eq!(created["metadata"]["generation"], 1);

    let patch = json!({
        "metadata": {"labels": {"new": "yes"}}, "spec": {"clusterName": "b"},
        "status": {"phase": "Failed"},
    });
    let (_, by_status) = read(admin.patch(&(path("m1") + "/status"), "merge", &patch));
    assert_eq!(by_status["status"]["phase"], "Failed");
    assert_eq!(by_status["spec"]["clusterName"], "a");
    assert_eq!(by_status["metadata"]["labels"]["new"], Value::Null);
    assert_eq!(by_status["metadata"]["generation"], 1);

    let patch = json!({"spec": {"clusterName": "b"}, "status": {"phase": "Gone"}});
    let (_, by_main) = read(admin.patch(&path("m1"), "merge", &patch));
    assert_eq!(by_main["status"]["phase"], "Failed");
    assert_eq!(by_main["spec"]["clusterName"], "b");
    assert_eq!(by_main["metadata"]["generation"], 2);
}

#[test]
fn an_update_with_an_old_version_conflicts() {
    let server = server();
    let admin = Caller::admin(&server);
    let (_, first) = read(admin.post(MACHINES, &machine("m1")));

    let blind = message(admin.put(&path("m1"), &machine("m1")));
    assert!(
        blind.ends_with("must be specified for an update"),
        "{blind}"
    );
    let mut second = first.clone();
    second["spec"]["providerID"] = json!("generic:///1");
    assert_eq!(read(admin.put(&path("m1"), &second)).0, 200);
    let (code, stale) = read(admin.put(&path("m1"), &second));
    assert_eq!((code, &stale["reason"]), (409, &json!("Conflict")));
    let another = json!({"metadata": {"uid": "another"}});
    assert_eq!(read(admin.patch(&path("m1"), "merge", &another)).0, 409);
}

#[test]
fn a_deletion_has_preconditions_and_waits_for_finalizers() {
    let server = server();
    let admin = Caller::admin(&server);
    let mut held = machine("m1");
    held["metadata"]["finalizers"] = json!(["machine.cluster.x-k8s.io"]);
    read(admin.post(MACHINES, &held));

    let other = json!({"preconditions": {"uid": "another"}});
    assert_eq!(read(admin.delete(&path("m1"), &other)).0, 409);
    let (code, going) = read(admin.delete(&path("m1"), &json!({})));
    assert_eq!((code, &going["kind"]), (200, &json!("Machine")));
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    assert!(server.object("machines", "default", "m1").is_some());

    let released = json!({"metadata": {"finalizers": null}});
    assert_eq!(read(admin.patch(&path("m1"), "merge", &released)).0, 200);
    assert_eq!(server.object("machines", "default", "m1"), None);
    assert_eq!(read(admin.get(&path("m1"))).0, 404);
}
