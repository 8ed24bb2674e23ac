use std::convert::Infallible;
use std::pin::pin;
use std::sync::Mutex;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceBuilder;
use tower::layer::layer_fn;

use super::*;
use crate::client::{Bounded, NamedBy, taken_processor_time};
use crate::metrics::{Format, Metrics};

mod pages;

#[tokio::test(start_paused = true)]
async fn the_wait_for_an_api_server_doubles_until_a_watch_succeeds() {
    let mut waits = ExponentialBackoff::default();
    let mut millis = Vec::new();
    for _ in 0..8 {
        let wait = waits.next_wait();
        millis.push(wait.as_millis());
        tokio::time::advance(wait).await;
    }
    for (wait, longest) in millis
        .into_iter()
        .zip([250, 500, 1000, 2000, 4000, 8000, 15000, 15000])
    {
        let is_in_its_half = (longest / 2..=longest).contains(&wait);
        assert!(is_in_its_half, "{wait} of {longest}");
    }

    tokio::time::advance(WATCH_HELD).await;

    assert!(waits.next_wait() <= WATCH_RETRY.first);
}

#[tokio::test(start_paused = true)]
async fn failed_watches_are_retried_with_jitter() {
    let waits = |_| {
        let mut waits = ExponentialBackoff::default();
        (0..8).map(|_| waits.next_wait()).sum::<Duration>()
    };

    let different: std::collections::BTreeSet<_> = (0..100).map(waits).collect();

    assert!(different.len() > 10, "{different:?}");
}

/// The calls that a watch with pages of 16 objects makes until no responses are left, in order: `list LIMIT`, and
/// `watch VERSION`.
async fn calls(answers: &'static [Answer]) -> Vec<String> {
    let (events, calls) = watching(answers);
    let reading = events.for_each(|_| std::future::ready(()));
    // The API server does not respond to the call after the last response. Later calls are ignored.
    let _ = tokio::time::timeout(Duration::from_hours(1), reading).await;
    let mut calls = calls.lock().unwrap().clone();
    calls.truncate(answers.len() + 1);
    calls
}

impl ReadAlone for Node {}

type NodeEvent = watcher::Result<Event<Lenient<Node>>>;

/// A watch with pages of 16 objects, which calls an API server with these responses, and the calls that the watch
/// makes.
fn watching(
    answers: &'static [Answer],
) -> (impl Stream<Item = NodeEvent>, Arc<Mutex<Vec<String>>>) {
    heard_by(WatchMetrics::default(), answers)
}

/// Like [`watching`], but with these metrics.
fn heard_by(
    heard: WatchMetrics,
    answers: &'static [Answer],
) -> (impl Stream<Item = NodeEvent>, Arc<Mutex<Vec<String>>>) {
    let calls: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = calls.clone();
    let server = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let value = |key: &str| {
            let found = query.split('&').find_map(|pair| pair.strip_prefix(key));
            found.unwrap_or_default().to_owned()
        };
        let mut calls = told.lock().unwrap();
        let answer = answers.get(calls.len()).copied();
        calls.push(if value("watch=").is_empty() {
            format!("list {}", value("limit="))
        } else {
            format!("watch {}", value("resourceVersion="))
        });
        async move {
            let (status, body) = match answer {
                None => std::future::pending().await,
                Some(Answer::List(version)) => (
                    200,
                    json!({"metadata": {"resourceVersion": version}, "items": []}),
                ),
                Some(Answer::Bookmark(version) | Answer::BrokenAfter(version)) => {
                    let node = json!({
                        "apiVersion": "v1", "kind": "Node",
                        "metadata": {"resourceVersion": version},
                    });
                    (200, json!({"type": "BOOKMARK", "object": node}))
                }
                Some(Answer::Event(version)) => {
                    let node = json!({"metadata": {"name": "n1", "resourceVersion": version}});
                    (200, json!({"type": "MODIFIED", "object": node}))
                }
                Some(Answer::Silent) => (200, Value::Null),
                Some(Answer::Broken) => (200, json!({"code": 500, "message": "no etcd"})),
                Some(Answer::Away) => (503, json!({})),
                Some(Answer::TooLong) => (200, json!({"items": "x".repeat(9 << 20)})),
            };
            let mut body = if body.is_null() {
                String::new()
            } else {
                format!("{body}\n")
            };
            if matches!(answer, Some(Answer::BrokenAfter(_))) {
                body.push_str(r#"{"code": 500, "message": "no etcd"}"#);
                body.push('\n');
            }
            let body = Full::new(Bytes::from(body));
            let response = Response::builder().status(status).body(body);
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Tenant, "tenant-a"));
    let client = Client::new(ServiceBuilder::new().layer(bounded).service(server), "a");
    let api: Api<Lenient<Node>> = Api::all(client);
    let config = watcher::Config::default();
    let events = in_smaller_pages(api, config, 16, Arc::default(), heard);
    (events, calls)
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    /// An empty list with this version.
    List(&'static str),
    /// A watch that ends after a bookmark with this version.
    Bookmark(&'static str),
    /// A watch that ends after an event with this version.
    Event(&'static str),
    /// A watch that ends without an event or a bookmark.
    Silent,
    /// A watch that fails after its start.
    Broken,
    /// A watch that fails after a bookmark with this version.
    BrokenAfter(&'static str),
    /// A response with status 503.
    Away,
    /// A list that exceeds the limit for a response.
    TooLong,
}

#[tokio::test(start_paused = true)]
async fn a_watch_lists_again_after_an_api_server_outage() {
    use Answer::{Away, Bookmark, List};

    // The watch ended normally, so the next watch continues from the last version.
    let calls_of_end = calls(&[List("5"), Bookmark("9"), Bookmark("12")]).await;
    assert_eq!(calls_of_end, ["list 16", "watch 5", "watch 9", "watch 12"]);

    // The etcd of this API server is at version 3, but the API server accepts a watch from version 9.
    let calls_of_outage = calls(&[List("5"), Bookmark("9"), Away, Away, List("3")]).await;
    assert_eq!(
        calls_of_outage,
        [
            "list 16", "watch 5", "watch 9", "list 16", "list 16", "watch 3"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_an_event_or_a_bookmark_lists_again() {
    use Answer::{Bookmark, List, Silent};

    // The API server was restored to version 3, but accepts a watch from version 9.
    let calls_of_silence = calls(&[List("5"), Bookmark("9"), Silent, List("3")]).await;
    assert_eq!(
        calls_of_silence,
        ["list 16", "watch 5", "watch 9", "list 16", "watch 3"]
    );

    // A bookmark with the same version is sufficient.
    let calls_of_quiet = calls(&[List("5"), Bookmark("9"), Bookmark("9")]).await;
    assert_eq!(calls_of_quiet, ["list 16", "watch 5", "watch 9", "watch 9"]);
}

#[tokio::test(start_paused = true)]
async fn a_continued_watch_with_a_lower_version_lists_again() {
    use Answer::{Bookmark, Event, List};

    for lower in [Bookmark("8"), Event("8")] {
        let lower = calls(vec![List("5"), Bookmark("9"), lower].leak()).await;
        assert_eq!(lower, ["list 16", "watch 5", "watch 9", "list 16"]);
    }
    for higher in [Bookmark("10"), Event("10")] {
        let higher = calls(vec![List("5"), Bookmark("9"), higher].leak()).await;
        assert_eq!(higher, ["list 16", "watch 5", "watch 9", "watch 10"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_of_megabytes_ends_the_list_or_the_watch() {
    let version = |len: usize| -> &'static str { Box::leak("7".repeat(len).into_boxed_str()) };
    let results = async |answers: Vec<Answer>, count: usize| {
        let (events, _) = watching(Box::leak(answers.into_boxed_slice()));
        let events: Vec<_> = events.take(count).collect().await;
        let is_too_long = |event: &NodeEvent| match event {
            Ok(_) => false,
            Err(error) => matches!(error, watcher::Error::NoResourceVersion),
        };
        events.iter().map(is_too_long).collect::<Vec<_>>()
    };

    for (len, is_too_long) in [(16 * 1024, false), (16 * 1024 + 1, true), (1 << 20, true)] {
        let long = version(len);
        let watched = results(vec![Answer::List("5"), Answer::Event(long)], 3).await;
        assert_eq!(watched, [false, false, is_too_long], "{len}");
        let listed = results(vec![Answer::List(long)], 2).await;
        assert_eq!(listed, [false, is_too_long], "{len}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_watch_lists_again() {
    use Answer::{Bookmark, Broken, BrokenAfter, List};

    let calls_of_start = calls(&[List("5"), Bookmark("9"), Broken, List("3")]).await;
    assert_eq!(
        calls_of_start,
        ["list 16", "watch 5", "watch 9", "list 16", "watch 3"]
    );

    // After this failure, the watch does not continue from the version in the bookmark. After a normal end, it would.
    let calls_of_middle = calls(&[List("5"), BrokenAfter("9"), List("3")]).await;
    assert_eq!(
        calls_of_middle,
        ["list 16", "watch 5", "list 16", "watch 3"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_that_failed_recovers_with_its_next_list() {
    use Answer::{Bookmark, Broken, List};

    let (events, _) = watching(&[List("5"), Bookmark("9"), Broken, List("9")]);
    let (mut log, mut changes) = (WatchLog::new("Node"), Vec::new());
    let reading = events.for_each(|event| {
        if log.observe(&event, || {}) {
            changes.push(event.is_ok());
        }
        std::future::ready(())
    });
    let _ = tokio::time::timeout(Duration::from_mins(1), reading).await;

    assert_eq!(changes, [false, true], "failed, and recovered");
}

#[tokio::test(start_paused = true)]
async fn only_an_event_or_a_bookmark_resets_the_watch_age() {
    use Answer::{Away, Bookmark, Broken, List, Silent};

    for (answer, silence) in [
        (Bookmark("9"), 0.0),
        (Answer::Event("9"), 0.0),
        (Silent, 100.0),
        (Broken, 100.0),
        (Away, 100.0),
    ] {
        let metrics = Metrics::new("1");
        let heard = metrics.watch("Node");
        let (events, calls) = heard_by(heard.clone(), vec![List("5"), answer].leak());
        let mut events = pin!(events);
        while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
        tokio::time::advance(Duration::from_secs(100)).await;

        // The API server does not answer the third call.
        let third = Duration::from_millis(400);
        let _ = tokio::time::timeout(third, events.for_each(|_| std::future::ready(()))).await;

        assert_eq!(calls.lock().unwrap().len(), 3, "{answer:?}");
        let text = metrics.text(Format::OpenMetrics);
        let name = r#"node_attestation_watch_age_seconds{kind="Node"} "#;
        let age = text.lines().find_map(|line| line.strip_prefix(name));
        let age: f64 = age.unwrap().parse().unwrap();
        assert!((age - silence).abs() < 1.0, "{answer:?}: {age}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_ends_silent_watches_early_is_called_with_backoff() {
    use Answer::{List, Silent};

    let calls = calls([List("5"), Silent].repeat(1000).leak()).await;

    // After the first calls, at most one list and one watch start every 7.5 seconds, for one hour.
    assert!((400..1000).contains(&calls.len()), "{}", calls.len());
}

#[tokio::test(start_paused = true)]
async fn a_list_is_read_in_smaller_pages_until_it_is_complete() {
    use Answer::{Away, List, TooLong};

    let calls = calls(&[TooLong, TooLong, List("5"), Away, List("6")]).await;

    assert_eq!(
        calls,
        [
            "list 16", "list 4", "list 1", "watch 5", "list 16", "watch 6"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn pages_and_events_take_processor_time_of_the_namespace_of_their_api_server() {
    const NAMESPACE: &str = "decoded";
    let server = tower::service_fn(|request: Request<Body>| async move {
        // Each line break is escaped.
        let long = "\n".repeat(100_000);
        let metadata = json!({"name": "n1", "resourceVersion": "2", "annotations": {"a": long}});
        let node = json!({"metadata": metadata});
        let query = request.uri().query().unwrap_or_default();
        let body = if query.contains("watch=") {
            let event = json!({"type": "MODIFIED", "object": node});
            format!("{event}\n{event}\n")
        } else {
            json!({"metadata": {"resourceVersion": "1"}, "items": [node]}).to_string()
        };
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body))))
    });
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Tenant, NAMESPACE));
    let client = Client::new(ServiceBuilder::new().layer(bounded).service(server), "a");
    let api: Api<MetadataOf<Node>> = Api::all(client);
    let mut known = Duration::ZERO;
    let mut has_taken_more = |what: &str| {
        let taken = taken_processor_time(NAMESPACE);
        assert!(taken > known, "{what}: {taken:?} after {known:?}");
        known = taken;
    };

    let page = ListParams::default();
    page_of(&api, &page).await.unwrap();
    has_taken_more("a page");
    metadata_page_of(&api, &page).await.unwrap();
    has_taken_more("a page of metadata");
    let config = watcher::Config::default();
    let (relist, heard) = (Arc::default(), WatchMetrics::default());
    let mut events = pin!(in_smaller_pages(api, config, 16, relist, heard));
    for what in ["a listed object", "an event", "the next event of its chunk"] {
        loop {
            let event = events.next().await.unwrap().unwrap();
            if matches!(event, Event::InitApply(_) | Event::Apply(_)) {
                break;
            }
        }
        has_taken_more(what);
    }
}
