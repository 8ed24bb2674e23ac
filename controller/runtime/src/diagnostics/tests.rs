use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::*;

async fn start(pages: ServedPaths, metrics: &Metrics) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (
        address,
        tokio::spawn(serve(listener, pages, metrics.clone())),
    )
}

/// Sends these bytes, and returns everything that the server sends until it closes the connection.
async fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    timeout(Duration::from_secs(20), reading)
        .await
        .unwrap()
        .unwrap();
    answer
}

async fn get(address: SocketAddr, path: &str) -> (String, String) {
    let answer = ask(address, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.lines().next().unwrap();
    (status.to_owned(), body.to_owned())
}

const OK: &str = "HTTP/1.1 200 OK";
const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable";

#[tokio::test]
async fn readiness_reports_the_missing_lists() {
    let metrics = Metrics::new("1");
    let (address, _server) = start(ServedPaths::Health, &metrics).await;
    let answered = |status: &str, body: &str| (status.to_owned(), body.to_owned());
    assert_eq!(
        get(address, "/readyz").await,
        answered(UNAVAILABLE, "starting\n")
    );
    assert_eq!(get(address, "/healthz").await, answered(OK, "ok\n"));
    metrics.require_lists(&["Machine"]);
    let watch = metrics.watch("Machine");
    let waits = answered(UNAVAILABLE, "not listed yet: Machine\n");
    assert_eq!(get(address, "/readyz").await, waits);

    watch.listed();

    assert_eq!(get(address, "/readyz").await, answered(OK, "ok\n"));
}

#[tokio::test]
async fn the_liveness_page_names_the_stalled_loop() {
    let metrics = Metrics::new("1");
    let (address, _server) = start(ServedPaths::Health, &metrics).await;
    let _beat = metrics.heartbeat("the election", Duration::ZERO);
    // A heartbeat is late only after its interval, which is zero in this test. The server answers in real time.
    sleep(Duration::from_millis(1)).await;

    let (status, body) = get(address, "/healthz").await;

    assert_eq!(
        (&*status, &*body),
        (UNAVAILABLE, "no heartbeat for 0 s: the election\n")
    );
}

#[tokio::test]
async fn each_diagnostics_server_has_only_its_pages_and_only_get() {
    let metrics = Metrics::new("1");
    let (health, _server) = start(ServedPaths::Health, &metrics).await;
    let (scrapes, _other) = start(ServedPaths::Metrics, &metrics).await;

    for (address, path, expected) in [
        (health, "/metrics", "HTTP/1.1 404 Not Found"),
        (health, "/", "HTTP/1.1 404 Not Found"),
        (scrapes, "/healthz", "HTTP/1.1 404 Not Found"),
        (scrapes, "/metrics?x=1", OK),
    ] {
        assert_eq!(get(address, path).await.0, expected, "{path}");
    }
    let posted = "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n";
    let posted = ask(scrapes, posted).await;
    assert!(
        posted.starts_with("HTTP/1.1 405 Method Not Allowed"),
        "{posted}"
    );
    let head = ask(scrapes, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(head.starts_with(OK) && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn metrics_are_served_as_openmetrics_or_as_prometheus_text() {
    let (address, _server) = start(ServedPaths::Metrics, &Metrics::new("1")).await;
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let open = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{accept}\r\n");

    let open = ask(address, &open).await;
    let older = ask(address, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;

    assert!(
        open.contains(OPEN_METRICS) && open.ends_with("# EOF\n"),
        "{open}"
    );
    assert!(
        older.contains(PROMETHEUS) && !older.contains("# EOF"),
        "{older}"
    );
    for text in [open, older] {
        assert!(
            text.contains("node_attestation_build_info{version=\"1\"} 1\n"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn metrics_are_cached_for_a_second() {
    let metrics = Metrics::new("1");
    let site = Site {
        pages: ServedPaths::Metrics,
        metrics: metrics.clone(),
        scraped: Unshared::default(),
    };
    let site = Arc::new(site);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = site.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            connection(stream, asked.clone()).await;
        }
    });
    let first = get(address, "/metrics").await.1;
    let kept = site.scraped.lock().clone();
    let later = Instant::now() + Duration::from_hours(1);
    let [_, prometheus] = kept;
    // The test makes the metrics appear to have been encoded a moment ago, even on a slow machine.
    site.scraped.lock()[1] = prometheus.map(|(_, bytes)| (later, bytes));
    metrics.status_written(crate::metrics::Written::Ok);

    assert_eq!(get(address, "/metrics").await.1, first);
    *site.scraped.lock() = Default::default();
    assert!(
        get(address, "/metrics")
            .await
            .1
            .contains("status_writes_total")
    );
}

#[tokio::test]
async fn oversized_heads_and_silent_clients_do_not_block_the_health_page() {
    let (address, _server) = start(ServedPaths::Health, &Metrics::new("1")).await;
    let long = format!("GET /healthz HTTP/1.1\r\nA: {}\r\n", "a".repeat(MAX_HEAD));
    let refused = ask(address, &long).await;
    assert!(!refused.starts_with(OK), "{refused}");
    let mut silent = Vec::new();
    for number in 0..MAX_CONNECTIONS * 2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if number % 2 == 0 {
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\n")
                .await
                .unwrap();
        }
        silent.push(stream);
    }

    assert_eq!(get(address, "/healthz").await.0, OK);
    // The server closes the oldest connections.
    let closed = silent[0].read(&mut [0; 1024]).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}
