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

mod unreadable;

pub use unreadable::UnreadableRequests;

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
/// `unreadable` contains the requests that cannot be read.
///
/// This is not an `async fn`, and the worker is boxed, because a future reserves space for each place to which it moves
/// a value.
pub fn run(
    client: Client,
    pipeline: Pipeline,
    (watches, unreadable): (Arc<AtomicBool>, UnreadableRequests),
    stop: impl Future<Output = ()>,
) -> impl Future<Output = ()> {
    let (signers, lines) = (pipeline.signers(), pipeline.lines().clone());
    let worker = Box::new(Worker {
        signers: signers.iter().cloned().collect(),
        queue: Queue::new(&lines),
        line: pipeline.turns(),
        waiting: None,
        pipeline: Arc::new(pipeline),
        tasks: JoinSet::new(),
        skipped: Skipped::of_cluster("CertificateSigningRequest", lines.clone()),
        unreadable,
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
        worker.queue.give_back_excess(Instant::now());
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
    /// Requests in progress share the pipeline, because it can contain long lists.
    pipeline: Arc<Pipeline>,
    queue: Queue,
    /// The cluster's queue for the turns that all clusters share. A request holds its turn from its start until its
    /// answer.
    line: Line,
    /// The wait for a turn. Set while a request is ready but does not have a turn yet.
    waiting: Option<BoxFuture<'static, Turn>>,
    /// The requests in progress, with their UIDs. The result is `None` if the request's task panicked.
    tasks: JoinSet<(String, Option<Next>)>,
    skipped: Skipped,
    unreadable: UnreadableRequests,
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
            Event::Init => {
                self.queue.listing();
                self.unreadable.listing();
            }
            Event::InitApply(seen) | Event::Apply(seen) => {
                self.unreadable.seen(seen.meta(), seen.object.is_ok());
                match seen.object {
                    Ok(csr) if self.signers.contains(&csr.spec.signer_name) => {
                        self.queue.seen(csr);
                    }
                    // The request belongs to a different controller.
                    Ok(_) => {}
                    Err(ref error) => self.skipped.note(seen.meta(), error),
                }
            }
            Event::InitDone => {
                self.queue.listed();
                self.unreadable.listed();
            }
            Event::Delete(seen) => {
                self.unreadable.seen(seen.meta(), true);
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
mod tests;
