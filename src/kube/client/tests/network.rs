//! Tests of connections: names, CA certificates, and servers that do not respond.

use std::net::TcpListener;

use kubelet_authenticator_test_support::api_server::{ConnectionFault, OTHER_NAME};
use kubelet_authenticator_test_support::pki::CertificateAuthority;

use super::*;
use crate::failure::Failure;

const UNKNOWN_AUTHORITY: &str = "the server's certificate is not signed by the cluster's CA";

#[test]
fn a_server_that_sends_no_response_times_out() {
    for fault in [ConnectionFault::SilentAtTcp, ConnectionFault::SilentAtTls] {
        let server = ApiServer::start();
        server.inject_connection(Times::always(), fault);
        let began = Instant::now();
        let error = client(&server).get(NAME, short()).unwrap_err();

        assert!(
            is(&error, "did not respond in time"),
            "{fault:?}: {error:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(10), "{fault:?}");
    }
}

#[test]
fn a_refused_or_lost_connection_is_reported_as_unreachable() {
    let server = ApiServer::start();
    server.inject_connection(Times::always(), ConnectionFault::Close);
    let error = client(&server).get(NAME, short()).unwrap_err();
    assert!(is(&error, "cannot reach"), "{error:?}");

    let error = read_with(Fault::Cut, short());
    assert!(is(&error, "cannot reach"), "{error:?}");

    let free = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let fields = EndpointFields {
        server: format!("https://{free}"),
        ..fields(&server)
    };
    let error = connect(fields, &token())
        .unwrap()
        .get(NAME, short())
        .unwrap_err();
    assert!(is(&error, "cannot reach"), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_host_without_an_address_is_unreachable() {
    let server = ApiServer::start();
    let fields = EndpointFields {
        server: "https://nowhere.invalid".to_owned(),
        ..fields(&server)
    };
    let error = connect(fields, &token())
        .unwrap()
        .get(NAME, short())
        .unwrap_err();

    assert!(is(&error, "cannot reach"), "{error:?}");
}

#[test]
fn no_request_is_sent_to_a_server_with_an_untrusted_certificate() {
    for (fault, expected) in [
        (ConnectionFault::AnotherAuthority, UNKNOWN_AUTHORITY),
        (
            ConnectionFault::AnotherName,
            "the server's certificate is not for \"127.0.0.1\"",
        ),
    ] {
        let server = ApiServer::start();
        server.inject_connection(Times::always(), fault);
        let error = client(&server).get(NAME, soon()).unwrap_err();

        assert!(is(&error, "TLS with"), "{error:?}");
        assert_eq!(error.kind, ApiErrorKind::Other);
        assert!(error.to_string().ends_with(expected), "{error}");
        assert!(server.requests().is_empty());
    }
}

#[test]
fn an_invalid_server_certificate_date_is_reported_with_both_clocks() {
    // The validity period starts one hour from now, or ends one hour from now.
    for (fault, words, sign, cure) in [
        (
            ConnectionFault::ExpiredCertificate,
            "expired at",
            -1,
            "renew the API server's certificate, or set the clock of this machine with NTP",
        ),
        (
            ConnectionFault::NotYetValidCertificate,
            "is not valid before",
            1,
            "set the clock of this machine with NTP",
        ),
    ] {
        let server = ApiServer::start();
        server.inject_connection(Times::always(), fault);
        let error = client(&server).get(NAME, soon()).unwrap_err();

        assert_eq!(error.kind, ApiErrorKind::Other);
        let failure = Failure::from(error);
        assert_eq!(failure.code(), Code::Unreachable);
        assert_eq!(failure.remedy(), cure);
        let times = failure
            .what()
            .split_once(&format!(" failed: the server's certificate {words} "));
        let (limit, now) = times
            .unwrap()
            .1
            .split_once(" (clock of this machine: ")
            .unwrap();
        let [limit, now] = [limit, now.trim_end_matches(')')].map(|time| {
            let time = humantime::parse_rfc3339(time).unwrap();
            i64::try_from(crate::clock::unix_seconds(time)).unwrap()
        });
        // The certificate is created before the connection, so the difference can vary.
        assert!((3500..=3700).contains(&(sign * (limit - now))), "{failure}");
        assert!(server.requests().is_empty());
    }
}

#[test]
fn a_different_ca_with_the_same_name_is_not_trusted() {
    let server = ApiServer::start();
    let other = CertificateAuthority::new("kubernetes");
    let fields = EndpointFields {
        ca_pem: other.certificate_pem().to_owned(),
        ..fields(&server)
    };
    let error = connect(fields, &token())
        .unwrap()
        .get(NAME, soon())
        .unwrap_err();

    assert!(is(&error, "TLS with"), "{error:?}");
    assert_eq!(error.kind, ApiErrorKind::Other);
    assert!(error.to_string().ends_with(UNKNOWN_AUTHORITY), "{error}");
}

#[test]
fn an_unreadable_ca_is_ignored_if_the_bundle_has_a_readable_one() {
    let server = ApiServer::start();
    let unreadable = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let with = |ca_pem: String| {
        let fields = EndpointFields {
            ca_pem,
            ..fields(&server)
        };
        connect(fields, &token())
    };

    let client = with(format!("{unreadable}{}", server.ca_pem())).unwrap();
    assert!(client.get(NAME, soon()).unwrap().is_none());

    let error = with(unreadable.to_owned()).unwrap_err();
    assert!(
        error.failure.code() == Code::Configuration
            && is(&error, "it is not a list of PEM certificates"),
        "{error:?}"
    );
}

#[test]
fn every_ca_of_a_bundle_is_trusted() {
    let server = ApiServer::start();
    let other = CertificateAuthority::new("kubernetes");
    let ca_pem = format!("{}{}", other.certificate_pem(), server.ca_pem());
    let client = connect(
        EndpointFields {
            ca_pem,
            ..fields(&server)
        },
        &token(),
    )
    .unwrap();

    assert_eq!(client.get(NAME, soon()).unwrap(), None);
}

#[test]
fn a_client_certificate_is_presented() {
    let server = ApiServer::start();
    let pair = server.client_certificate(Subject::node("n1"));
    let login = Login::ClientCertificate {
        chain_pem: pair.certificate_pem.clone(),
        key_pem: Secret::new(pair.key_pem.clone()),
    };

    assert_eq!(
        connect(fields(&server), &login)
            .unwrap()
            .get(NAME, soon())
            .unwrap(),
        None
    );
    assert_eq!(server.requests()[0].user.as_deref(), Some("system:node:n1"));
}

#[test]
fn the_label_of_a_client_key_does_not_determine_its_format() {
    let server = ApiServer::start();
    let pair = server.client_certificate(Subject::node("n1"));
    let traditional = pki::traditional_key(&pair.key_pem);
    for key in [
        pair.key_pem.replace(" PRIVATE KEY", " RSA PRIVATE KEY"),
        traditional.replace(" EC PRIVATE KEY", " PRIVATE KEY"),
    ] {
        let login = Login::ClientCertificate {
            chain_pem: pair.certificate_pem.clone(),
            key_pem: Secret::new(key),
        };
        let client = connect(fields(&server), &login).unwrap();
        assert_eq!(client.get(NAME, soon()).unwrap(), None);
    }
}

#[test]
fn an_unusable_client_key_is_reported_without_library_names() {
    let server = ApiServer::start();
    let [pair, other] = [1, 2].map(|_| server.client_certificate(Subject::node("n1")));
    let unknown = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
    for (key, why) in [
        (
            &*other.key_pem,
            "the client key does not match the client certificate",
        ),
        (
            unknown,
            "the type or format of the client key is not supported",
        ),
    ] {
        let login = Login::ClientCertificate {
            chain_pem: pair.certificate_pem.clone(),
            key_pem: Secret::new(key.to_owned()),
        };

        let error = connect(fields(&server), &login).unwrap_err();

        let expected = format!("cannot connect to {}: {why}", server.url());
        assert_eq!(error.failure.what(), expected);
        assert_eq!(error.failure.code(), Code::Configuration);
    }
}

#[test]
fn the_tls_server_name_can_differ_from_the_host_name() {
    let server = ApiServer::start();
    let named = |name: &str| {
        let tls_server_name = Some(name.to_owned());
        connect(
            EndpointFields {
                tls_server_name,
                ..fields(&server)
            },
            &token(),
        )
        .unwrap()
    };

    assert_eq!(
        named("kubernetes.default.svc").get(NAME, soon()).unwrap(),
        None
    );

    let error = named("other.example").get(NAME, soon()).unwrap_err();
    assert!(is(&error, "TLS with"), "{error:?}");
    assert_eq!(error.kind, ApiErrorKind::Other);
    assert!(
        error
            .to_string()
            .ends_with("the server's certificate is not for \"other.example\""),
        "{error}"
    );

    server.inject_connection(Times::always(), ConnectionFault::AnotherName);
    assert_eq!(named(OTHER_NAME).get(NAME, soon()).unwrap(), None);
}

#[test]
fn the_tls_server_name_can_be_an_address_or_end_with_a_dot() {
    let server = ApiServer::start();
    let port = server.address().port();
    let get = |host: &str, name: &str| {
        let fields = EndpointFields {
            server: format!("https://{host}:{port}"),
            tls_server_name: Some(name.to_owned()),
            ..fields(&server)
        };
        connect(fields, &token()).unwrap().get(NAME, soon())
    };

    for (host, name) in [
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "kubernetes.default.svc."),
        ("127.0.0.1", "LOCALHOST"),
    ] {
        assert_eq!(get(host, name).unwrap(), None, "{host} {name}");
    }
    let error = get("127.0.0.1", "127.0.0.2").unwrap_err();
    assert!(is(&error, "is not for \"127.0.0.2\""), "{error}");
}

#[test]
fn the_error_reports_a_server_without_tls() {
    let fields = EndpointFields {
        server: format!("https://{}", answering("HTTP/1.1 400 Bad Request\r\n\r\n")),
        ..fields(&ApiServer::start())
    };
    let error = connect(fields, &token())
        .unwrap()
        .get(NAME, soon())
        .unwrap_err();

    assert!(is(&error, "does not respond with TLS"), "{error}");
}
