//! Tests of writes to `/approval` and `/status`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::pki::{Contents, Subject};
use serde_json::{Value, json};

use crate::client::{CSRS, Caller, csr, read};

struct Scene {
    server: ApiServer,
    admin: Caller,
}

impl Scene {
    fn new() -> Self {
        let server = ApiServer::start();
        Caller::bootstrap(&server).post(CSRS, &csr("a", "node-1"));
        let admin = Caller::admin(&server);
        Self { server, admin }
    }

    fn stored(&self) -> Value {
        self.server.csr("a").unwrap()
    }

    fn put(&self, part: &str, status: Value) -> (u16, Value) {
        let mut object = self.stored();
        object["status"] = status;
        read(self.admin.put(&format!("{CSRS}/a{part}"), &object))
    }

    fn certificate(&self) -> String {
        let contents = Contents::client(Subject::node("node-1"));
        self.server.authority().issue(&contents).certificate_pem
    }
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "Because", "message": "so"})
}

fn text(status: &Value) -> &str {
    status["message"].as_str().unwrap()
}

#[test]
fn a_request_is_approved_and_then_issued() {
    let scene = Scene::new();

    let (code, approved) = scene.put("/approval", json!({"conditions": [condition("Approved")]}));
    assert_eq!(code, 200, "{approved}");
    let written = &approved["status"]["conditions"][0];
    assert!(written["lastUpdateTime"].is_string() && written["lastTransitionTime"].is_string());

    let mut status = approved["status"].clone();
    status["certificate"] = STANDARD.encode(scene.certificate()).into();
    let (code, issued) = scene.put("/status", status.clone());
    assert_eq!((code, &issued["status"]), (200, &status));
}

#[test]
fn an_approval_cannot_be_added_through_the_status_subresource() {
    let scene = Scene::new();

    let (code, status) = scene.put("/status", json!({"conditions": [condition("Approved")]}));

    assert_eq!(code, 422);
    assert!(
        text(&status).contains("updates may not add a condition of type \"Approved\""),
        "{status}"
    );
}

#[test]
fn a_failure_can_be_added_through_the_status_subresource() {
    let scene = Scene::new();

    let (code, failed) = scene.put("/status", json!({"conditions": [condition("Failed")]}));

    assert_eq!(
        (code, &failed["status"]["conditions"][0]["type"]),
        (200, &json!("Failed"))
    );
}

#[test]
fn a_certificate_cannot_be_set_through_the_approval_subresource() {
    let scene = Scene::new();
    let certificate = STANDARD.encode(scene.certificate());

    let status = json!({"conditions": [condition("Approved")], "certificate": certificate});
    let (code, approved) = scene.put("/approval", status);

    assert_eq!(
        (code, &approved["status"]["certificate"]),
        (200, &Value::Null)
    );
}

#[test]
fn final_conditions_cannot_be_changed() {
    let scene = Scene::new();
    scene.put("/approval", json!({"conditions": [condition("Approved")]}));
    let cases = [
        (
            json!([]),
            "updates may not remove a condition of type \"Approved\"",
        ),
        (
            json!([condition("Approved"), condition("Denied")]),
            "mutually exclusive",
        ),
        (
            json!([condition("Approved"), condition("Approved")]),
            "Duplicate value: \"Approved\"",
        ),
    ];

    for (conditions, why) in cases {
        let (code, status) = scene.put("/approval", json!({"conditions": conditions}));
        assert_eq!(code, 422, "{why}");
        assert!(text(&status).contains(why), "{why}: {status}");
    }
}

#[test]
fn a_final_condition_with_the_status_false_is_refused() {
    let scene = Scene::new();
    let mut approved = condition("Approved");
    approved["status"] = "False".into();

    let (code, status) = scene.put("/approval", json!({"conditions": [approved]}));

    assert_eq!(code, 422);
    assert!(
        text(&status).contains("Unsupported value: \"False\""),
        "{status}"
    );
}

#[test]
fn only_the_format_of_a_written_certificate_is_checked() {
    let scene = Scene::new();
    let pem = scene.certificate();
    let garbage = "-----BEGIN CERTIFICATE-----\nYXdz\n-----END CERTIFICATE-----\n".to_owned();
    let headers = pem.replacen("-----\n", "-----\na: b\n\n", 1);
    let refused = [
        (
            "only CERTIFICATE PEM blocks are allowed",
            pem.replace("CERTIFICATE", "X"),
        ),
        (
            "must contain at least one CERTIFICATE PEM block",
            "text".to_owned(),
        ),
        ("x509: malformed certificate", garbage),
        ("no PEM block headers are permitted", headers),
    ];

    for (why, pem) in refused {
        let (code, status) = scene.put("/status", json!({"certificate": STANDARD.encode(pem)}));
        assert_eq!(code, 422, "{why}");
        assert!(text(&status).contains(why), "{why}: {status}");
    }
    let unapproved = json!({"certificate": STANDARD.encode(format!("text\n{pem}text"))});
    assert_eq!(scene.put("/status", unapproved).0, 200);
}

#[test]
fn a_certificate_can_be_set_only_once() {
    let scene = Scene::new();
    let certificate = || json!({"certificate": STANDARD.encode(scene.certificate())});
    scene.put("/status", certificate());

    let (code, status) = scene.put("/status", certificate());

    assert_eq!(code, 422);
    assert!(text(&status).contains("updates may not modify existing certificate content"));
}

#[test]
fn only_an_outdated_resource_version_conflicts() {
    let scene = Scene::new();
    let stale = scene.stored();
    scene.put("/approval", json!({"conditions": [condition("Approved")]}));

    let (code, status) = read(scene.admin.put(&format!("{CSRS}/a/status"), &stale));
    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")));
    assert!(
        text(&status).contains("the object has been modified"),
        "{status}"
    );

    let patch = json!({
        "metadata": {"resourceVersion": stale["metadata"]["resourceVersion"]},
        "status": {"certificate": STANDARD.encode(scene.certificate())},
    });
    let path = format!("{CSRS}/a/status");
    assert_eq!(scene.admin.patch(&path, "merge", &patch).status(), 409);
    let free = json!({"status": patch["status"]});
    assert_eq!(scene.admin.patch(&path, "merge", &free).status(), 200);
}

#[test]
fn the_uid_of_another_object_conflicts() {
    let scene = Scene::new();
    let mut object = scene.stored();
    object["metadata"]["uid"] = "another".into();

    let (code, status) = read(scene.admin.put(&format!("{CSRS}/a/approval"), &object));

    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")));
    assert!(
        text(&status).contains("Precondition failed: UID in precondition"),
        "{status}"
    );
}

#[test]
fn only_the_metadata_of_a_request_can_be_changed() {
    let scene = Scene::new();
    let spec = scene.stored()["spec"].clone();

    for (index, part) in ["", "/approval", "/status"].into_iter().enumerate() {
        let patch = json!({
            "metadata": {"annotations": {format!("k{index}"): "v"}},
            "spec": {"signerName": "example.com/another"},
        });
        let (code, object) = read(
            scene
                .admin
                .patch(&format!("{CSRS}/a{part}"), "merge", &patch),
        );
        assert_eq!((code, &object["spec"]), (200, &spec), "{part}");
    }
    assert_eq!(
        scene.stored()["metadata"]["annotations"]
            .as_object()
            .unwrap()
            .len(),
        3
    );
}

#[test]
fn a_deletion_of_another_version_conflicts() {
    let scene = Scene::new();
    let options = json!({"preconditions": {"uid": "another"}});

    assert_eq!(
        scene.admin.delete(&format!("{CSRS}/a"), &options).status(),
        409
    );
    assert_eq!(scene.server.csrs().len(), 1);
}
