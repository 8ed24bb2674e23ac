//! Tests of proxies.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use kubelet_authenticator_test_support::connect_proxy::ConnectProxy;

use super::*;
use crate::failure::Failure;

#[test]
fn the_proxy_of_the_kubeconfig_is_used() {
    let server = ApiServer::start();
    let proxy = ConnectProxy::start();
    let fields = EndpointFields {
        proxy_url: Some(proxy.url()),
        ..fields(&server)
    };

    assert_eq!(
        connect(fields, &token())
            .unwrap()
            .get(NAME, soon())
            .unwrap(),
        None
    );
    assert_eq!(proxy.connects(), [server.address().to_string()]);
}

#[test]
fn the_environment_proxy_is_ignored_for_loopback_or_a_set_proxy() {
    let server = ApiServer::start();
    let (theirs, ours) = (ConnectProxy::start(), ConnectProxy::start());
    let environment = |name: &str| (name == "HTTPS_PROXY").then(|| OsString::from(theirs.url()));
    let read = |proxy_url| {
        let fields = EndpointFields {
            proxy_url,
            ..fields(&server)
        };
        let endpoint = ClusterEndpoint::from_fields(fields, "a test").unwrap();
        ApiClient::connect(&endpoint, &token(), &environment)
            .unwrap()
            .get(NAME, soon())
            .unwrap()
    };

    assert_eq!(read(None), None);
    assert_eq!(read(Some(ours.url())), None);
    assert_eq!(theirs.connects(), [""; 0]);
    assert_eq!(ours.connects().len(), 1);
}

#[test]
fn the_environment_proxy_is_used_for_remote_servers() {
    let server = ApiServer::start();
    let proxy = ConnectProxy::start();
    let environment = |name: &str| (name == "HTTPS_PROXY").then(|| OsString::from(proxy.url()));
    let fields = EndpointFields {
        server: "https://api.invalid".to_owned(),
        ..fields(&server)
    };
    let endpoint = ClusterEndpoint::from_fields(fields, "a test").unwrap();
    let client = ApiClient::connect(&endpoint, &token(), &environment).unwrap();

    let error = client.get(NAME, short()).unwrap_err();
    let words = format!(
        "the proxy {} (HTTPS_PROXY) does not connect to https://api.invalid: status 502",
        proxy.url()
    );
    assert!(is(&error, &words), "{error:?}");
    let connects = proxy.connects();
    assert!(
        connects.iter().all(|asked| asked == "api.invalid:443"),
        "{connects:?}"
    );
}

/// A client for a server that is not on loopback. The environment contains this proxy.
fn behind(proxy: &str) -> Result<ApiClient, ApiError> {
    let server = ApiServer::start();
    let fields = EndpointFields {
        server: "https://api.invalid".to_owned(),
        ..fields(&server)
    };
    let environment = |name: &str| (name == "HTTPS_PROXY").then(|| OsString::from(proxy));
    let endpoint = ClusterEndpoint::from_fields(fields, "a test").unwrap();
    ApiClient::connect(&endpoint, &token(), &environment)
}

#[test]
fn a_proxy_failure_names_the_proxy_its_source_and_its_status() {
    let free = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let forbidding = answering("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
    let asking = answering("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
    let odd = answering("HTTP/1.1 501 Not Implemented\r\n\r\n");
    let no_proxy = answering("nothing that is HTTP\r\n\r\n");
    let (passes, decides) = (ApiErrorKind::Unavailable, ApiErrorKind::Other);
    for (address, words, kind) in [
        (free.to_string(), "Connection refused", passes),
        ("proxy.invalid:3128".to_owned(), "cannot reach", passes),
        (forbidding.to_string(), "status 403 Forbidden", decides),
        (asking.to_string(), "status 407 Proxy Auth", decides),
        (odd.to_string(), "status 501 Not Implemented", passes),
        (no_proxy.to_string(), "does not connect to", passes),
    ] {
        let proxy = format!("http://user:0123456789abcdef@{address}");
        let error = behind(&proxy).unwrap().get(NAME, short()).unwrap_err();

        assert_eq!(error.kind, kind, "{error:?}");
        let named = format!("the proxy http://{address} (HTTPS_PROXY)");
        assert!(is(&error, &named) && is(&error, words), "{error}");
        let failure = Failure::from(error);
        assert!(failure.remedy().contains("NO_PROXY"), "{failure:?}");
        assert!(
            !format!("{failure:?}").contains("0123456789abcdef"),
            "{failure:?}"
        );
    }
}

#[test]
fn following_the_hints_for_a_proxy_failure_reaches_the_api_server() {
    let server = ApiServer::start();
    let forbidding = answering("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
    let proxy = format!("http://{forbidding}");
    // The client ignores the environment's proxy for loopback addresses. Linux also connects this address to loopback.
    let elsewhere = EndpointFields {
        server: server.url().replace("127.0.0.1", "0.0.0.0"),
        tls_server_name: Some("127.0.0.1".to_owned()),
        ..fields(&server)
    };
    let own = EndpointFields {
        proxy_url: Some(proxy.clone()),
        ..fields(&server)
    };
    let read = |fields: &EndpointFields, no_proxy: &str| {
        let environment = |name: &str| match name {
            "HTTPS_PROXY" => Some(OsString::from(&proxy)),
            "NO_PROXY" => Some(OsString::from(no_proxy)),
            _ => None,
        };
        let endpoint = ClusterEndpoint::from_fields(fields.clone(), "a test").unwrap();
        let client = ApiClient::connect(&endpoint, &token(), &environment).unwrap();
        client.get(NAME, soon())
    };
    for fields in [&elsewhere, &own] {
        let error = read(fields, "10.0.0.1").unwrap_err();
        assert!(is(&error, "status 403 Forbidden"), "{error}");
        let failure = Failure::from(error);
        let hint = "or add the API server to NO_PROXY, or remove proxy-url from the kubeconfig";
        assert!(failure.remedy().ends_with(hint), "{failure:?}");
    }

    let added = read(&elsewhere, "10.0.0.1,0.0.0.0").unwrap();
    let removed = EndpointFields {
        proxy_url: None,
        ..own
    };
    let removed = read(&removed, "10.0.0.1").unwrap();

    assert_eq!((added, removed), (None, None));
}

#[test]
fn a_refusal_by_the_proxy_is_not_retried() {
    let asked = ConnectProxy::asking_for("Basic nobody");
    let fields = fields(&ApiServer::start());
    let proxy_url = Some(asked.url());
    let client = connect(
        EndpointFields {
            proxy_url,
            ..fields
        },
        &token(),
    )
    .unwrap();

    let error = client.get(NAME, soon()).unwrap_err();
    assert!(is(&error, "(proxy-url)") && is(&error, "407"), "{error}");
    // The second request only reads the status of the first.
    assert_eq!(asked.refusals(), 2);
}

#[test]
fn an_unusable_proxy_is_refused_with_its_variable() {
    for url in [
        "http://user:p#0123456789abcdef@10.0.0.2:3128",
        "socks4://10.0.0.2:1080",
    ] {
        let error = behind(url).unwrap_err();

        assert_eq!(error.failure.code(), Code::Configuration);
        assert!(is(&error, "HTTPS_PROXY: "), "{error}");
        let failure = Failure::from(error);
        assert!(failure.remedy().contains("variable"), "{failure:?}");
        assert!(
            !format!("{failure:?}").contains("0123456789abcdef"),
            "{failure:?}"
        );
    }
}

/// A SOCKS5 proxy that connects to `server`, regardless of the requested address. It sends the bytes of each
/// request to the channel.
fn socks5(server: SocketAddr) -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = mpsc::channel();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut greeting = [0; 3];
            client.read_exact(&mut greeting).unwrap();
            client.write_all(&[5, 0]).unwrap();
            let mut request = [0; 300];
            let len = client.read(&mut request).unwrap();
            sender.send(request[..len].to_vec()).unwrap();
            client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
            let upstream = TcpStream::connect(server).unwrap();
            let (mut from, mut to) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut from, mut to) = (client, upstream);
            thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
    });
    (address, asked)
}

#[test]
fn a_socks_proxy_is_used_and_resolves_the_server_name() {
    let server = ApiServer::start();
    let (proxy, asked) = socks5(server.address());
    let of = |tls_server_name: Option<&str>, host: &str| {
        let fields = EndpointFields {
            server: format!("https://{host}:{}", server.address().port()),
            proxy_url: Some(format!("socks5://{proxy}")),
            tls_server_name: tls_server_name.map(str::to_owned),
            ..fields(&server)
        };
        let client = connect(fields, &token()).unwrap();
        assert_eq!(client.get(NAME, soon()).unwrap(), None);
        asked.recv().unwrap()
    };

    let request = of(None, "kubernetes.default.svc");
    assert!(
        request
            .windows(22)
            .any(|bytes| bytes == b"kubernetes.default.svc"),
        "{request:?}"
    );
    let request = of(Some("kubernetes"), "127.0.0.1");
    assert_eq!(request[..8], [5, 1, 0, 1, 127, 0, 0, 1]);
}

#[test]
fn an_http_proxy_connects_to_the_host_of_a_server_with_another_name() {
    let server = ApiServer::start();
    let proxy = ConnectProxy::start();
    let named = |name: &str| EndpointFields {
        proxy_url: Some(proxy.url()),
        tls_server_name: Some(name.to_owned()),
        ..fields(&server)
    };

    let client = connect(named("kubernetes"), &token()).unwrap();
    assert_eq!(client.get(NAME, soon()).unwrap(), None);
    assert_eq!(proxy.connects(), [server.address().to_string()]);

    let client = connect(named("other.example"), &token()).unwrap();
    let error = client.get(NAME, soon()).unwrap_err();
    assert!(is(&error, "is not for \"other.example\""), "{error}");
}

#[test]
fn a_failure_of_a_socks_or_https_proxy_names_the_proxy() {
    let free = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap();
    // This proxy accepts the authentication method, and then rejects the connection.
    let refusing = answering("\x05\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00");
    let other = ApiServer::start();
    for (url, words) in [
        (format!("socks5://{free}"), "cannot reach the proxy"),
        (format!("socks5://{refusing}"), "does not connect to"),
        (format!("https://{free}"), "cannot reach the proxy"),
        (other.url(), "TLS with the proxy"),
    ] {
        let error = behind(&url).unwrap().get(NAME, short()).unwrap_err();

        let named = format!("the proxy {url} (HTTPS_PROXY)");
        assert!(is(&error, &named) && is(&error, words), "{error}");
    }
}
