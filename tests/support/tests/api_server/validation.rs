//! Tests of invalid objects that the server rejects, and of unusual objects that it stores.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::pki::{Subject, certificate_request};
use serde_json::{Value, json};

use crate::client::{CSRS, Caller, csr, csr_of, read};

const BLOCK: &str = "-----BEGIN KUBELET AUTHENTICATOR ATTESTATION PROVIDER-----\nYXdz\n\
                     -----END KUBELET AUTHENTICATOR ATTESTATION PROVIDER-----\n";

fn request() -> String {
    certificate_request(&Subject::node("node-1"), None).0
}

#[test]
fn text_around_the_request_is_stored_unchanged() {
    let server = ApiServer::start();
    let caller = Caller::bootstrap(&server);
    let trailers = [
        ("attestation blocks", format!("{}{BLOCK}", request())),
        ("text", format!("{}junk", request())),
        ("leading text", format!("hello\n{}", request())),
        ("another request", format!("{}{}", request(), request())),
        (
            "a malformed block first",
            format!("{}{}", BLOCK.replace("YXdz", "aws"), request()),
        ),
    ];
    for (index, (what, bytes)) in trailers.into_iter().enumerate() {
        let (code, created) =
            read(caller.post(CSRS, &csr_of(&format!("r{index}"), bytes.as_bytes())));
        assert_eq!(code, 201, "{what}: {created}");
        assert_eq!(created["spec"]["request"], STANDARD.encode(bytes), "{what}");
    }
}

#[test]
fn a_spec_that_violates_a_rule_is_invalid() {
    let server = ApiServer::start();
    let caller = Caller::bootstrap(&server);
    let encoded = |bytes: &str| json!(STANDARD.encode(bytes));
    let (pem, _) = certificate_request(&Subject::node("node-1"), None);
    let mut der = STANDARD.decode(
        pem.lines()
            .filter(|l| !l.starts_with('-'))
            .collect::<String>(),
    );
    let der = der.as_mut().unwrap();
    *der.last_mut().unwrap() ^= 1;
    let forged = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        STANDARD.encode(der)
    );
    let signer = "should be a domain with at least two segments separated by dots";
    let cases: [(&str, Value, &str, &str); 11] = [
        (
            "request",
            encoded("no PEM"),
            "spec.request",
            "PEM block type must be CERTIFICATE REQUEST",
        ),
        (
            "request",
            encoded(&format!("{BLOCK}{}", request())),
            "spec.request",
            "PEM block type must be CERTIFICATE REQUEST",
        ),
        (
            "request",
            encoded(&forged),
            "spec.request",
            "x509: ECDSA verification failure",
        ),
        ("usages", json!([]), "spec.usages", "Required value"),
        (
            "usages",
            json!(["cliant auth"]),
            "spec.usages[0]",
            "Unsupported value: \"cliant auth\"",
        ),
        (
            "usages",
            json!(["client auth", "client auth"]),
            "spec.usages[1]",
            "Duplicate value: \"client auth\"",
        ),
        (
            "signerName",
            json!("cluster-x-k8s-io/kubelet-serving-aws"),
            "spec.signerName",
            signer,
        ),
        (
            "signerName",
            json!("a.b/c/d"),
            "spec.signerName",
            "must be a fully qualified domain",
        ),
        (
            "signerName",
            json!("kubernetes.io/legacy-unknown"),
            "spec.signerName",
            "legacy",
        ),
        ("signerName", json!("A.b/c"), "spec.signerName", "RFC 1123"),
        (
            "expirationSeconds",
            json!(599),
            "spec.expirationSeconds",
            "less than 600 seconds",
        ),
    ];
    for (field, value, path, why) in cases {
        let mut body = csr("a", "node-1");
        body["spec"][field] = value;
        let (code, status) = read(caller.post(CSRS, &body));
        assert_eq!(
            (code, status["reason"].as_str()),
            (422, Some("Invalid")),
            "{why}: {status}"
        );
        assert_eq!(status["details"]["causes"][0]["field"], path, "{status}");
        assert!(
            status["message"].as_str().unwrap().contains(why),
            "{why}: {status}"
        );
    }
    assert!(server.csrs().is_empty());
}

#[test]
fn a_name_must_be_set_or_generated_and_valid_in_a_path() {
    let server = ApiServer::start();
    let caller = Caller::bootstrap(&server);
    let named = |metadata: Value| {
        let mut body = csr("a", "node-1");
        body["metadata"] = metadata;
        read(caller.post(CSRS, &body))
    };

    let (code, status) = named(json!({}));
    assert_eq!(code, 422);
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("name or generateName is required"),
        "{status}"
    );
    assert_eq!(named(json!({"name": "a/b"})).0, 422);
    let (code, created) = named(json!({"generateName": "csr-"}));
    assert_eq!(code, 201);
    assert!(
        created["metadata"]["name"]
            .as_str()
            .unwrap()
            .starts_with("csr-"),
        "{created}"
    );
}

#[test]
fn a_taken_name_is_refused_as_already_existing() {
    let server = ApiServer::start();
    let caller = Caller::bootstrap(&server);
    caller.post(CSRS, &csr("a", "node-1"));

    let (code, status) = read(caller.post(CSRS, &csr("a", "node-2")));

    assert_eq!(
        (code, status["reason"].as_str()),
        (409, Some("AlreadyExists"))
    );
    assert_eq!(
        status["message"],
        "certificatesigningrequests.certificates.k8s.io \"a\" already exists"
    );
    assert_eq!(
        status["details"],
        json!({"name": "a", "group": "certificates.k8s.io", "kind": "certificatesigningrequests"})
    );
}

#[test]
fn an_oversized_request_is_refused_by_etcd_or_by_the_server() {
    let server = ApiServer::start();
    let caller = Caller::bootstrap(&server);
    let padded = |size: usize| csr_of("a", format!("{}{}", request(), "x".repeat(size)).as_bytes());

    let (code, status) = read(caller.post(CSRS, &padded(1_300_000)));
    assert_eq!(
        (code, status["message"].as_str()),
        (500, Some("etcdserver: request is too large"))
    );
    let (code, status) = read(caller.post(CSRS, &padded(2_400_000)));
    assert_eq!(code, 413);
    assert_eq!(
        status["message"],
        "Request entity too large: limit is 3145728"
    );
}
