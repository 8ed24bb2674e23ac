//! Tests of authentication and authorization.

use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::pki::{CertificateAuthority, Contents, Subject};
use serde_json::json;

use crate::client::{CSRS, Caller, csr, message, read};

const NODES: &str = "/api/v1/nodes";

fn node(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

#[test]
fn a_token_authenticates_as_its_bootstrap_user() {
    let server = ApiServer::start();
    server.add_token("tttttt", "0000000000000000");

    let caller = Caller::with_token(&server, "tttttt.0000000000000000");
    let (_, created) = read(caller.post(CSRS, &csr("a", "node-1")));

    let spec = &created["spec"];
    assert_eq!(spec["username"], "system:bootstrap:tttttt");
    assert_eq!(
        spec["groups"],
        json!([
            "system:bootstrappers",
            "system:bootstrappers:kubeadm:default-node-token",
            "system:authenticated"
        ])
    );
    assert!(
        spec.get("uid").is_none() && spec.get("extra").is_none(),
        "{spec}"
    );
}

#[test]
fn a_certificate_authenticates_with_its_name_groups_and_uid() {
    let server = ApiServer::start();
    let pair = server.client_certificate(Subject::node("node-1").with_uid("0123.1"));

    let caller = Caller::with_certificate(&server, &pair);
    let (_, created) = read(caller.post(CSRS, &csr("a", "node-1")));

    let spec = &created["spec"];
    assert_eq!(spec["username"], "system:node:node-1");
    assert_eq!(spec["uid"], "0123.1");
    assert_eq!(
        spec["groups"],
        json!(["system:nodes", "system:authenticated"])
    );
    let id = spec["extra"]["authentication.kubernetes.io/credential-id"][0]
        .as_str()
        .unwrap();
    assert_eq!(id.strip_prefix("X509SHA256=").map(str::len), Some(64));
}

#[test]
fn requester_fields_in_the_spec_are_overwritten() {
    let server = ApiServer::start();
    let mut body = csr("a", "node-1");
    body["spec"]["username"] = "system:admin".into();
    body["spec"]["groups"] = json!(["system:masters"]);
    body["status"] = json!({"certificate": "eA=="});
    body["metadata"]["uid"] = "mine".into();

    let (code, created) = read(Caller::bootstrap(&server).post(CSRS, &body));

    assert_eq!(code, 201);
    assert_eq!(created["spec"]["username"], "system:bootstrap:abcdef");
    assert_eq!(created["spec"]["groups"][0], "system:bootstrappers");
    assert_eq!(created["status"], json!({}));
    assert_ne!(created["metadata"]["uid"], "mine");
}

#[test]
fn unknown_callers_get_401_instead_of_a_failed_handshake() {
    let server = ApiServer::start();
    let foreign = CertificateAuthority::new("kubernetes");
    let node = Contents::client(Subject::node("node-1"));
    let serving = server.authority().issue(&Contents::server(&["node-1"]));
    let expired = server.authority().issue(&node.clone().expired());
    let mut critical = node.clone();
    critical.provider_id = Some(vec![0x0c, 0x01, b'x']);
    critical.provider_id_critical = true;
    let revoked = Caller::bootstrap(&server);
    server.revoke_token("abcdef");

    let callers = [
        ("no credential", Caller::anonymous(&server)),
        ("revoked token", revoked),
        (
            "wrong secret",
            Caller::with_token(&server, "abcdef.fedcba9876543210"),
        ),
        (
            "expired certificate",
            Caller::with_certificate(&server, &expired),
        ),
        (
            "foreign certificate",
            Caller::with_certificate(&server, &foreign.issue(&node)),
        ),
        (
            "server certificate",
            Caller::with_certificate(&server, &serving),
        ),
        (
            "critical extension",
            Caller::with_certificate(&server, &server.authority().issue(&critical)),
        ),
    ];
    for (what, caller) in callers {
        let (code, status) = read(caller.get(CSRS));
        let expected = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
        });
        assert_eq!((code, status), (401, expected), "{what}");
    }
}

#[test]
fn a_certificate_with_the_provider_identifier_authenticates() {
    let server = ApiServer::start();
    let mut contents = Contents::client(Subject::node("node-1"));
    contents.provider_id = Some(vec![0x0c, 0x01, b'x']);

    let caller = Caller::with_certificate(&server, &server.authority().issue(&contents));

    assert_eq!(caller.get(CSRS).status(), 200);
}

#[test]
fn only_an_administrator_approves_and_deletes() {
    let server = ApiServer::start();
    let bootstrap = Caller::bootstrap(&server);
    bootstrap.post(CSRS, &csr("a", "node-1"));

    let (code, status) = read(bootstrap.put(&format!("{CSRS}/a/approval"), &json!({})));
    assert_eq!((code, status["reason"].as_str()), (403, Some("Forbidden")));
    assert_eq!(
        status["message"],
        "certificatesigningrequests.certificates.k8s.io \"a\" is forbidden: \
         User \"system:bootstrap:abcdef\" cannot update resource \
         \"certificatesigningrequests/approval\" in API group \"certificates.k8s.io\" \
         at the cluster scope"
    );
    let node = Caller::node(&server, "node-1");
    assert_eq!(node.delete(&format!("{CSRS}/a"), &json!({})).status(), 403);
    let admin = Caller::admin(&server);
    let (code, status) = read(admin.delete(&format!("{CSRS}/a"), &json!({})));
    assert_eq!((code, status["status"].as_str()), (200, Some("Success")));
    assert_eq!(admin.get(&format!("{CSRS}/a")).status(), 404);
}

#[test]
fn a_node_can_create_only_its_node_object() {
    let server = ApiServer::start();
    let caller = Caller::node(&server, "n1");

    assert_eq!(caller.post(NODES, &node("n1")).status(), 201);
    assert_eq!(
        message(caller.post(NODES, &node("n2"))),
        "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\""
    );
    assert_eq!(caller.get("/api/v1/nodes/n1").status(), 200);
    assert_eq!(caller.get("/api/v1/nodes/n2").status(), 403);
    assert_eq!(server.nodes().len(), 1);
}

#[test]
fn a_node_can_renew_only_its_lease() {
    let server = ApiServer::start();
    let caller = Caller::node(&server, "n1");
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n1"},
        "spec": {"holderIdentity": "n1"},
    });

    assert_eq!(caller.post(path, &lease).status(), 201);
    let renewal = json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
    assert_eq!(
        caller
            .patch(&format!("{path}/n1"), "merge", &renewal)
            .status(),
        200
    );
    assert_eq!(
        caller
            .patch(&format!("{path}/n2"), "merge", &renewal)
            .status(),
        403
    );
}
