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
fn a_server_that_is_not_a_plain_https_url_is_refused() {
    for (server, why) in [
        ("", Refused::Missing),
        ("http://203.0.113.7:6443", Refused::NotHttps),
        ("unix:///run/x.sock", Refused::NotHttps),
        ("file:///etc/passwd", Refused::NotHttps),
        ("api.example:6443", Refused::NotHttps),
        ("203.0.113.7:6443", Refused::NotAUrl),
        ("api.example", Refused::NotAUrl),
        ("/relative", Refused::NotAUrl),
        ("https://", Refused::NotAUrl),
        ("https://:6443", Refused::NotAUrl),
        ("https://0123456789abcdef x", Refused::NotAUrl),
        ("https://u:0123456789abcdef@api.example", Refused::NotAUrl),
        ("https://@api.example", Refused::NotAUrl),
        ("https://api.example/?a=b", Refused::NotAUrl),
        ("https://api.example#a", Refused::NotAUrl),
    ] {
        check_field("server", json!(server), [Some(why); 2]);
    }
    check_field("server", Value::Null, [Some(Refused::Missing); 2]);
}

#[test]
fn a_server_is_verified_with_the_ca_certificates_of_its_cluster() {
    let broken = certificate("CA").replacen("-----END", "----END", 1);
    for (ca, why) in [
        (Value::Null, Refused::NoCa),
        (json!(""), Refused::NoCa),
        (base64(" \n"), Refused::NoCa),
        (json!("?"), Refused::NotBase64),
        (base64("CA"), Refused::NotCertificates),
        (base64([0xff]), Refused::NotCertificates),
        (base64(broken), Refused::NotCertificates),
        (base64(key()), Refused::NotCertificates),
    ] {
        check_field(CA, ca, [Some(why); 2]);
    }
    let most = base64(certificate("CA").repeat(16));
    check_field(CA, most, [None; 2]);
    let more = base64(certificate("CA").repeat(17));
    check_field(CA, more, [None, Some(Refused::TooMany(16))]);
    let why = [Some(Refused::SkipsVerification); 2];
    check_field("insecure-skip-tls-verify", json!(true), why);
}

#[test]
fn only_a_machine_kubeconfig_can_name_a_proxy_and_a_file() {
    for (url, of_machine) in [
        ("http://10.0.0.1:3128", None),
        ("https://u:0123456789abcdef@proxy", None),
        ("socks5://proxy", None),
        ("socks4://proxy", Some(Refused::ProxyScheme)),
        ("proxy", Some(Refused::NotAProxy)),
        ("http://u:0123456789abcdef#@proxy", Some(Refused::NotAProxy)),
    ] {
        check_field("proxy-url", json!(url), [of_machine, Some(Refused::Proxy)]);
    }
    let why = [None, Some(Refused::File)];
    check_field("certificate-authority", json!("ca.crt"), why);
}

#[test]
fn a_tls_server_name_is_a_dns_name_or_an_address() {
    for name in ["192.0.2.1", "2001:db8::1", "api.example.", "my_api", "API"] {
        check_field("tls-server-name", json!(name), [None; 2]);
    }
    let why = [Some(Refused::NotAServerName); 2];
    check_field("tls-server-name", json!("no name"), why);
}

#[test]
fn only_base64_of_a_machine_can_have_line_breaks_and_unused_bits() {
    let why = [None, Some(Refused::NotBase64)];
    for characters in ["\n", "\r\n", "\r"] {
        check_field(CA, broken_by(characters, certificate("CA")), why);
    }
    let text = BASE64_STANDARD.encode(certificate("CA!"));
    let unused = text.strip_suffix("o=").or(text.strip_suffix("Cg=="));
    let unused = match unused {
        Some(rest) if rest.len() % 4 == 2 => format!("{rest}p="),
        Some(rest) => format!("{rest}Ch=="),
        None => panic!("{text}"),
    };
    check_field(CA, json!(unused), why);
    for characters in [" ", "\t", "-"] {
        let value = broken_by(characters, certificate("CA"));
        check_field(CA, value, [Some(Refused::NotBase64); 2]);
    }
}

#[test]
fn only_certificates_of_a_machine_can_have_text_around_them() {
    let why = [None, Some(Refused::NotCertificates)];
    let encoded = base64(latin2(&certificate("CA")));
    check_field(CA, encoded, why);

    let broken = "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n";
    for text in [
        format!("{broken}{}", certificate("CA")),
        format!("{}{broken}", certificate("CA")),
        format!("{}-----BEGIN CERTIFICATE-----\n", certificate("CA")),
        format!("-----BEGIN CERTIFICATE-----\nMAA=\n{}", certificate("CA")),
        certificate("CA").replace('\n', "\t\n"),
    ] {
        check_field(CA, base64(&text), why);
        assert_eq!(endpoint(&with_field(CA, base64(text))).ca().len(), 1);
    }
    // Text between blocks, other blocks and CRLF have no effect with either policy.
    let text = format!("subject=CA\n{}{}", key(), certificate("CA")).replace('\n', "\r\n");
    check_field(CA, base64(text), [None; 2]);

    let mut file = with_field(CA, json!(""));
    file["clusters"][1]["cluster"]["certificate-authority"] = json!("latin2.crt");
    let endpoint = endpoint(&file);
    assert_eq!(endpoint.ca(), [b"CA of the file".to_vec().into()]);
    // The text form of the endpoint can be parsed again.
    let again = ClusterEndpoint::from_fields(endpoint.to_fields(), "the store").unwrap();
    assert_eq!(again.ca(), endpoint.ca());
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
fn inline_certificates_take_precedence_over_a_file() {
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
fn the_tls_server_name_and_the_proxy_are_read() {
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
fn the_server_address_is_the_host_in_the_url() {
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
fn a_stored_endpoint_is_read_and_checked_again() {
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
fn endpoints_with_a_common_server_or_ca_belong_to_one_cluster() {
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
