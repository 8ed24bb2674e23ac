use std::convert::Infallible;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceBuilder;
use tower::layer::layer_fn;

use node_attestation_core::testing::{cluster, now, valid};

use super::*;
use crate::client::{Bounded, NamedBy};
use crate::csr_writer::testing::MemoryStore;
use crate::events::Events;
use crate::footprint::{any, assert_limits, size};
use crate::object_key::ObjectKey;
use crate::turns::{FairTurns, TurnLimits};

/// A worker for this cluster. The cluster contains requests from this many requesters.
pub(super) fn worker(turns: &FairTurns, namespace: &str, name: &str, requests: usize) -> Worker {
    let store = Arc::new(MemoryStore::new(valid()));
    let pipeline = Pipeline::new(cluster(), store, Events::none(), now);
    let mut queue = Queue::new(&ClusterLines::of_namespace(namespace));
    for number in 0..requests {
        let mut csr = valid();
        csr.metadata.name = Some(number.to_string());
        csr.metadata.uid = Some(number.to_string());
        csr.spec.username = Some(number.to_string());
        queue.seen(csr);
    }
    Worker {
        signers: BTreeSet::new(),
        skipped: Skipped::of_cluster("CertificateSigningRequest", pipeline.lines().clone()),
        unreadable: UnreadableRequests::default(),
        line: turns.line(&ObjectKey::new(namespace, name)),
        waiting: None,
        pipeline: Arc::new(pipeline),
        queue,
        tasks: JoinSet::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_flooding_namespace_gets_half_of_the_worker_turns() {
    let limits = TurnLimits {
        all: 8,
        of_cluster: 4,
    };
    for (other, expected) in [(None, 8), (Some("tenant-b"), 4)] {
        let turns = FairTurns::new(limits);
        let mut victim = other.map(|namespace| worker(&turns, namespace, "prod-1", 3));
        let names = (0..5).map(|number| number.to_string());
        let mut flood: Vec<_> = names
            .map(|name| worker(&turns, "tenant-a", &name, 100))
            .collect();

        flood.iter_mut().for_each(Worker::start_ready);

        let started = flood.iter().map(|worker| worker.tasks.len());
        assert_eq!(started.sum::<usize>(), expected);
        if let Some(victim) = &mut victim {
            victim.start_ready();
            assert_eq!(victim.tasks.len(), 3);
            assert!(victim.waiting.is_none());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_turn_goes_to_the_namespace_without_a_turn() {
    let turns = FairTurns::new(TurnLimits {
        all: 1,
        of_cluster: 1,
    });
    let mut flood = worker(&turns, "tenant-a", "prod-1", 100);
    let mut sibling = worker(&turns, "tenant-a", "prod-2", 100);
    let mut victim = worker(&turns, "tenant-b", "prod-1", 1);
    for worker in [&mut flood, &mut sibling, &mut victim] {
        worker.start_ready();
    }
    assert_eq!(flood.tasks.len(), 1);
    for worker in [&mut sibling, &mut victim] {
        assert!(granted(&mut worker.waiting).now_or_never().is_none());
    }

    flood.tasks.shutdown().await;

    assert!(granted(&mut sibling.waiting).now_or_never().is_none());
    let turn = granted(&mut victim.waiting).now_or_never().unwrap();
    victim.start(turn);
    assert_eq!(victim.tasks.len(), 1);
}

/// A tenant's API server that contains this number of requests of this length. Each page contains as many requests
/// as the controller requested. A watch stays open, without an event.
fn client(requests: usize, len: usize) -> Client {
    client_with(requests, move |_| json!({"a": "x".repeat(len)}))
}

/// Like [`client`], but with these annotations.
fn client_with(
    requests: usize,
    annotations: impl Fn(usize) -> Value + Clone + Send + 'static,
) -> Client {
    let server = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let number = |key: &str| {
            let value = query.split('&').find_map(|pair| pair.strip_prefix(key));
            value.map_or(0, |value| value.parse().unwrap())
        };
        let is_watch = query.contains("watch=");
        let (first, next) = (number("continue="), number("continue=") + number("limit="));
        let items: Vec<_> = (first..next.min(requests))
            .map(|number| {
                json!({
                    "metadata": {
                        "name": number.to_string(), "uid": number.to_string(),
                        "resourceVersion": "1", "annotations": annotations(number),
                    },
                    "spec": {"request": "", "signerName": "s"},
                })
            })
            .collect();
        let more = (next < requests).then(|| next.to_string());
        let metadata = json!({"resourceVersion": "1", "continue": more});
        let list = json!({"metadata": metadata, "items": items});
        let answer = Full::new(Bytes::from(list.to_string()));
        async move {
            if is_watch {
                pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(answer))
        }
    });
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Tenant, "tenant-a"));
    Client::new(ServiceBuilder::new().layer(bounded).service(server), "a")
}

#[test]
fn the_future_of_a_worker_has_a_size_limit() {
    assert_limits(&[
        ("run", size(|| run(any(), any(), any(), pending())), 900),
        ("worker", size_of::<Worker>(), 1600),
        (
            "watch",
            size(|| watch(any(), any(), any(), any(), any())),
            800,
        ),
    ]);
}

/// The events from the watch of this API server.
fn watched(client: Client, relist: Arc<Notify>) -> BoxStream<'static, Event<ReadRequest>> {
    let to = (WatchMetrics::default(), ClusterLines::of_namespace(""));
    let events = watch(client, &[], relist, Arc::default(), to);
    events.filter_map(std::future::ready).boxed()
}

#[tokio::test(start_paused = true)]
async fn oversized_requests_are_listed_in_smaller_pages() {
    const MIB: usize = 1024 * 1024;
    for len in [1000, MIB / 4, MIB] {
        let mut events = watched(client(20, len), Arc::default());
        let mut listed = 0;
        let listing = async {
            while let Some(event) = events.next().await {
                match event {
                    Event::Init => listed = 0,
                    Event::InitApply(seen) => listed += usize::from(seen.object.is_ok()),
                    Event::InitDone => break,
                    Event::Apply(_) | Event::Delete(_) => {}
                }
            }
        };
        timeout(Duration::from_mins(1), listing).await.unwrap();
        assert_eq!(listed, 20, "of {len} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_with_many_labels_does_not_block_other_requests() {
    let labels = |number: usize| {
        let count = if number == 3 { 100_000 } else { 1 };
        let labels = (0..count).map(|label| (label.to_string(), Value::from("")));
        Value::Object(labels.collect())
    };
    let mut events = watched(client_with(20, labels), Arc::default());
    let mut signers = Vec::new();
    let listing = async {
        while let Some(event) = events.next().await {
            match event {
                Event::Init => signers.clear(),
                Event::InitApply(seen) => {
                    signers.push(seen.object.ok().map(|csr| csr.spec.signer_name));
                }
                Event::InitDone => break,
                Event::Apply(_) | Event::Delete(_) => {}
            }
        }
    };
    timeout(Duration::from_mins(1), listing).await.unwrap();

    let mut expected = vec![Some("s".to_owned()); 20];
    expected[3] = None;
    assert_eq!(signers, expected);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_restarted_on_request() {
    let relist: Arc<Notify> = Arc::default();
    let mut events = watched(client(1, 0), relist.clone());
    let mut is_listed = async || {
        let listing = async { while !matches!(events.next().await, Some(Event::InitDone)) {} };
        timeout(Duration::from_secs(10), listing).await.is_ok()
    };

    assert!(is_listed().await);
    for _ in 0..2 {
        assert!(!is_listed().await, "the watch stays open");
        relist.notify_one();
        assert!(is_listed().await);
    }
}
