//! Targets for the parsers in `node-attestation-runtime`: a tenant's files, and the responses from its API server.

use std::sync::LazyLock;

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kubelet_authenticator_test_support::pki::{CertificateAuthority, Contents, Subject};
use node_attestation_runtime::capi::{ClusterCa, ObjectKey, TenantKubeconfig};
use node_attestation_runtime::client::EgressPolicy;
use node_attestation_runtime::client::testing::sieved;
use node_attestation_runtime::hardening::tokens::TTL;
use node_attestation_runtime::hardening::tokens::testing::extension;
use node_attestation_runtime::watch::testing::lenient;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{Outcome, SECRET, assert_keeps_secret};

/// One more than the maximum number of CA certificates in a kubeconfig.
const TOO_MANY_CERTIFICATES: usize = 17;

/// The runtime of clients.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Checks that errors about a tenant's kubeconfig do not contain the kubeconfig's data, and that no client connects to
/// this host.
pub fn tenant_kubeconfig(input: &[u8]) -> Outcome {
    let kubeconfig = match TenantKubeconfig::parse(input, EgressPolicy::STRICT) {
        Ok(kubeconfig) => kubeconfig,
        Err(error) => {
            assert_keeps_secret(&format!("{error} {error:?}"));
            return Outcome::Refused;
        }
    };
    let count = kubeconfig.ca_certificates().len();
    assert!((1..TOO_MANY_CERTIFICATES).contains(&count));
    assert_keeps_secret(&format!("{:?}", kubeconfig.claims()));
    let _entered = RUNTIME.enter();
    match kubeconfig.access(&ObjectKey::new("tenant-a", "prod-1")) {
        Ok(_) => Outcome::Accepted,
        Err(error) => {
            assert_keeps_secret(&format!("{error} {error:?}"));
            Outcome::Refused
        }
    }
}

/// Kubeconfigs with a token, with a service account token, and with a client certificate as Cluster API writes it.
pub fn tenant_kubeconfig_seeds() -> Vec<Vec<u8>> {
    let ca = CertificateAuthority::new("kubernetes");
    let pair = ca.issue(&Contents::client(Subject::user("admin")));
    let ca = BASE64_STANDARD.encode(ca.certificate_pem());
    let chain = BASE64_STANDARD.encode(&pair.certificate_pem);
    let key = BASE64_STANDARD.encode(&pair.key_pem);
    let claims = r#"{"sub":"system:serviceaccount:a:b","iat":1,"exp":2}"#;
    let claims = BASE64_URL_SAFE_NO_PAD.encode(claims);
    let users = [
        format!("token: {SECRET}"),
        format!("token: e30.{claims}.{SECRET}"),
        format!("client-certificate-data: {chain}\n    client-key-data: {key}"),
    ];
    let kubeconfig = |user: String| {
        format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    \
             server: https://10.0.0.1:6443\n  name: c\ncontexts:\n- context:\n    cluster: c\n    \
             user: u\n  name: u@c\ncurrent-context: u@c\nkind: Config\npreferences: {{}}\n\
             users:\n- name: u\n  user:\n    {user}\n"
        )
    };
    users.map(|user| kubeconfig(user).into_bytes()).into()
}

/// Parses the CA of a cluster: the certificates before a zero byte, and the key after it.
pub fn cluster_ca(input: &[u8]) -> Outcome {
    let mut values = input.splitn(2, |byte| *byte == 0);
    let fields = ["tls.crt", "tls.key"].map(|field| {
        let value = values.next().unwrap_or_default();
        (field.to_owned(), ByteString(value.to_vec()))
    });
    let secret = Secret {
        data: Some(fields.into()),
        ..Secret::default()
    };
    let Ok(ca) = ClusterCa::from_secret(&secret) else {
        return Outcome::Refused;
    };
    let first = ca.certificates().first().expect("there is at least one");
    assert_eq!(ca.audiences().count(), ca.certificates().len());
    if let Some(signer) = ca.signer() {
        assert_eq!(signer.ca_der(), first);
        assert_eq!(signer.not_after(), ca.not_after());
    }
    Outcome::Accepted
}

/// A CA with its key, a CA without its key, and a CA during its replacement.
pub fn cluster_ca_seeds() -> Vec<Vec<u8>> {
    let (ca, former) = (ca(), CertificateAuthority::new("kubernetes"));
    let certificate = &ca.pair().certificate_pem;
    let key = &ca.pair().key_pem;
    let secrets = [
        certificate.clone(),
        [certificate, "\0", key].concat(),
        [certificate, former.certificate_pem(), "\0", key].concat(),
    ];
    secrets.map(String::into_bytes).into()
}

fn ca() -> CertificateAuthority {
    CertificateAuthority::new("kubernetes")
}

/// Extends the expiry time in the Secret of a bootstrap token. A parse then returns the new time.
pub fn bootstrap_token(input: &[u8]) -> Outcome {
    let Ok(text) = str::from_utf8(input) else {
        return Outcome::Refused;
    };
    let at = |hours: i64| Timestamp::from_second(hours * 3600).unwrap();
    for now in [at(500_000), Timestamp::MIN, Timestamp::MAX] {
        let Ok(extended) = extension(text, now) else {
            return Outcome::Refused;
        };
        let Some((end, patch)) = extended else {
            continue;
        };
        let longest = now.saturating_add(TTL).unwrap_or(Timestamp::MAX);
        assert!(end <= longest);
        let mut secret: Value = serde_json::from_str(text).unwrap();
        secret["data"]["expiration"] = patch["data"]["expiration"].clone();
        // The token does not need to be extended again.
        assert_eq!(extension(&secret.to_string(), now), Ok(None));
    }
    Outcome::Accepted
}

/// Tokens that expire soon, later, and never.
pub fn bootstrap_token_seeds() -> Vec<Vec<u8>> {
    let ends = ["2027-01-15T08:00:00Z", "2030-01-01T00:00:00+01:00"];
    let ends = ends.map(|end| Value::from(BASE64_STANDARD.encode(end)));
    let secrets = ends.into_iter().chain([Value::Null]).map(|end| {
        json!({
            "metadata": {"name": "bootstrap-token-abcdef", "resourceVersion": "7"},
            "type": "bootstrap.kubernetes.io/token",
            "data": {"expiration": end, "token-secret": BASE64_STANDARD.encode(SECRET)},
        })
    });
    secrets
        .map(|secret| secret.to_string().into_bytes())
        .collect()
}

/// Removes `managedFields` from responses. The result does not depend on the pieces into which the input is split, and
/// the rest of the JSON does not change.
pub fn managed_fields(input: &[u8]) -> Outcome {
    let whole = sieved([input], false);
    for len in [1, 3, 7] {
        assert_eq!(sieved(input.chunks(len), false), whole);
    }
    let lines = input.split(|byte| *byte == b'\n');
    let lines: Vec<_> = lines.map(|line| sieved([line], false)).collect();
    assert_eq!(sieved([input], true), lines.join(&b'\n'));
    // An API server never writes an escaped key.
    let parsed = serde_json::from_slice(input).ok();
    let Some(mut value) = parsed.filter(|_| !input.contains(&b'\\')) else {
        return Outcome::Refused;
    };
    without_managed_fields(&mut value);
    assert_eq!(serde_json::from_slice::<Value>(&whole).unwrap(), value);
    Outcome::Accepted
}

/// Sets `managedFields` to null in every `metadata`.
fn without_managed_fields(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::Object(metadata)) = members.get_mut("metadata")
                && let Some(fields) = metadata.get_mut("managedFields")
            {
                *fields = Value::Null;
            }
            members.values_mut().for_each(without_managed_fields);
        }
        Value::Array(elements) => elements.iter_mut().for_each(without_managed_fields),
        _ => {}
    }
}

/// An object, and a list of two objects. Some of them have managed fields.
pub fn managed_fields_seeds() -> Vec<Vec<u8>> {
    let object = json!({
        "metadata": {
            "name": "a", "uid": "b",
            "managedFields": [{"time": "9999-12-31T23:59:59Z", "fieldsV1": {"f:a": {}}}, null],
        },
        "spec": {"metadata": {"managedFields": 1, "labels": {}}, "managedFields": ["kept"]},
    });
    let list = json!({"items": [object, {"metadata": {}}], "metadata": {"resourceVersion": "7"}});
    let pretty = serde_json::to_vec_pretty(&list).unwrap();
    vec![object.to_string().into(), list.to_string().into(), pretty]
}

/// Decodes an object in a watch. The parser accepts every JSON value, and errors do not contain the contents.
pub fn watched_object(input: &[u8]) -> Outcome {
    let is_json = serde_json::from_slice::<Value>(input).is_ok();
    let request = lenient::<CertificateSigningRequest>(input);
    let secret = lenient::<Secret>(input);
    assert!(request.is_ok() || !is_json);
    assert!(secret.is_ok() || !is_json);
    let request = request.map(|(_, request)| request.map(drop));
    let secret = secret.map(|(_, secret)| secret.map(drop));
    let objects = [request, secret];
    for unreadable in objects
        .iter()
        .flatten()
        .filter_map(|read| read.as_ref().err())
    {
        assert_keeps_secret(unreadable);
    }
    Outcome::of(objects.iter().flatten().any(Result::is_ok))
}

/// A request, and a Secret.
pub fn watched_object_seeds() -> Vec<Vec<u8>> {
    let metadata = json!({
        "name": "a", "namespace": "b", "uid": "u", "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"},
        "managedFields": [{"manager": "m", "time": "9999-12-31T23:59:59Z"}],
    });
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": metadata,
        "spec": {
            "request": BASE64_STANDARD.encode("request"), "signerName": "example.com/s",
            "usages": ["client auth"], "expirationSeconds": 3600, "username": "system:node:n1",
            "extra": {"authentication.kubernetes.io/credential-id": [SECRET]},
        },
        "status": {"conditions": [{"type": "Approved", "status": "True"}]},
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque",
        "data": {"token": BASE64_STANDARD.encode("token")}, "stringData": {"password": SECRET},
    });
    vec![request.to_string().into(), secret.to_string().into()]
}
