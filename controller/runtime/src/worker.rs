//! The worker for one workload cluster. It watches the requests, and processes them in turn.
//!
//! # Guarantees
//!
//! - An unavailable API server only causes delays, because the watches restart automatically.
//! - A request that panics or is slow does not stop other requests. Two tasks never process the same request
//!   concurrently.
//! - When the worker stops, it first completes the answers in progress.

use std::collections::BTreeSet;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{BoxStream, Stream, StreamExt as _};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::Api;
use kube::runtime::watcher::Event;
use kube::{Client, Resource as _};
use node_attestation_core::cluster_line;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::PAGE_SIZE;
use crate::log_lines::ClusterLines;
use crate::metrics::WatchMetrics;
use crate::pipeline::{Next, Pipeline};
use crate::queue::Queue;
use crate::turns::{Line, Turn};
use crate::watch::{Lenient, Skipped, WatchLog, in_smaller_pages, watch_config};

/// The deadline for completing the answers in progress when the worker stops. It is shorter than the 30 s that a Pod
/// has to stop.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// The interval between heartbeats.
const BEAT: Duration = Duration::from_secs(5);

/// The maximum time without a heartbeat.
const SILENCE: Duration = Duration::from_mins(1);

/// The maximum wait if no request is ready. An event ends the wait.
const IDLE: Duration = Duration::from_hours(1);

/// Serves the requests in `client`'s API server until `stop` is ready. Sets `watches` when a watch fails or recovers.
///
/// This is not an `async fn`, and the worker is boxed, because a future reserves space for each place to which it moves
/// a value.
pub fn run(
    client: Client,
    pipeline: Pipeline,
    watches: Arc<AtomicBool>,
    stop: impl Future<Output = ()>,
) -> impl Future<Output = ()> {
    let (signers, lines) = (pipeline.signers(), pipeline.lines().clone());
    let worker = Box::new(Worker {
        signers: signers.iter().cloned().collect(),
        queue: Queue::new(&lines),
        line: pipeline.turns(),
        waiting: None,
        pipeline,
        tasks: JoinSet::new(),
        skipped: Skipped::of_cluster("CertificateSigningRequest", lines.clone()),
    });
    let relist: Arc<Notify> = Arc::default();
    let metrics = worker.pipeline.metrics().clone();
    metrics.answering(worker.queue.pending());
    let of_watch = metrics.watch("CertificateSigningRequest");
    let events = watch(client, &signers, relist.clone(), watches, (of_watch, lines)).boxed();
    serve(worker, events, relist, stop)
}

/// Serves the requests from these events until `stop` is ready.
async fn serve(
    mut worker: Box<Worker>,
    mut events: BoxStream<'static, Option<Event<ReadRequest>>>,
    relist: Arc<Notify>,
    stop: impl Future<Output = ()>,
) {
    let metrics = worker.pipeline.metrics().clone();
    let heartbeat = metrics.heartbeat(SILENCE);
    let mut stop = pin!(stop);
    loop {
        heartbeat.beat();
        worker.start_ready();
        if worker.queue.relist(Instant::now()) {
            relist.notify_one();
        }
        let due = worker.due();
        tokio::select! {
            () = &mut stop => break,
            Some(event) = events.next() => if let Some(event) = event {
                worker.watched(event);
            },
            Some(ended) = worker.tasks.join_next() => worker.ended(ended),
            turn = granted(&mut worker.waiting) => worker.start(turn),
            () = sleep_until(due) => {}
            () = heartbeat.pause(BEAT) => {}
        }
    }
    drop(events);
    Box::pin(worker.finish()).await;
    metrics.stopped();
}

struct Worker {
    signers: BTreeSet<String>,
    pipeline: Pipeline,
    queue: Queue,
    /// The cluster's queue for the turns that all clusters share. A request holds its turn from its start until its
    /// answer.
    line: Line,
    /// The wait for a turn. Set while a request is ready but does not have a turn yet.
    waiting: Option<BoxFuture<'static, Turn>>,
    /// The requests in progress, with their UIDs. The result is `None` if the request's task panicked.
    tasks: JoinSet<(String, Option<Next>)>,
    skipped: Skipped,
}

impl Worker {
    /// Starts the requests that are ready, as long as there are turns for them.
    fn start_ready(&mut self) {
        while self.waiting.is_none() && self.queue.is_ready(Instant::now()) {
            if let Some(turn) = self.line.try_turn() {
                self.start(turn);
            } else {
                let line = self.line.clone();
                self.waiting = Some(async move { line.turn().await }.boxed());
            }
        }
        if !self.queue.is_ready(Instant::now()) {
            self.waiting = None;
        }
    }

    /// The time at which a request is ready, or a list is due. This time is irrelevant while the worker waits for a
    /// turn.
    fn due(&self) -> Instant {
        let turn = self.queue.next_turn().filter(|_| self.waiting.is_none());
        turn.unwrap_or_else(|| Instant::now() + IDLE)
    }

    /// Starts the next request.
    fn start(&mut self, turn: Turn) {
        self.waiting = None;
        if let Some(work) = self.queue.next(Instant::now()) {
            let (pipeline, name, uid) =
                (self.pipeline.clone(), work.name.clone(), work.uid.clone());
            let lines = pipeline.lines().clone();
            self.tasks.spawn(async move {
                let _turn = turn;
                // A panic does not leave shared state inconsistent, because each lock is held only for a single step.
                let processed = pipeline.process(work).boxed();
                let next = AssertUnwindSafe(processed).catch_unwind().await;
                if next.is_err() {
                    // A panic payload can contain secrets, so it is not logged.
                    cluster_line!(
                        &lines,
                        ERROR,
                        csr = name,
                        "the checks panicked; the controller retries the request later"
                    );
                }
                (uid, next.ok())
            });
        }
    }

    fn watched(&mut self, event: Event<ReadRequest>) {
        match event {
            Event::Init => self.queue.listing(),
            Event::InitApply(seen) | Event::Apply(seen) => match seen.object {
                Ok(csr) if self.signers.contains(&csr.spec.signer_name) => {
                    self.queue.seen(csr);
                }
                // The request belongs to a different controller.
                Ok(_) => {}
                Err(ref error) => self.skipped.note(seen.meta(), error),
            },
            Event::InitDone => self.queue.listed(),
            Event::Delete(seen) => {
                if let Some(uid) = &seen.meta().uid {
                    self.queue.gone(uid);
                }
            }
        }
    }

    fn ended(&mut self, ended: Result<(String, Option<Next>), JoinError>) {
        // An error cannot occur, because no task is canceled during this wait.
        let Ok((uid, next)) = ended else {
            return;
        };
        match next {
            Some(Next::Done) => self.queue.settled(&uid),
            Some(Next::GiveUp) => self.queue.given_up(&uid),
            Some(Next::NotOursYet) => self.queue.not_ours_yet(&uid, Instant::now()),
            Some(Next::Retry) | None => self.queue.retry(&uid, Instant::now()),
        }
    }

    async fn finish(mut self: Box<Self>) {
        let rest = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(STOP_DEADLINE, rest).await.is_err() {
            let open = self.tasks.len();
            cluster_line!(
                self.pipeline.lines(),
                WARN,
                open,
                "the deadline passed before the controller wrote all answers; the next replica writes them"
            );
        }
    }
}

/// Waits for the turn.
async fn granted(waiting: &mut Option<BoxFuture<'static, Turn>>) -> Turn {
    match waiting {
        Some(waiting) => waiting.await,
        None => pending().await,
    }
}

/// A request from the watch.
type ReadRequest = Lenient<CertificateSigningRequest>;

/// Watches all requests. Never ends. One watch is cheaper than a separate watch for each signer, and there are few
/// requests for other signers.
///
/// An error is returned as `None`. A stream that skips it would reserve space for an event while the watch is idle.
fn watch(
    client: Client,
    signers: &[String],
    relist: Arc<Notify>,
    watches: Arc<AtomicBool>,
    (metrics, lines): (WatchMetrics, ClusterLines),
) -> impl Stream<Item = Option<Event<ReadRequest>>> + Send + use<> {
    let signers = signers.join(" ");
    let (api, heard) = (Api::all(client), metrics.clone());
    let mut log = WatchLog::new("CertificateSigningRequest")
        .measured_by(metrics)
        .within(lines.clone());
    let events = in_smaller_pages(api, watch_config(), PAGE_SIZE, relist, heard);
    events.map(move |event| {
        let told = || cluster_line!(&lines, INFO, signers, "watching");
        if log.observe(&event, told) {
            watches.store(true, Ordering::Relaxed);
        }
        event.ok()
    })
}

#[cfg(test)]
mod tests {
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
    fn worker(turns: &FairTurns, namespace: &str, name: &str, requests: usize) -> Worker {
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
            line: turns.line(&ObjectKey::new(namespace, name)),
            waiting: None,
            pipeline,
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
                    std::future::pending::<()>().await;
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
}
