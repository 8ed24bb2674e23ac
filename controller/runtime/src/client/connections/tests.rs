use rustls::RootCertStore;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::*;
use crate::client::response_limits::MANAGEMENT_CALLS_AT_ONCE;
use crate::shared::testing::most_visited;

#[tokio::test]
async fn a_handshake_consumes_the_processor_time_of_its_namespace() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        tcp.write_all(b"no TLS").await.unwrap();
    });
    let dial = service_fn(move |_| async move {
        let tcp = TcpStream::connect(address).await?;
        Ok::<_, BoxError>(TokioIo::new(tcp))
    });
    let processor = Processor::slow();
    let windows = Windows::of(NamedBy::Tenant);
    let connections = Connections {
        dial: Dial::new(dial),
        tls: TlsConnector::from(Arc::new(no_trust())),
        server_name: Some("a.example".to_owned()),
        windows,
        share: windows.share("a"),
        processor: Some(processor.clone()),
        patience: Duration::ZERO,
        open: Shared::new(Lock::Connections, Vec::new()),
        dialling: Turnstile::default(),
    };

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

/// The memory of one HTTP/2 connection to each of this many API servers in this namespace, if enough memory is left.
fn connected(namespace: &str, servers: usize) -> Vec<Holding> {
    let windows = Windows::of(NamedBy::Tenant);
    let connection = |_| {
        let connections = without_connections(windows, windows.share(namespace));
        connections.reserve(true).ok()
    };
    (0..servers).filter_map(connection).collect()
}

#[test]
fn connections_of_one_namespace_leave_half_of_their_memory_to_others() {
    let hostile = connected("hostile", 1100);
    // More than the default limit of Clusters, which is 1,000.
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
    for (is_http2, window) in [(true, windows.connection), (false, windows.answer)] {
        let share = Share::alone(usize::try_from(window).unwrap());
        let connections = without_connections(windows, share);

        let open = connections.reserve(is_http2).unwrap();

        let refused = connections.reserve(is_http2).unwrap_err();
        assert_eq!(refused, Excess::Connections);
        drop(open);
        assert!(connections.reserve(is_http2).is_ok());
    }
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
            // A call runs on each.
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
        // The other end does not respond.
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
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let none = RootCertStore::empty();
    builder.with_root_certificates(none).with_no_client_auth()
}
