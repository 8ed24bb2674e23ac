use std::cell::Cell;

use kubelet_attestation::kubeconfig::Refused;
use node_attestation_core::testing::block;
use node_attestation_core::testing::der::{sequence, tlv};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::*;

thread_local! {
    pub(super) static CLIENTS: Cell<usize> = const { Cell::new(0) };
}

/// The number of clients that this thread has created with a tenant's kubeconfig.
pub(crate) fn created_clients() -> usize {
    CLIENTS.get()
}

const TOKEN: &str = "token-that-nobody-may-see";

/// A kubeconfig as Cluster API creates it.
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
const USER: &str = "/users/0/user";

/// The valid kubeconfig with this value at `pointer`. The last part of `pointer` does not need to exist in the
/// kubeconfig.
fn with(pointer: &str, value: Value) -> Value {
    let mut kubeconfig = valid();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    kubeconfig.pointer_mut(parent).unwrap()[field] = value;
    kubeconfig
}

fn cluster() -> ObjectKey {
    ObjectKey::new("tenant-a", "prod-1")
}

fn parse(kubeconfig: &Value) -> Result<TenantKubeconfig, KubeconfigRefused> {
    TenantKubeconfig::parse(kubeconfig.to_string().as_bytes(), EgressPolicy::default())
}

#[tokio::test]
async fn a_cluster_api_kubeconfig_is_accepted() {
    let kubeconfig = parse(&valid()).unwrap();

    let access = kubeconfig.access(&cluster()).unwrap();

    assert_eq!(access.server(), "https://203.0.113.7:6443/");
    assert_eq!(access.ca_certificates(), kubeconfig.ca_certificates());
    assert_eq!(access.ca_certificates().len(), 1);
}

#[tokio::test]
async fn a_token_instead_of_a_certificate_is_accepted() {
    let kubeconfig = with(USER, json!({"token": TOKEN}));
    let kubeconfig = parse(&kubeconfig).unwrap();

    kubeconfig.access(&cluster()).unwrap();

    assert!(!format!("{kubeconfig:?}").contains(TOKEN));
}

#[test]
fn a_kubeconfig_with_local_files_or_a_proxy_is_refused() {
    for (pointer, value, place, why) in [
        (
            "/clusters/0/cluster/certificate-authority",
            "/etc/ca.crt",
            "value: cluster: certificate-authority",
            Refused::File,
        ),
        (
            "/clusters/0/cluster/proxy-url",
            "http://10.0.0.1:3128",
            "value: cluster: proxy-url",
            Refused::Proxy,
        ),
        (
            "/users/0/user/tokenFile",
            "/var/run/secrets/kubernetes.io/serviceaccount/token",
            "value: user: tokenFile",
            Refused::File,
        ),
    ] {
        let place = place.to_owned();
        let expected = KubeconfigRefused::Invalid(InvalidKubeconfig { place, why });
        assert_eq!(parse(&with(pointer, json!(value))).unwrap_err(), expected);
    }
}

#[test]
fn a_server_at_a_local_address_is_refused() {
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
            matches!(refused, KubeconfigRefused::Address { local_range, .. } if local_range == expected),
            "{host}: {refused}"
        );
    }
    let loopback = with(SERVER, json!("https://127.0.0.1:6443")).to_string();
    let egress = EgressPolicy {
        insecure_allow_loopback: true,
    };
    assert!(TenantKubeconfig::parse(loopback.as_bytes(), egress).is_ok());
}

#[tokio::test]
async fn a_name_that_resolves_to_a_local_address_is_refused() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let kubeconfig = with(SERVER, json!(format!("https://localhost:{port}")));
    let access = parse(&kubeconfig).unwrap().access(&cluster()).unwrap();

    let version = crate::preflight::version(access.client()).await;
    let error = version.unwrap_err();

    let error = kubelet_attestation::errors::error_chain(&error);
    assert!(
        error.contains("is refused: it is a loopback address"),
        "{error}"
    );
}

/// The valid kubeconfig with this text as its client key.
fn with_key(key: impl AsRef<[u8]>) -> Value {
    let key = json!(BASE64.encode(key.as_ref()));
    with("/users/0/user/client-key-data", key)
}

/// An RSA key in PKCS#1 whose modulus and private exponent have these lengths, in bytes.
fn rsa_key(modulus: usize, exponent: usize) -> String {
    let number = |len| tlv(2, &[&[0], vec![0xff; len].as_slice()].concat());
    let lengths = [modulus, 3, exponent, 128, 128, 128, 128, 128];
    let numbers = lengths.map(number);
    let version = tlv(2, &[0]);
    block(
        "RSA PRIVATE KEY",
        &sequence(&[vec![version], numbers.to_vec()].concat()),
    )
}

/// Without the check, the library would try each type of key, and would check the numbers of an RSA key bit by bit.
#[tokio::test]
async fn a_client_key_with_long_numbers_is_refused_before_a_client_is_created() {
    for (key, why) in [
        (
            rsa_key(256, 257),
            InvalidPrivateKey::RsaNumber("private exponent"),
        ),
        (rsa_key(2048, 256), InvalidPrivateKey::RsaBits(16_384)),
        (rsa_key(256, 7500), InvalidPrivateKey::TooLong),
        (block("PRIVATE KEY", b"text"), InvalidPrivateKey::Malformed),
    ] {
        let refused = parse(&with_key(key)).unwrap_err();

        assert_eq!(refused, KubeconfigRefused::ClientKey(why));
        let error = kubelet_attestation::errors::error_chain(&refused);
        assert_eq!(
            error,
            format!("value: user: client-key-data is not accepted: {why}")
        );
    }
    // The lengths of this key are valid, so only arithmetic shows that it is invalid.
    let kubeconfig = parse(&with_key(rsa_key(256, 256))).unwrap();
    let access = kubeconfig.access(&cluster());
    assert_eq!(access.unwrap_err(), KubeconfigRefused::NoClient);
}

#[tokio::test]
async fn a_client_key_of_every_kind_is_accepted() {
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ECDSA_P521_SHA512,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let mut kubeconfig = with_key(key.serialize_pem());
        kubeconfig.pointer_mut(USER).unwrap()["client-certificate-data"] =
            json!(BASE64.encode(certificate.pem().as_bytes()));

        let access = parse(&kubeconfig).unwrap().access(&cluster());

        assert!(access.is_ok(), "{algorithm:?}");
    }
}

/// If the certificate data or the key data contains a PKCS#8 key, kube prefers this key to a key in another form.
#[tokio::test]
async fn a_second_private_key_in_a_kubeconfig_is_not_used() {
    let pair = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let chain = CertificateParams::default().self_signed(&pair).unwrap();
    let chain = chain.pem();
    // The last part of a PKCS#8 key is the PKCS#1 key.
    let key = block("RSA PRIVATE KEY", &pair.serialize_der()[26..]);
    let other = block("PRIVATE KEY", b"text");
    let hidden = format!("-----BEGIN CERTIFICATE-----\n{other}-----END CERTIFICATE-----\n");
    for (chain, key) in [
        (chain.clone(), key.clone()),
        (chain.clone(), [&*key, &*other].concat()),
        ([&*chain, &*hidden].concat(), key),
    ] {
        let mut kubeconfig = with_key(key);
        kubeconfig.pointer_mut(USER).unwrap()["client-certificate-data"] =
            json!(BASE64.encode(chain.as_bytes()));

        let access = parse(&kubeconfig).unwrap().access(&cluster());

        assert!(access.is_ok(), "{access:?}");
    }
}

#[tokio::test]
async fn a_malformed_ca_certificate_is_refused() {
    let garbage = pem::encode(&pem::Pem::new("CERTIFICATE", b"garbage".to_vec()));
    let kubeconfig = with(
        "/clusters/0/cluster/certificate-authority-data",
        json!(BASE64.encode(garbage.as_bytes())),
    );

    let refused = parse(&kubeconfig).unwrap().access(&cluster()).unwrap_err();

    assert_eq!(refused, KubeconfigRefused::NoClient);
}

#[tokio::test]
async fn the_key_of_another_certificate_is_refused() {
    let other = valid().pointer(USER).unwrap()["client-key-data"].clone();

    let refused = parse(&with("/users/0/user/client-key-data", other))
        .unwrap()
        .access(&cluster())
        .unwrap_err();

    assert_eq!(refused, KubeconfigRefused::NoClient);
}
