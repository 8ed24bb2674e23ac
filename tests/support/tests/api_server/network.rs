//! Faults of connections and answers.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Fault, OTHER_NAME, Route, TOKEN, Times, Verb,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use crate::client::{CSRS, Caller, DEADLINE, csr, read};

/// Long enough to tell slow from absent, short enough to wait for.
const PACE: Duration = Duration::from_millis(20);

/// Longer than anything that is answered takes.
const SILENCE: Duration = Duration::from_millis(300);

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn connect(server: &ApiServer, name: &str) -> Tls {
    let mut roots = RootCertStore::empty();
    roots.add(server.authority().certificate_der()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let tcp = TcpStream::connect(server.address()).unwrap();
    tcp.set_read_timeout(Some(DEADLINE)).unwrap();
    StreamOwned::new(ClientConnection::new(config.into(), name).unwrap(), tcp)
}

fn ask(server: &ApiServer) -> Tls {
    let mut stream = connect(server, "localhost");
    write!(
        stream,
        "GET {CSRS}/a HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
    )
    .unwrap();
    stream
}

fn handshake_error(fault: ConnectionFault) -> String {
    let server = ApiServer::start();
    server.inject_connection(Times::once(), fault);
    let mut stream = connect(&server, "127.0.0.1");
    let error = stream.write_all(b"x").unwrap_err().to_string();
    assert_eq!(server.connections(), 1);
    error
}

#[test]
fn certificates_that_no_client_takes() {
    let unknown = handshake_error(ConnectionFault::AnotherAuthority);
    assert!(
        unknown.contains("UnknownIssuer") || unknown.contains("BadSignature"),
        "{unknown}"
    );
    let name = handshake_error(ConnectionFault::AnotherName);
    assert!(name.contains("not valid for name"), "{name}");
    let expired = handshake_error(ConnectionFault::ExpiredCertificate);
    assert!(expired.contains("expired"), "{expired}");
}

#[test]
fn the_other_name_is_taken_by_who_expects_it() {
    let server = ApiServer::start();
    server.inject_connection(Times::once(), ConnectionFault::AnotherName);

    connect(&server, OTHER_NAME).write_all(b"x").unwrap();
}

#[test]
fn connections_that_never_speak() {
    for fault in [ConnectionFault::SilentAtTcp, ConnectionFault::SilentAtTls] {
        let server = ApiServer::start();
        server.inject_connection(Times::once(), fault);
        let mut stream = connect(&server, "localhost");
        stream.sock.set_read_timeout(Some(SILENCE)).unwrap();
        let error = stream.write_all(b"x").unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            "{error}"
        );
    }
}

#[test]
fn a_connection_that_is_closed_at_once() {
    let server = ApiServer::start();
    server.inject_connection(Times::once(), ConnectionFault::Close);

    assert!(Caller::bootstrap(&server).try_get("/readyz").is_err());
    assert_eq!(Caller::bootstrap(&server).get("/readyz").status(), 200);
}

#[test]
fn a_request_that_is_never_answered() {
    let server = ApiServer::start();
    server.inject(Route::get(), Times::once(), Fault::Hang);

    let mut stream = ask(&server);
    server.wait_for_request(Verb::Get, 1, DEADLINE);
    stream.sock.set_read_timeout(Some(SILENCE)).unwrap();
    let error = stream.read(&mut [0; 1]).unwrap_err();

    assert!(
        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        "{error}"
    );
    assert_eq!(server.requests()[0].code, None);
}

#[test]
fn statuses_come_so_many_times() {
    let server = ApiServer::start();
    let caller = Caller::bootstrap(&server);
    server.inject(
        Route::create(),
        Times::first(2),
        Fault::too_many_requests(7),
    );
    server.inject(Route::create(), Times::after(1), Fault::status(503));

    let first = caller.post(CSRS, &csr("a", "node-1"));
    assert_eq!(first.headers()["retry-after"], "7");
    assert_eq!(read(first).1["reason"], "TooManyRequests");
    let codes = [0; 4].map(|_| caller.post(CSRS, &csr("a", "node-1")).status().as_u16());
    assert_eq!(codes, [429, 201, 503, 409]);
}

#[test]
fn faults_end_when_they_are_cleared() {
    let server = ApiServer::start();
    server.inject(Route::any(), Times::always(), Fault::status(500));
    let caller = Caller::bootstrap(&server);
    assert_eq!(caller.get("/readyz").status(), 500);

    server.clear_faults();

    assert_eq!(caller.get("/readyz").status(), 200);
}

#[test]
fn an_answer_is_lost_after_the_write() {
    for (fault, stored) in [(Fault::LoseAnswer, 1), (Fault::Cut, 0)] {
        let server = ApiServer::start();
        server.inject(Route::create(), Times::once(), fault);

        assert!(
            Caller::bootstrap(&server)
                .try_post(CSRS, &csr("a", "node-1"))
                .is_err()
        );
        assert_eq!(server.csrs().len(), stored);
    }
}

#[test]
fn a_head_that_trickles() {
    let server = ApiServer::start();
    server.inject(
        Route::get(),
        Times::once(),
        Fault::TrickleHead { every: PACE },
    );
    let mut stream = ask(&server);
    let mut start = [0; 8];
    let began = Instant::now();

    for byte in start.chunks_mut(1) {
        assert_eq!(stream.read(byte).unwrap(), 1);
    }

    assert_eq!(&start, b"HTTP/1.1");
    assert!(began.elapsed() >= 7 * PACE, "{:?}", began.elapsed());
}

#[test]
fn a_body_that_trickles() {
    let server = ApiServer::start();
    server.inject(
        Route::get(),
        Times::once(),
        Fault::TrickleBody { every: PACE },
    );
    let mut response = Caller::bootstrap(&server).get(&format!("{CSRS}/a"));
    let began = Instant::now();
    let mut start = [0; 8];

    response.read_exact(&mut start).unwrap();

    assert_eq!(&start[..7], b"{\"apiVe");
    assert!(began.elapsed() >= 6 * PACE, "{:?}", began.elapsed());
}

#[test]
fn a_hundred_megabytes() {
    const SIZE: usize = 100 * 1024 * 1024;
    let server = ApiServer::start();
    server.inject(Route::get(), Times::once(), Fault::HugeBody { size: SIZE });

    let body = Caller::bootstrap(&server)
        .get(&format!("{CSRS}/a"))
        .bytes()
        .unwrap();

    assert_eq!(body.len(), SIZE);
    assert!(body.starts_with(b"{\"padding\":\"xxx") && body.ends_with(b"x\"}"));
}

#[test]
fn a_redirect_to_another_server() {
    let (server, other) = (ApiServer::start(), ApiServer::start());
    server.inject(
        Route::get(),
        Times::once(),
        Fault::Redirect { to: other.url() },
    );

    let response = Caller::bootstrap(&server).get(&format!("{CSRS}/a"));

    assert_eq!(response.status(), 302);
    assert_eq!(
        response.headers()["location"],
        format!("{}{CSRS}/a", other.url())
    );
}

#[test]
fn dates_are_as_skewed_as_the_test_says() {
    let server = ApiServer::start();
    let caller = Caller::bootstrap(&server);
    let off = |expected: i64| {
        let response = caller.get("/readyz");
        let date = response.headers()["date"].to_str().unwrap();
        let date = httpdate::parse_http_date(date).unwrap();
        let unix = |time: std::time::SystemTime| {
            i64::try_from(
                time.duration_since(std::time::UNIX_EPOCH)
                    .unwrap()
                    .as_secs(),
            )
            .unwrap()
        };
        let now = unix(kubelet_authenticator_test_support::clock::now());
        assert!(
            (unix(date) - now - expected).abs() <= 2,
            "{date:?} is not {expected} s off"
        );
    };

    off(0);
    server.set_date_skew(-3600);
    off(-3600);
    server.inject(
        Route::any(),
        Times::once(),
        Fault::DateSkew { seconds: 86400 },
    );
    off(86400);
}

#[test]
fn an_answer_that_is_no_json() {
    let server = ApiServer::start();
    server.inject(Route::any(), Times::once(), Fault::not_json());

    let response = Caller::bootstrap(&server).get(CSRS);

    assert_eq!(response.status(), 200);
    assert!(response.text().unwrap().starts_with("<html>"));
}

#[test]
fn a_squatter_was_there_first() {
    let server = ApiServer::start();
    let spec = json!({"usages": ["client auth"], "username": "system:bootstrap:other0"});
    server.inject(Route::create(), Times::once(), Fault::Squat { spec });
    let body = csr("a", "node-1");

    assert_eq!(Caller::bootstrap(&server).post(CSRS, &body).status(), 409);

    let stored = server.csr("a").unwrap();
    assert_eq!(stored["spec"]["request"], body["spec"]["request"]);
    assert_eq!(stored["spec"]["usages"], json!(["client auth"]));
}

#[test]
fn an_answer_can_be_changed() {
    let server = ApiServer::start();
    let caller = Caller::bootstrap(&server);
    caller.post(CSRS, &csr("a", "node-1"));
    let patch = json!({"spec": {"request": "eA=="}});
    server.inject(
        Route::get().named("a"),
        Times::once(),
        Fault::Merge { patch },
    );

    assert_eq!(
        read(caller.get(&format!("{CSRS}/a"))).1["spec"]["request"],
        "eA=="
    );
    assert_ne!(
        read(caller.get(&format!("{CSRS}/a"))).1["spec"]["request"],
        "eA=="
    );
}

#[test]
fn open_connections_can_be_dropped() {
    let server = ApiServer::start();
    let mut stream = connect(&server, "localhost");
    stream.write_all(b"GET ").unwrap();
    Caller::bootstrap(&server).get("/readyz");

    server.drop_connections();

    assert!(stream.read(&mut [0; 1]).is_err());
}
