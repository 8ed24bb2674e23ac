//! Kinds that a test defines, by the rules of custom resources.

use kubelet_authenticator_test_support::api_server::{
    ApiServer, Definition, Fault, Route, Times, Verb,
};
use serde_json::{Value, json};

use super::client::{Caller, Events, message, read};

const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines";

/// A server with Machines in two versions.
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
fn a_status_is_written_by_its_subresource_alone() {
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
fn only_what_was_seen_is_replaced() {
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

#[test]
fn all_versions_show_the_same_objects() {
    let server = server();
    let admin = Caller::admin(&server);
    let mut object = machine("m1");
    object["metadata"]["namespace"] = json!("default");
    server.put(object);

    let old = "/apis/cluster.x-k8s.io/v1beta1/machines";
    let (_, list) = read(admin.get(old));
    assert_eq!(list["apiVersion"], "cluster.x-k8s.io/v1beta1");
    assert_eq!(list["items"][0]["apiVersion"], "cluster.x-k8s.io/v1beta1");
    assert_eq!(list["items"][0]["status"]["phase"], "Running");
    assert_eq!(
        admin.get("/apis/cluster.x-k8s.io/v1/machines").status(),
        404
    );
}

#[test]
fn discovery_names_what_is_defined() {
    let server = server();
    server.define(Definition::new("", "v1", "Namespace", "namespaces").cluster_scoped());
    let admin = Caller::admin(&server);

    let (_, groups) = read(admin.get("/apis"));
    let names = groups["groups"].as_array().unwrap();
    let group = names
        .iter()
        .find(|group| group["name"] == "cluster.x-k8s.io");
    let group = group.unwrap();
    assert_eq!(group["preferredVersion"]["version"], "v1beta2");
    assert_eq!(
        group["versions"][1]["groupVersion"],
        "cluster.x-k8s.io/v1beta1"
    );
    let (_, list) = read(admin.get("/apis/cluster.x-k8s.io/v1beta1"));
    assert_eq!(list["resources"][0]["kind"], "Machine");
    assert_eq!(list["resources"][1]["name"], "machines/status");
    let (_, core) = read(admin.get("/api/v1"));
    let core = core["resources"].as_array().unwrap();
    assert!(
        core.iter()
            .any(|it| it["name"] == "namespaces" && it["namespaced"] == false)
    );
    assert_eq!(admin.get("/apis/cluster.x-k8s.io/v9").status(), 404);
}

#[test]
fn a_crd_defines_its_served_versions() {
    let server = ApiServer::start();
    let version = |name: &str, served: bool| json!({"name": name, "served": served, "subresources": {"status": {}}});
    let crd = json!({"spec": {
        "group": "example.com", "scope": "Cluster",
        "names": {"kind": "Shape", "plural": "shapes"},
        "versions": [version("v1", true), version("v0", false)],
    }});
    for definition in Definition::of_crd(&crd) {
        server.define(definition);
    }
    let admin = Caller::admin(&server);

    let round = json!({
        "apiVersion": "example.com/v1", "kind": "Shape", "metadata": {"name": "round"},
    });
    assert_eq!(
        read(admin.post("/apis/example.com/v1/shapes", &round)).0,
        201
    );
    assert_eq!(admin.get("/apis/example.com/v0/shapes").status(), 404);
    assert_eq!(server.all("shapes").len(), 1);
    server.remove("shapes", "", "round");
    assert_eq!(server.all("shapes").len(), 0);
}

#[test]
fn a_watch_shows_what_begins_and_ceases_to_match() {
    let server = server();
    let admin = Caller::admin(&server);
    let selector = "labelSelector=cluster.x-k8s.io/cluster-name=a";
    let mut events: Events = admin.watch_at(MACHINES, selector);

    let mut other = machine("m1");
    other["metadata"]["labels"] = json!({});
    read(admin.post(MACHINES, &other));
    let label =
        |value: Value| json!({"metadata": {"labels": {"cluster.x-k8s.io/cluster-name": value}}});
    read(admin.patch(&path("m1"), "merge", &label(json!("a"))));
    read(admin.patch(&path("m1"), "merge", &json!({"spec": {"clusterName": "b"}})));
    read(admin.patch(&path("m1"), "merge", &label(Value::Null)));

    let kinds = [(); 3].map(|()| events.next().0);
    assert_eq!(kinds, ["ADDED", "MODIFIED", "DELETED"]);
}

#[test]
fn faults_and_counts_are_those_of_every_other_kind() {
    let server = server();
    let admin = Caller::admin(&server);
    let fault = Fault::Status {
        code: 429,
        retry_after: Some(1),
    };
    server.inject(Route::new(Verb::Create, "machines"), Times::once(), fault);

    assert_eq!(read(admin.post(MACHINES, &machine("m1"))).0, 429);
    assert_eq!(read(admin.post(MACHINES, &machine("m1"))).0, 201);
    assert_eq!(read(admin.post(MACHINES, &machine("m1"))).0, 409);

    let creates = server.requests();
    let creates = creates
        .iter()
        .filter(|request| request.verb == Verb::Create && request.resource == "machines");
    assert_eq!(creates.count(), 3);
}
