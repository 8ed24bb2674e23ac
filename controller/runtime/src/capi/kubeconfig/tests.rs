use kubelet_attestation::kubeconfig::Refused;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::*;

mod document;

const TOKEN: &str = "token-that-nobody-may-see";

/// A kubeconfig as Cluster API writes it.
fn valid() -> Value {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::default().self_signed(&key).unwrap();
    let certificate = BASE64.encode(certificate.pem().as_bytes());
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "kubernetes-admin@prod-1",
        "clusters": [{"name": "prod-1", "cluster": {
            "server": "https://203.0.113.7:6443",
            "certificate-authority-data": certificate,
        }}],
        "contexts": [{"name": "kubernetes-admin@prod-1", "context": {
            "cluster": "prod-1", "user": "kubernetes-admin", "namespace": "default",
        }}],
        "users": [{"name": "kubernetes-admin", "user": {
            "client-certificate-data": certificate,
            "client-key-data": BASE64.encode(key.serialize_pem().as_bytes()),
        }}],
    })
}

const SERVER: &str = "/clusters/0/cluster/server";
const CLUSTER: &str = "/clusters/0/cluster";
const USER: &str = "/users/0/user";

/// The valid one with this at `pointer`, the last part of which need not be there.
fn with(pointer: &str, value: Value) -> Value {
    let mut kubeconfig = valid();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    kubeconfig.pointer_mut(parent).unwrap()[field] = value;
    kubeconfig
}

fn parse(kubeconfig: &Value) -> Result<TenantKubeconfig, KubeconfigRefused> {
    TenantKubeconfig::parse(kubeconfig.to_string().as_bytes(), EgressPolicy::default())
}

fn invalid(text: &[u8]) -> InvalidKubeconfig {
    let refused = TenantKubeconfig::parse(text, EgressPolicy::default());
    let Err(KubeconfigRefused::Invalid(invalid)) = refused else {
        panic!("{refused:?}");
    };
    invalid
}

fn refused(kubeconfig: &Value) -> Refused {
    invalid(kubeconfig.to_string().as_bytes()).why
}

/// The place and the reason of a refusal.
fn refused_at(kubeconfig: &Value) -> (String, Refused) {
    let InvalidKubeconfig { place, why } = invalid(kubeconfig.to_string().as_bytes());
    (place, why)
}

#[tokio::test]
async fn what_cluster_api_writes_gives_a_client() {
    let kubeconfig = parse(&valid()).unwrap();

    let access = kubeconfig.access().unwrap();

    assert_eq!(access.server(), "https://203.0.113.7:6443/");
    assert_eq!(access.ca_certificates(), kubeconfig.ca_certificates());
    assert_eq!(access.ca_certificates().len(), 1);
}

#[tokio::test]
async fn a_token_in_the_place_of_a_certificate_gives_a_client() {
    let kubeconfig = with(USER, json!({"token": TOKEN}));

    parse(&kubeconfig).unwrap().access().unwrap();
}

#[test]
fn a_key_of_either_kind_is_read() {
    for (algorithm, kind) in [
        (&rcgen::PKCS_ECDSA_P256_SHA256, "EC"),
        (&rcgen::PKCS_RSA_SHA256, "RSA"),
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let mut user =
            json!({"client-certificate-data": BASE64.encode(certificate.pem().as_bytes())});
        user["client-key-data"] = BASE64.encode(key.serialize_pem().as_bytes()).into();

        assert!(parse(&with(USER, user)).is_ok(), "{kind}");
    }
}

#[test]
fn harmless_fields_and_a_path_are_accepted() {
    for (pointer, value) in [
        (SERVER, json!("https://k8s.example.com/k8s/clusters/c-1")),
        (SERVER, json!("https://[2001:db8::1]:6443")),
        (
            "/clusters/0/cluster/tls-server-name",
            json!("kubernetes.default"),
        ),
        ("/clusters/0/cluster/tls-server-name", json!("10.0.0.1")),
        ("/clusters/0/cluster/insecure-skip-tls-verify", json!(false)),
        ("/clusters/0/cluster/certificate-authority", json!("")),
        ("/clusters/0/cluster/disable-compression", json!(true)),
        (
            "/clusters/0/cluster/extensions",
            json!([{"name": "x", "extension": {"a": 1}}]),
        ),
        ("/users/0/user/exec", Value::Null),
        ("/users/0/user/tokenFile", json!("")),
    ] {
        assert!(
            parse(&with(pointer, value.clone())).is_ok(),
            "{pointer} {value}"
        );
    }
}

#[test]
fn what_runs_a_program_is_refused() {
    let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh"});
    assert_eq!(refused(&with("/users/0/user/exec", exec)), Refused::Exec);

    let provider = json!({"name": "gcp", "config": {"cmd-path": "/bin/sh"}});
    assert_eq!(
        refused(&with("/users/0/user/auth-provider", provider)),
        Refused::AuthProvider
    );
}

#[test]
fn what_reads_a_file_is_refused() {
    for (parent, field, place) in [
        (CLUSTER, "certificate-authority", "value: cluster"),
        (USER, "client-certificate", "value: user"),
        (USER, "client-key", "value: user"),
        (USER, "tokenFile", "value: user"),
    ] {
        let path = json!("/var/run/secrets/kubernetes.io/serviceaccount/token");

        let refused = refused_at(&with(&format!("{parent}/{field}"), path));

        assert_eq!(refused, (format!("{place}: {field}"), Refused::File));
    }
}

#[test]
fn what_acts_as_somebody_else_is_refused() {
    for (name, value, field) in [
        ("as", json!("root"), "as"),
        ("as", json!(""), "as"),
        ("as-uid", json!("1"), "as-uid"),
        ("as-groups", json!(["system:masters"]), "as-groups"),
        ("as-user-extra", json!({"a": ["b"]}), "as-user-extra"),
    ] {
        let refused = refused_at(&with(&format!("{USER}/{name}"), value));

        assert_eq!(
            refused,
            (format!("value: user: {field}"), Refused::Impersonation)
        );
    }
}

#[test]
fn a_proxy_and_a_server_that_is_not_verified_are_refused() {
    for url in ["http://10.0.0.1:3128", "https://proxy", "socks5://proxy"] {
        assert_eq!(
            refused(&with("/clusters/0/cluster/proxy-url", json!(url))),
            Refused::Proxy
        );
    }
    // As YAML 1.1 has it, and client-go with it.
    for yes in ["true", "True", "yes", "on"] {
        let text = valid().to_string().replacen(
            r#""cluster":{"#,
            &format!(r#""cluster":{{"insecure-skip-tls-verify": {yes},"#),
            1,
        );
        assert_eq!(
            invalid(text.as_bytes()).why,
            Refused::SkipsVerification,
            "{yes}"
        );
    }
}

#[test]
fn a_password_is_refused() {
    for field in ["username", "password"] {
        assert_eq!(
            refused(&with(&format!("{USER}/{field}"), json!("x"))),
            Refused::Password
        );
    }
}

#[test]
fn what_the_current_context_does_not_name_is_looked_at_too() {
    let mut kubeconfig = valid();
    let users = kubeconfig["users"].as_array_mut().unwrap();
    users.push(json!({"name": "other", "user": {"exec": {"command": "/bin/sh"}}}));
    assert_eq!(refused(&kubeconfig), Refused::Exec);

    let mut kubeconfig = valid();
    let clusters = kubeconfig["clusters"].as_array_mut().unwrap();
    clusters.push(json!({"name": "other", "cluster": {"proxy-url": "http://proxy"}}));
    assert_eq!(refused(&kubeconfig), Refused::Proxy);
}

#[test]
fn a_server_is_an_https_url_of_host_port_and_path() {
    for (server, expected) in [
        ("http://203.0.113.7:6443", Refused::NotHttps),
        ("unix:///run/x.sock", Refused::NotHttps),
        ("file:///etc/passwd", Refused::NotHttps),
        ("203.0.113.7:6443", Refused::NotAUrl),
        ("https://", Refused::NotAUrl),
        ("https://:6443", Refused::NotAUrl),
        ("https://a b", Refused::NotAUrl),
        ("/relative", Refused::NotAUrl),
        ("", Refused::Missing),
        ("https://user:secret@203.0.113.7", Refused::NotAUrl),
        ("https://@203.0.113.7", Refused::NotAUrl),
        ("https://203.0.113.7/?a=b", Refused::NotAUrl),
        ("https://203.0.113.7#a", Refused::NotAUrl),
    ] {
        let refused = refused_at(&with(SERVER, json!(server)));
        assert_eq!(
            refused,
            ("value: cluster: server".to_owned(), expected),
            "{server}"
        );
    }
    assert_eq!(refused(&with(SERVER, Value::Null)), Refused::Missing);
}

#[test]
fn a_server_that_only_we_can_reach_is_refused() {
    for (host, expected) in [
        ("127.0.0.1", LocalRange::Loopback),
        ("[::1]", LocalRange::Loopback),
        ("[::ffff:127.0.0.1]", LocalRange::Loopback),
        ("0.0.0.0", LocalRange::Unspecified),
        ("[::]", LocalRange::Unspecified),
        ("169.254.169.254", LocalRange::LinkLocal),
        ("[fe80::1]", LocalRange::LinkLocal),
        ("[::ffff:169.254.169.254]", LocalRange::LinkLocal),
        ("2130706433", LocalRange::Loopback),
        ("0x7f.1", LocalRange::Loopback),
    ] {
        let refused = parse(&with(SERVER, json!(format!("https://{host}:6443")))).unwrap_err();

        assert!(
            matches!(refused, KubeconfigRefused::Address { neighbourhood, .. } if neighbourhood == expected),
            "{host}: {refused}"
        );
    }
    let loopback = with(SERVER, json!("https://127.0.0.1:6443")).to_string();
    let reach = EgressPolicy {
        insecure_allow_loopback: true,
    };
    assert!(TenantKubeconfig::parse(loopback.as_bytes(), reach).is_ok());
}

#[tokio::test]
async fn a_name_that_resolves_to_ourselves_is_refused_when_it_is_dialled() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let kubeconfig = with(SERVER, json!(format!("https://localhost:{port}")));
    let access = parse(&kubeconfig).unwrap().access().unwrap();

    let error = access.client().apiserver_version().await.unwrap_err();

    let error = kubelet_attestation::errors::error_chain(&error);
    assert!(
        error.contains("is refused: it is a loopback address"),
        "{error}"
    );
}

#[test]
fn a_ca_is_given_inline() {
    let ca = "/clusters/0/cluster/certificate-authority-data";
    assert_eq!(refused(&with(ca, Value::Null)), Refused::NoCa);
    assert_eq!(refused(&with(ca, json!(""))), Refused::NoCa);
    let one = valid().pointer(ca).unwrap().as_str().unwrap().to_owned();
    let pem = BASE64.decode(one.as_bytes()).unwrap();
    let broken = String::from_utf8(pem.clone())
        .unwrap()
        .replacen("-----END", "----END", 1);
    let most = 16;
    for (data, why) in [
        ("!".to_owned(), Refused::NotBase64),
        (BASE64.encode(b"no certificate"), Refused::NotCertificates),
        (BASE64.encode(broken.as_bytes()), Refused::NotCertificates),
        (BASE64.encode(&pem.repeat(most + 1)), Refused::TooMany(most)),
    ] {
        assert_eq!(refused(&with(ca, json!(data))), why);
    }
    let certificates = parse(&with(ca, json!(BASE64.encode(&pem.repeat(most)))));
    assert_eq!(certificates.unwrap().ca_certificates().len(), most);
}

#[tokio::test]
async fn a_ca_that_is_no_certificate_gives_no_client() {
    let garbage = pem::encode(&pem::Pem::new("CERTIFICATE", b"garbage".to_vec()));
    let kubeconfig = with(
        "/clusters/0/cluster/certificate-authority-data",
        json!(BASE64.encode(garbage.as_bytes())),
    );

    let refused = parse(&kubeconfig).unwrap().access().unwrap_err();

    assert_eq!(refused, KubeconfigRefused::NoClient);
}

#[test]
fn a_server_name_is_a_name_or_an_address() {
    let refused = refused(&with(
        "/clusters/0/cluster/tls-server-name",
        json!("not a name"),
    ));

    assert_eq!(refused, Refused::NotAServerName);
}

#[test]
fn there_is_one_credential_and_it_is_whole() {
    let user = valid().pointer(USER).unwrap().clone();
    let with_user = |field: &str, value: Value| {
        let mut user = user.clone();
        user[field] = value;
        refused(&with(USER, user))
    };
    assert_eq!(refused(&with(USER, json!({}))), Refused::NoCredential);
    let two = with_user("token", json!(TOKEN));
    assert_eq!(two, Refused::TwoCredentials);
    let (chain, key) = ("client-certificate-data", "client-key-data");
    for half in [chain, key] {
        assert_eq!(with_user(half, Value::Null), Refused::Half);
        assert_eq!(with_user(half, json!("!")), Refused::NotBase64);
    }
    let garbage = json!(BASE64.encode(b"garbage"));
    assert_eq!(with_user(chain, garbage.clone()), Refused::NotCertificates);
    assert_eq!(with_user(key, garbage), Refused::NotAKey);
    for token in ["two words", "line\nbreak", "\u{e9}"] {
        assert_eq!(
            refused(&with(USER, json!({"token": token}))),
            Refused::NotAToken
        );
    }
}

#[tokio::test]
async fn a_key_of_another_certificate_gives_no_client() {
    let other = valid().pointer(USER).unwrap()["client-key-data"].clone();

    let refused = parse(&with("/users/0/user/client-key-data", other))
        .unwrap()
        .access()
        .unwrap_err();

    assert_eq!(refused, KubeconfigRefused::NoClient);
}
