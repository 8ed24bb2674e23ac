use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::*;
use crate::client::LocalRange;

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

fn refused(kubeconfig: &Value) -> KubeconfigRefused {
    parse(kubeconfig).expect_err("it is accepted")
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
    assert_eq!(
        refused(&with("/users/0/user/exec", exec)),
        KubeconfigRefused::Exec
    );

    let provider = json!({"name": "gcp", "config": {"cmd-path": "/bin/sh"}});
    assert_eq!(
        refused(&with("/users/0/user/auth-provider", provider)),
        KubeconfigRefused::AuthProvider
    );
}

#[test]
fn what_reads_a_file_is_refused() {
    for (parent, field, expected) in [
        (CLUSTER, "certificate-authority", "certificate-authority"),
        (USER, "client-certificate", "client-certificate"),
        (USER, "client-key", "client-key"),
        (USER, "tokenFile", "tokenFile"),
    ] {
        let path = json!("/var/run/secrets/kubernetes.io/serviceaccount/token");

        let refused = refused(&with(&format!("{parent}/{field}"), path));

        assert_eq!(refused, KubeconfigRefused::File { field: expected });
        assert_eq!(
            refused.to_string(),
            format!("{field} is not accepted: it names a file")
        );
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
        let refused = refused(&with(&format!("{USER}/{name}"), value));

        assert_eq!(refused, KubeconfigRefused::Impersonates { field });
    }
}

#[test]
fn a_proxy_and_a_server_that_is_not_verified_are_refused() {
    for url in ["http://10.0.0.1:3128", "https://proxy", "socks5://proxy"] {
        assert_eq!(
            refused(&with("/clusters/0/cluster/proxy-url", json!(url))),
            KubeconfigRefused::Proxy
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
            TenantKubeconfig::parse(text.as_bytes(), EgressPolicy::default()).unwrap_err(),
            KubeconfigRefused::SkipsVerification,
            "{yes}"
        );
    }
}

#[test]
fn a_password_is_refused() {
    for field in ["username", "password"] {
        assert_eq!(
            refused(&with(&format!("{USER}/{field}"), json!("x"))),
            KubeconfigRefused::Password
        );
    }
}

#[test]
fn what_the_current_context_does_not_name_is_looked_at_too() {
    let mut kubeconfig = valid();
    let users = kubeconfig["users"].as_array_mut().unwrap();
    users.push(json!({"name": "other", "user": {"exec": {"command": "/bin/sh"}}}));
    assert_eq!(refused(&kubeconfig), KubeconfigRefused::Exec);

    let mut kubeconfig = valid();
    let clusters = kubeconfig["clusters"].as_array_mut().unwrap();
    clusters.push(json!({"name": "other", "cluster": {"proxy-url": "http://proxy"}}));
    assert_eq!(refused(&kubeconfig), KubeconfigRefused::Proxy);
}

#[test]
fn a_server_is_an_https_url_of_host_port_and_path() {
    let url = |part| KubeconfigRefused::Url { part };
    for (server, expected) in [
        ("http://203.0.113.7:6443", KubeconfigRefused::NotHttps),
        ("unix:///run/x.sock", KubeconfigRefused::Server),
        ("file:///etc/passwd", KubeconfigRefused::Server),
        ("203.0.113.7:6443", KubeconfigRefused::Server),
        ("https://", KubeconfigRefused::Server),
        ("https://:6443", KubeconfigRefused::Server),
        ("https://a b", KubeconfigRefused::Server),
        ("/relative", KubeconfigRefused::Server),
        ("", KubeconfigRefused::Server),
        ("https://user:secret@203.0.113.7", url("a user")),
        ("https://@203.0.113.7", url("a user")),
        ("https://203.0.113.7/?a=b", url("a query")),
        ("https://203.0.113.7#a", url("a fragment")),
    ] {
        assert_eq!(refused(&with(SERVER, json!(server))), expected, "{server}");
    }
    assert_eq!(
        refused(&with(SERVER, Value::Null)),
        KubeconfigRefused::Server
    );
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
    ] {
        let refused = refused(&with(SERVER, json!(format!("https://{host}:6443"))));

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
    assert_eq!(refused(&with(ca, Value::Null)), KubeconfigRefused::NoCa);
    assert_eq!(refused(&with(ca, json!(""))), KubeconfigRefused::NoCa);
    let one = valid().pointer(ca).unwrap().as_str().unwrap().to_owned();
    let pem = BASE64.decode(one.as_bytes()).unwrap();
    let broken = String::from_utf8(pem.clone())
        .unwrap()
        .replacen("-----END", "----END", 1);
    for data in [
        "!".to_owned(),
        BASE64.encode(b"no certificate"),
        BASE64.encode(broken.as_bytes()),
        BASE64.encode(&pem.repeat(MAX_CA_CERTIFICATES + 1)),
    ] {
        assert_eq!(refused(&with(ca, json!(data))), KubeconfigRefused::Ca);
    }
    let most = BASE64.encode(&pem.repeat(MAX_CA_CERTIFICATES));
    let most = parse(&with(ca, json!(most))).unwrap();
    assert_eq!(most.ca_certificates().len(), MAX_CA_CERTIFICATES);
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

    assert_eq!(refused, KubeconfigRefused::ServerName);
}

#[test]
fn there_is_one_credential_and_it_is_whole() {
    let unreadable = |credential| KubeconfigRefused::Unreadable { credential };
    let user = valid().pointer(USER).unwrap().clone();
    let with_user = |field: &str, value: Value| {
        let mut user = user.clone();
        user[field] = value;
        refused(&with(USER, user))
    };
    assert_eq!(
        refused(&with(USER, json!({}))),
        KubeconfigRefused::NoCredential
    );
    assert_eq!(
        with_user("token", json!(TOKEN)),
        KubeconfigRefused::TwoCredentials
    );
    for half in ["client-certificate-data", "client-key-data"] {
        assert_eq!(
            with_user(half, Value::Null),
            KubeconfigRefused::HalfACertificate
        );
    }
    for garbage in ["!".to_owned(), BASE64.encode(b"garbage")] {
        assert_eq!(
            with_user("client-certificate-data", json!(garbage)),
            unreadable("client-certificate-data")
        );
        assert_eq!(
            with_user("client-key-data", json!(garbage)),
            unreadable("client-key-data")
        );
    }
    for token in ["two words", "line\nbreak", "\u{e9}"] {
        assert_eq!(
            refused(&with(USER, json!({"token": token}))),
            unreadable("token")
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
