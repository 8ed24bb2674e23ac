//! Targets for the parsers of the API server's responses to a node.

use std::sync::LazyLock;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kubelet_authenticator::secret::Secret;
use kubelet_authenticator::testing::{ApiClient, CsrObject, CsrState, NewCsr};
use kubelet_authenticator::testing::{ClusterEndpoint, EndpointFields, Login};
use kubelet_authenticator::testing::{object, refusal, watch};
use kubelet_authenticator_test_support::pki::CertificateAuthority;
use serde_json::{Value, json};

use crate::{Outcome, SECRET, assert_keeps_secret};

/// A length that exceeds the length of any error with a message from the server.
const MAX_ERROR_LEN: usize = 16 * 1024;

/// A client that does not send data.
static CLIENT: LazyLock<ApiClient> = LazyLock::new(|| {
    let fields = EndpointFields {
        server: "https://10.0.0.1:6443".to_owned(),
        ca_pem: CertificateAuthority::new("kubernetes")
            .certificate_pem()
            .to_owned(),
        ..EndpointFields::default()
    };
    let endpoint = ClusterEndpoint::from_fields(fields, "fields").unwrap();
    let login = Login::Token(Secret::new(SECRET.to_owned()));
    ApiClient::connect(&endpoint, &login, &|_| None).unwrap()
});

/// Parses a request in the format of the API server. If the parser accepts a request, it also accepts the request's
/// canonical form.
pub fn csr_object(input: &[u8]) -> Outcome {
    let csr = match object(&CLIENT, input) {
        Ok(csr) => csr,
        Err(error) => {
            assert_keeps_secret(&error.to_string());
            return Outcome::Refused;
        }
    };
    let mut pending = csr.clone();
    pending.state = CsrState::Pending;
    let approved = json!({"type": "Approved", "status": "True"});
    let conditions: Vec<_> = csr.is_approved.then_some(approved).into_iter().collect();
    let json = json!({
        "metadata": {"name": csr.name, "uid": csr.uid, "resourceVersion": csr.resource_version},
        "status": {"conditions": conditions},
        "spec": {
            "request": BASE64_STANDARD.encode(&csr.request), "signerName": csr.signer_name,
            "usages": csr.usages, "expirationSeconds": csr.expiration_seconds,
        },
    });
    let again = object(&CLIENT, json.to_string().as_bytes());
    assert_eq!(again.unwrap(), pending);
    let usages: Vec<&str> = csr.usages.iter().map(String::as_str).collect();
    let asked = NewCsr {
        name: &csr.name,
        signer_name: &csr.signer_name,
        usages: &usages,
        expiration_seconds: csr.expiration_seconds.unwrap_or_default(),
        request: &csr.request,
    };
    let is_same = asked.is_what_was_stored(&csr);
    assert_eq!(is_same, csr.expiration_seconds.is_some());
    Outcome::Accepted
}

/// Requests in each state.
pub fn csr_object_seeds() -> Vec<Vec<u8>> {
    let states = STATES.iter().map(|status| stored(&status()));
    states
        .map(|object| object.to_string().into_bytes())
        .collect()
}

/// Parses the lines of a watch. The decision that the parser returns is final, and belongs to the awaited request.
pub fn watch_lines(input: &[u8]) -> Outcome {
    match watch(&CLIENT, &WAITING, input) {
        Ok(Some(csr)) if csr.state == CsrState::Pending => Outcome::Refused,
        Ok(Some(csr)) => {
            assert_eq!(csr.uid, WAITING.uid);
            Outcome::Accepted
        }
        Ok(None) => Outcome::Accepted,
        Err(error) => {
            assert_keeps_secret(&error.to_string());
            Outcome::Refused
        }
    }
}

/// Lines that end with each decision.
pub fn watch_lines_seeds() -> Vec<Vec<u8>> {
    let event = |kind: &str, object: Value| json!({"type": kind, "object": object}).to_string();
    let bookmark = json!({"metadata": {"resourceVersion": "8"}});
    let before = [
        event("ADDED", stored(&json!({}))),
        event("BOOKMARK", bookmark),
    ];
    let decided = STATES.iter().skip(1).map(|status| stored(&status()));
    let decided = decided.map(|object| event("MODIFIED", object));
    let gone = event("DELETED", stored(&json!({})));
    let last = decided.chain([gone]);
    let lines = last.map(|last| [&before[..], &[last]].concat().join("\n"));
    lines.map(String::into_bytes).collect()
}

/// The awaited request.
static WAITING: LazyLock<CsrObject> = LazyLock::new(|| {
    let json = stored(&json!({})).to_string();
    object(&CLIENT, json.as_bytes()).unwrap()
});

/// The `status` of a request: first waiting, then decided.
const STATES: [fn() -> Value; 4] = [
    || json!({}),
    || json!({"conditions": [condition("Denied")]}),
    || json!({"conditions": [condition("Approved"), condition("Failed")]}),
    || {
        let certificate = BASE64_STANDARD.encode("-----BEGIN CERTIFICATE-----\n");
        json!({"conditions": [condition("Approved")], "certificate": certificate})
    },
];

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "Why", "message": "because"})
}

fn stored(status: &Value) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {
            "name": "kubelet-authenticator-a", "uid": "u", "resourceVersion": "7",
            "annotations": {
                "attestation.cluster.x-k8s.io/supported-versions": "v1,v2",
                "attestation.cluster.x-k8s.io/tpm-challenge": "e30=",
            },
        },
        "spec": {
            "request": BASE64_STANDARD.encode("request"), "signerName": "example.com/s",
            "usages": ["digital signature", "client auth"], "expirationSeconds": 3600,
        },
        "status": status,
    })
}

/// Parses a `Status` that is returned instead of an object. Its message is safe for a journal.
pub fn status(input: &[u8]) -> Outcome {
    for status in [302, 400, 401, 404, 409, 422, 429, 500, 503, 999] {
        let text = refusal(&CLIENT, status, input).to_string();
        assert!(text.len() <= MAX_ERROR_LEN, "{text}");
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
    let without = refusal(&CLIENT, 403, b"").to_string();
    Outcome::of(refusal(&CLIENT, 403, input).to_string() != without)
}

/// A refusal in the Kubernetes format.
pub fn status_seeds() -> Vec<Vec<u8>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "certificatesigningrequests is forbidden", "reason": "Forbidden", "code": 403,
    });
    vec![status.to_string().into_bytes()]
}
