use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::client::response_limits::MANAGEMENT_CALLS_AT_ONCE;
use crate::shared::testing::most_visited;

#[tokio::test]
async fn a_handshake_consumes_the_processor_time_of_its_namespace() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let processor = Processor::slow();
    let share = Windows::of(NamedBy::Tenant).share("a");
    let connections = Connections {
        processor: Some(processor.clone()),
        ..connections_to(&listener, no_trust(), share)
    };
    tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        tcp.write_all(b"no TLS").await.unwrap();
    });

    let server = Uri::from_static("https://a.example");
    assert!(connections.connect(&server).await.is_err());

    assert!(processor.missing() > Duration::from_secs(1));
}

#[tokio::test]
async fn a_silent_connection_is_probed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap());
    let tcp = tcp.await.unwrap();
    assert!(!SockRef::from(&tcp).keepalive().unwrap());

    probe_while_idle(&tcp).unwrap();

    let socket = SockRef::from(&tcp);
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), PING_AFTER);
    assert_eq!(socket.tcp_keepalive_interval().unwrap(), PING_DEADLINE);
    assert_eq!(socket.tcp_keepalive_retries().unwrap(), PROBES);
}

fn without_connections(windows: Windows, share: Share) -> Connections {
    Connections {
        dial: BoxCloneSyncService::new(service_fn(|_| async { Err("unused".into()) })),
        tls: TlsConnector::from(Arc::new(no_trust())),
        server_name: None,
        windows,
        share,
        processor: None,
        patience: PATIENCE,
        open: Shared::new(Lock::Connections, Vec::new()),
        dialling: Turnstile::default(),
    }
}

/// Connections to the server that listens on `listener`. `tls` contains the trusted CAs, and `share` is the memory
/// budget.
fn connections_to(listener: &TcpListener, tls: ClientConfig, share: Share) -> Connections {
    let address = listener.local_addr().unwrap();
    let dial = service_fn(move |_| async move {
        let tcp = TcpStream::connect(address).await?;
        Ok::<_, BoxError>(TokioIo::new(tcp))
    });
    Connections {
        dial: Dial::new(dial),
        tls: TlsConnector::from(Arc::new(tls)),
        server_name: Some("a.example".to_owned()),
        ..without_connections(Windows::of(NamedBy::Tenant), share)
    }
}

/// The memory for one HTTP/2 connection to each of this many API servers in this namespace, as long as enough memory is
/// left.
fn connected(namespace: &str, servers: usize) -> Vec<Holding> {
    let windows = Windows::of(NamedBy::Tenant);
    let connection = |_| {
        let connections = without_connections(windows, windows.share(namespace));
        connections.reserve(windows.memory(true, 0)).ok()
    };
    (0..servers).filter_map(connection).collect()
}

#[test]
fn connections_of_one_namespace_leave_half_of_their_memory_to_others() {
    let hostile = connected("hostile", 1100);
    // The number exceeds the default limit on Clusters, which is 1,000.
    assert_eq!(hostile.len(), 1024);

    assert_eq!(connected("victim", 500).len(), 500);
    drop(hostile);
}

#[test]
fn other_memory_of_a_namespace_does_not_prevent_its_connections() {
    let mut responses = Share::new("responses", usize::MAX).holding();
    let mut bytes = 0;
    while responses.resize(bytes + 1024 * 1024) {
        bytes += 1024 * 1024;
    }
    assert!(bytes > 0);

    assert_eq!(connected("responses", 1).len(), 1);
}

#[test]
fn a_connection_without_memory_is_refused_with_this_reason() {
    let windows = Windows::of(NamedBy::Tenant);
    for is_http2 in [true, false] {
        let needed = windows.memory(is_http2, 0);
        let connections = without_connections(windows, Share::alone(needed));

        let open = connections.reserve(needed).unwrap();

        let refused = connections.reserve(needed).unwrap_err();
        assert_eq!(refused, Excess::Connections);
        drop(open);
        assert!(connections.reserve(needed).is_ok());
    }
}

#[tokio::test]
async fn a_handshake_without_memory_does_not_begin() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connections = connections_to(&listener, no_trust(), Share::alone(0));
    let received = tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        tcp.read(&mut [0; 1]).await.unwrap()
    });

    let server = Uri::from_static("https://a.example");
    let refused = connections.connect(&server).await.err().unwrap();

    let excess = refused.downcast_ref::<Excess>();
    assert_eq!(excess, Some(&Excess::Connections), "{refused}");
    assert_eq!(received.await.unwrap(), 0);
}

/// A server whose certificates have this total length, and the configuration of a client that trusts this server.
fn server_with(certificates: usize) -> (TlsAcceptor, ClientConfig) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    let own = params.self_signed(&key).unwrap().der().clone();
    let mut trusted = RootCertStore::empty();
    trusted.add(own.clone()).unwrap();
    let rest = CertificateDer::from(vec![0; certificates - own.len()]);
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own, rest], key.into())
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), trust(trusted))
}

/// Connects to a server whose certificates have this total length, with this many bytes of memory.
async fn connect_to(certificates: usize, memory: usize) -> Result<(), Excess> {
    let (acceptor, tls) = server_with(certificates);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connections = connections_to(&listener, tls, Share::alone(memory));
    tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        acceptor.accept(tcp).await
    });
    let server = Uri::from_static("https://a.example");
    let connected = connections.connect(&server).await.map(drop);
    connected.map_err(|error| {
        let excess = error.downcast_ref::<Excess>().copied();
        excess.unwrap_or_else(|| panic!("{error}"))
    })
}

#[tokio::test]
async fn long_certificates_of_a_server_count_as_memory_of_its_connection() {
    let memory = Windows::of(NamedBy::Tenant).memory(false, 0);
    let more = 32 * 1024;
    let long = NORMAL_CERTIFICATES + more;

    assert_eq!(connect_to(NORMAL_CERTIFICATES, memory).await, Ok(()));
    assert_eq!(connect_to(long, memory).await, Err(Excess::Connections));
    assert_eq!(connect_to(long, memory + more).await, Ok(()));
}

#[tokio::test]
async fn a_call_visits_each_open_connection_once() {
    let windows = Windows::of(NamedBy::Operator);
    let connections = without_connections(windows, Share::alone(usize::MAX));
    let mut driven = Vec::new();
    for _ in 0..MANAGEMENT_CALLS_AT_ONCE {
        let (near, far) = tokio::io::duplex(64);
        let made = http1::handshake(TokioIo::new(near)).await;
        let (sender, connection) = made.unwrap();
        driven.push((far, connection));
        let connection = Connection {
            sender: Sender::Http1(sender),
            // A call is in progress on each connection.
            memory: Lent::new(connections.share.holding()),
            is_silent: Arc::default(),
            patience: PATIENCE,
        };
        connections.open.write(|open| open.push(connection));
    }

    let visited = most_visited(|| {
        let request = Box::new(Request::new(Body::empty()));
        assert!(connections.begin_on_open(request).is_err());
    });

    assert_eq!(visited[&Lock::Connections], MANAGEMENT_CALLS_AT_ONCE);
    assert_eq!(driven.len(), MANAGEMENT_CALLS_AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn only_an_unanswered_call_past_its_deadline_closes_its_connection() {
    let early = PATIENCE.saturating_sub(Duration::from_millis(1));
    for (patience, waited, is_over) in [
        (PATIENCE, early, false),
        (PATIENCE, PATIENCE, true),
        (Duration::ZERO, Duration::ZERO, true),
    ] {
        // The other end of the connection does not respond.
        let (near, _far) = tokio::io::duplex(1024);
        let made = http1::handshake(TokioIo::new(near)).await;
        let (sender, _driven) = made.unwrap();
        let mut connection = Connection {
            sender: Sender::Http1(sender),
            memory: Lent::new(Share::alone(usize::MAX).holding()),
            is_silent: Arc::default(),
            patience,
        };

        let call = connection.begin(Request::new(Body::empty()));
        tokio::time::advance(waited).await;
        drop(call);

        let is_silent = connection.is_silent.load(Ordering::Relaxed);
        assert_eq!(is_silent, is_over, "{waited:?} of {patience:?}");
    }
}

fn no_trust() -> ClientConfig {
    trust(RootCertStore::empty())
}

fn trust(trusted: RootCertStore) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    builder
        .with_root_certificates(trusted)
        .with_no_client_auth()
}
