//! Clusters and endpoints.

use core::net::IpAddr;

use super::*;
use crate::names::Audience;

const CA: &str = "certificate-authority-data";

fn with_field(field: &str, value: Value) -> Value {
    with(&format!("{CLUSTER}/{field}"), value)
}

fn endpoint(kubeconfig: &Value) -> ClusterEndpoint {
    parse(kubeconfig, Machine).unwrap().0
}

fn check_field(field: &str, value: Value, why: [Option<Refused>; 2]) {
    let places = [
        format!("cluster \"c1\": {field}"),
        format!("cluster: {field}"),
    ];
    let places = places.each_ref().map(String::as_str);
    check(&with_field(field, value), places, why);
}

#[test]
fn the_cluster_of_the_current_context_is_read() {
    let endpoint = endpoint(&valid());

    assert_eq!(endpoint.server(), "https://api.example:6443");
    assert_eq!(endpoint.url().as_str(), "https://api.example:6443/");
    assert_eq!(endpoint.ca(), [b"CA".to_vec().into()]);
    assert_eq!(endpoint.ca_pem(), certificate("CA"));
    assert_eq!(endpoint.audience(), Audience::of_ca(b"CA"));
    assert_eq!(endpoint.tls_server_name(), None);
    assert!(endpoint.proxy().is_none());
}

#[test]
fn clusters_that_are_not_safe_are_refused() {
    let broken = certificate("CA").replacen("-----END", "----END", 1);
    for (field, value, why) in [
        (
            "insecure-skip-tls-verify",
            json!(true),
            Refused::SkipsVerification,
        ),
        (CA, Value::Null, Refused::NoCa),
        (CA, json!(""), Refused::NoCa),
        (CA, base64(" \n"), Refused::NoCa),
        (CA, json!("?"), Refused::NotBase64),
        (CA, base64("CA"), Refused::NotCertificates),
        (CA, base64([0xff]), Refused::NotCertificates),
        (CA, base64(broken), Refused::NotCertificates),
        (CA, base64(key()), Refused::NotCertificates),
        ("server", Value::Null, Refused::Missing),
        ("server", json!(""), Refused::Missing),
        (
            "server",
            json!("http://203.0.113.7:6443"),
            Refused::NotHttps,
        ),
        ("server", json!("unix:///run/x.sock"), Refused::NotHttps),
        ("server", json!("file:///etc/passwd"), Refused::NotHttps),
        ("server", json!("api.example:6443"), Refused::NotHttps),
        ("server", json!("203.0.113.7:6443"), Refused::NotAUrl),
        ("server", json!("api.example"), Refused::NotAUrl),
        ("server", json!("/relative"), Refused::NotAUrl),
        ("server", json!("https://"), Refused::NotAUrl),
        ("server", json!("https://:6443"), Refused::NotAUrl),
        (
            "server",
            json!("https://0123456789abcdef x"),
            Refused::NotAUrl,
        ),
        (
            "server",
            json!("https://u:0123456789abcdef@api.example"),
            Refused::NotAUrl,
        ),
        ("server", json!("https://@api.example"), Refused::NotAUrl),
        (
            "server",
            json!("https://api.example/?a=b"),
            Refused::NotAUrl,
        ),
        ("server", json!("https://api.example#a"), Refused::NotAUrl),
        ("tls-server-name", json!("no name"), Refused::NotAServerName),
    ] {
        check_field(field, value, [Some(why); 2]);
    }
}

#[test]
fn only_a_machine_has_a_proxy_a_file_and_many_certificates() {
    let of_tenant = |why| [None, Some(why)];
    let proxy = |why| [Some(why), Some(Refused::Proxy)];
    for (field, value, why) in [
        (
            "proxy-url",
            json!("http://10.0.0.1:3128"),
            of_tenant(Refused::Proxy),
        ),
        (
            "proxy-url",
            json!("https://u:0123456789abcdef@proxy"),
            of_tenant(Refused::Proxy),
        ),
        (
            "proxy-url",
            json!("socks5://proxy"),
            proxy(Refused::ProxyScheme),
        ),
        ("proxy-url", json!("proxy"), proxy(Refused::NotAUrl)),
        (
            "certificate-authority",
            json!("ca.crt"),
            of_tenant(Refused::File),
        ),
        (CA, base64(certificate("CA").repeat(16)), [None; 2]),
        (
            CA,
            base64(certificate("CA").repeat(17)),
            of_tenant(Refused::TooMany(16)),
        ),
    ] {
        check_field(field, value, why);
    }
}

#[test]
fn only_a_tenant_has_an_address_as_the_servers_name() {
    for name in ["192.0.2.1", "2001:db8::1"] {
        let why = [Some(Refused::AddressAsServerName), None];
        check_field("tls-server-name", json!(name), why);
    }
}

#[test]
fn a_proxy_is_not_used_with_a_server_of_another_name() {
    let mut kubeconfig = with_field("proxy-url", json!("http://proxy"));
    kubeconfig["clusters"][1]["cluster"]["tls-server-name"] = json!("kubernetes");

    let why = [Refused::ProxyWithServerName, Refused::Proxy].map(Some);
    check(
        &kubeconfig,
        ["cluster \"c1\": proxy-url", "cluster: proxy-url"],
        why,
    );
}

#[test]
fn harmless_fields_are_accepted() {
    for (field, value) in [
        ("server", json!("https://k8s.example.com/k8s/clusters/c-1")),
        ("server", json!("https://[2001:db8::1]:6443")),
        ("tls-server-name", json!("kubernetes.default")),
        ("tls-server-name", json!("")),
        ("insecure-skip-tls-verify", json!(false)),
        ("certificate-authority", json!("")),
        ("proxy-url", json!("")),
        ("disable-compression", json!(true)),
        ("extensions", json!([{"name": "x", "extension": {"a": 1}}])),
    ] {
        check_field(field, value, [None; 2]);
    }
}

#[test]
fn every_cluster_of_a_tenant_is_checked() {
    let pointer = "/clusters/0/cluster/proxy-url";

    let why = [None, Some(Refused::Proxy)];
    check(
        &with(pointer, json!("http://proxy")),
        ["", "cluster: proxy-url"],
        why,
    );
}

#[test]
fn inline_certificates_win_over_a_file() {
    let both = with_field("certificate-authority", json!("ca.crt"));
    assert_eq!(endpoint(&both).ca_pem(), certificate("CA"));

    let mut file = both;
    file["clusters"][1]["cluster"][CA] = json!("");
    assert_eq!(endpoint(&file).ca_pem(), certificate("CA of the file"));

    for (name, place, why) in [
        (
            "empty",
            "doc: cluster \"c1\": certificate-authority",
            Refused::NoCa,
        ),
        ("nowhere", "nowhere", Refused::Missing),
    ] {
        file["clusters"][1]["cluster"]["certificate-authority"] = json!(name);
        assert_eq!(refusal(&file, Machine), (place.to_owned(), why));
    }
}

#[test]
fn name_and_proxy_are_read() {
    let named = endpoint(&with_field("tls-server-name", json!("kubernetes")));
    assert_eq!(named.tls_server_name(), Some("kubernetes"));

    let url = "https://user:0123456789abcdef@proxy";
    let behind = endpoint(&with_field("proxy-url", json!(url)));
    assert_eq!(behind.proxy().unwrap().expose(), url);
    for shown in [format!("{behind:?}"), format!("{:?}", behind.to_fields())] {
        assert!(shown.contains("api.example"), "{shown}");
        assert!(!shown.contains("0123456789abcdef"), "{shown}");
    }
}

#[test]
fn the_servers_address_is_the_host_of_its_url() {
    for (host, address) in [
        ("localhost", None),
        ("203.0.113.7", Some("203.0.113.7")),
        ("[2001:db8::1]", Some("2001:db8::1")),
        ("2130706433", Some("127.0.0.1")),
    ] {
        let server = format!("https://{host}:6443");

        let expected = address.map(|address| address.parse::<IpAddr>().unwrap());
        assert_eq!(
            endpoint(&with_field("server", server.into())).address(),
            expected
        );
    }
}

#[test]
fn a_stored_endpoint_reads_back_and_is_checked_again() {
    for (field, value) in [
        ("tls-server-name", "kubernetes"),
        ("proxy-url", "http://proxy"),
    ] {
        let endpoint = endpoint(&with_field(field, json!(value)));
        let stored = serde_json::to_string(&endpoint.to_fields()).unwrap();
        let fields: EndpointFields = serde_json::from_str(&stored).unwrap();
        let again = ClusterEndpoint::from_fields(fields.clone(), "the store").unwrap();

        assert_eq!(again.to_fields(), endpoint.to_fields());
        assert_eq!(again.server(), "https://api.example:6443");
        assert_eq!(again.ca(), endpoint.ca());

        let ca_pem = String::new();
        let error = ClusterEndpoint::from_fields(EndpointFields { ca_pem, ..fields }, "the store");
        let InvalidKubeconfig { place, why } = error.unwrap_err();
        assert_eq!((place.as_str(), why), ("the store: caPem", Refused::NoCa));
    }
}

#[test]
fn endpoints_with_a_common_server_or_certificate_are_of_one_cluster() {
    let of = |server: &str, ca: &[&str]| {
        let fields = EndpointFields {
            server: server.to_owned(),
            ca_pem: ca.iter().copied().map(certificate).collect(),
            ..EndpointFields::default()
        };
        ClusterEndpoint::from_fields(fields, "the store").unwrap()
    };
    let first = of("https://a", &["old", "new"]);
    for (other, expected) in [
        (of("https://a/", &["old", "new"]), true),
        (of("https://a", &["other"]), true),
        (of("https://b", &["other", "new"]), true),
        (of("https://b", &["other"]), false),
    ] {
        assert_eq!(first.is_of_same_cluster(&other), expected, "{other:?}");
    }
}
