//! Events about requests and machines.
//!
//! An answer is an Event on the machine's object, if the inventory has one, and otherwise on the request. A refusal
//! is an Event on the request too. So a join takes one Event, with the history of the name's record
//! ([`GrantReason`]). Renewals and serving certificates have none. A challenge fails its request, but is half of a
//! join or a renewal: it has no Event either.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures::future::FutureExt as _;
use futures::stream::{self, Stream, StreamExt as _};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Resource as _};
use kubelet_attestation::errors::error_chain;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use node_attestation_core::decide::{Decided, Decision};
use node_attestation_core::ledger::GrantReason;
use node_attestation_core::refusal::{Deferral, Failure, Unavailable};

use crate::client::{CONTROLLER, in_time};

mod limiter;

use limiter::Limiter;

/// Deadline of the write of one Event.
const EVENT_DEADLINE: Duration = Duration::from_secs(5);

/// The limit of concurrent writes: fewer than those of answers, which matter more.
const WRITES_AT_ONCE: usize = 4;

/// The limit of waiting Events: those of some thousand machines that join at once, at 1 kB each.
const MAX_WAITING: usize = 2048;

/// The time between two reports of Events that were left out.
const LEFT_OUT_TOLD: Duration = Duration::from_mins(1);

/// Deadline of the waiting Events on a stop, after all answers: Kubernetes gives a Pod 30 s in all.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

/// The API's limit on a note (`k8s.io/api/events/v1`: 1 kB).
const MAX_NOTE_LEN: usize = 1000;

/// The namespace of Events on objects without one, as for Kubernetes' event recorder and `kubectl describe`.
const NAMESPACE: &str = "default";

/// Accepts Events for an [`EventWriter`]. It never waits or fails: if too many Events wait, it leaves one out.
///
/// Each Event is an object. Those on one machine, and those of one cluster on all machines, are limited: otherwise
/// anybody who files requests could fill the management cluster. The number that was left out is in a later Event on
/// the machine.
#[derive(Debug, Clone)]
pub struct Events {
    // Boxes: each cluster's channel has room for 32 from the start.
    waiting: mpsc::Sender<Box<Addressed>>,
    left_out: Arc<AtomicU64>,
}

/// An Event, and its cluster.
type Addressed = (Cluster, Event);

/// The type, action, reason and note of an event.
pub(crate) type Words<'a> = (&'a str, &'a str, &'a str, String);

/// The cluster of the object that an Event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cluster {
    /// With the requests.
    Workload,
    /// With the machines.
    Management,
}

/// The task that writes events.
#[derive(Debug)]
#[must_use = "what still waits is written only while somebody waits for it"]
pub struct EventWriter {
    task: JoinHandle<()>,
    left_out: Arc<AtomicU64>,
}

impl Events {
    /// Starts a writer: of Events on requests with `workload`, and of those on machines with `management`, or with
    /// `workload` if that has the machines' objects.
    pub fn start(workload: Client, management: Option<Client>) -> (Self, EventWriter) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let left_out = Arc::new(AtomicU64::new(0));
        let writer = EventWriter {
            task: tokio::spawn(write_all(workload, management, receiver)),
            left_out: left_out.clone(),
        };
        let events = Self {
            waiting: sender,
            left_out,
        };
        (events, writer)
    }

    /// Writes none.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        let (waiting, _) = mpsc::channel(1);
        Self {
            waiting,
            left_out: Arc::default(),
        }
    }

    /// Adds an Event about an object of the management cluster.
    pub(crate) fn tell(
        &self,
        regarding: ObjectReference,
        is_warning: bool,
        reason: &'static str,
        note: String,
        now: SystemTime,
    ) {
        let kind = if is_warning { "Warning" } else { "Normal" };
        let words = (kind, "Sweep", reason, note);
        self.send((Cluster::Management, event(regarding, None, words, now)));
    }

    /// Adds an Event about a machine's request that has waited for so long.
    pub(crate) fn waits(
        &self,
        machine: ObjectReference,
        request: &CertificateSigningRequest,
        deferral: &Deferral,
        (age, now): (Duration, SystemTime),
    ) {
        let seconds = age.as_secs();
        let note = format!("{}; it has waited for {seconds} s", error_chain(deferral));
        let words = ("Warning", "Defer", deferral.reason(), note);
        let event = event(machine, Some(request.object_ref(&())), words, now);
        self.send((Cluster::Management, event));
    }

    /// Adds the Events of a decision.
    pub(crate) fn publish(
        &self,
        request: &CertificateSigningRequest,
        decided: &Decided,
        now: SystemTime,
    ) {
        for event in events_of(request, decided, now) {
            self.send(event);
        }
    }

    fn send(&self, event: Addressed) {
        let is_full = self.waiting.try_send(Box::new(event)).is_err();
        if is_full && self.left_out.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("events come faster than they can be written; some are left out");
        }
    }
}

impl EventWriter {
    /// Waits until the Events were written, for a short time.
    ///
    /// Every [`Events`] must be dropped before.
    pub async fn finish(mut self) {
        if timeout(DRAIN_DEADLINE, &mut self.task).await.is_err() {
            self.task.abort();
            tracing::warn!("stopped before all events were written");
        }
        let left_out = self.left_out.load(Ordering::Relaxed);
        if left_out > 0 {
            tracing::warn!(left_out, "events were left out");
        }
    }
}

async fn write_all(
    workload: Client,
    management: Option<Client>,
    waiting: mpsc::Receiver<Box<Addressed>>,
) {
    let management = management.as_ref().unwrap_or(&workload);
    limited(waiting)
        .for_each_concurrent(WRITES_AT_ONCE, |(cluster, event)| {
            let client = match cluster {
                Cluster::Workload => &workload,
                Cluster::Management => management,
            };
            // A box: the writer of each cluster has room for one more than it writes.
            write(client.clone(), event).map(drop).boxed()
        })
        .await;
}

/// Writes Events, and counts those that were left out.
fn limited(waiting: mpsc::Receiver<Box<Addressed>>) -> impl Stream<Item = Addressed> {
    let mut look = interval(LEFT_OUT_TOLD);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begin = (waiting, Limiter::default(), look, VecDeque::new());
    stream::unfold(
        begin,
        |(mut waiting, mut limiter, mut look, mut due)| async {
            let event = loop {
                if let Some(event) = due.pop_front() {
                    break (Cluster::Management, event);
                }
                tokio::select! {
                    biased;
                    event = waiting.recv() => match *event? {
                        (Cluster::Management, event) => {
                            due.extend(limiter.admit(event, Instant::now()));
                        }
                        event => break event,
                    },
                    _ = look.tick() => due.extend(limiter.left_out(Instant::now())),
                }
            };
            Some((event, (waiting, limiter, look, due)))
        },
    )
}

/// Writes an event about an object of the management cluster, with this type, action, reason and note; returns whether
/// it was written. The caller limits their number. One that cannot be written is logged.
pub(crate) async fn write_one(
    management: Client,
    regarding: ObjectReference,
    words: Words<'_>,
    now: SystemTime,
) -> bool {
    write(management, event(regarding, None, words, now)).await
}

async fn write(client: Client, event: Event) -> bool {
    let namespace = event.metadata.namespace.as_deref();
    let api: Api<Event> = Api::namespaced(client, namespace.unwrap_or(NAMESPACE));
    let written = in_time(EVENT_DEADLINE, api.create(&PostParams::default(), &event)).await;
    let written = written.map_err(Unavailable::from);
    if let Err(error) = &written {
        tracing::debug!(error = error_chain(error), "the event was not written");
    }
    written.is_ok()
}

fn events_of(
    request: &CertificateSigningRequest,
    decided: &Decided,
    now: SystemTime,
) -> Vec<Addressed> {
    let is_refused = match &decided.decision {
        Decision::Ignore(_) | Decision::Fail(Failure::ChallengeIssued { .. }) => {
            return Vec::new();
        }
        Decision::Deny(_) | Decision::Fail(_) => true,
        Decision::Issue(certificate) if !is_news(certificate.opening.as_ref()) => {
            return Vec::new();
        }
        Decision::Approve(approval) if !is_news(approval.opening()) => return Vec::new(),
        Decision::Retry(_) | Decision::Issue(_) | Decision::Approve(_) => false,
    };
    let request = request.object_ref(&());
    let words = words(&decided.decision);
    let on_machine = decided.machine.clone().map(|machine| {
        let event = event(machine, Some(request.clone()), words.clone(), now);
        (Cluster::Management, event)
    });
    let on_request = (is_refused || on_machine.is_none())
        .then(|| (Cluster::Workload, event(request, None, words, now)));
    on_machine.into_iter().chain(on_request).collect()
}

fn is_news(opening: Option<&GrantReason>) -> bool {
    opening.is_some_and(GrantReason::is_news)
}

/// The reason of a decision.
pub(crate) fn reason(decision: &Decision) -> &'static str {
    match decision {
        Decision::Ignore(ignored) => ignored.reason(),
        Decision::Deny(denial) => denial.reason(),
        Decision::Fail(failure) => failure.reason(),
        Decision::Retry(deferral) => deferral.reason(),
        Decision::Issue(certificate) => {
            let opening = certificate.opening.as_ref();
            opening.map_or("Issued", GrantReason::reason)
        }
        Decision::Approve(approval) => {
            let opening = approval.opening();
            opening.map_or(approval.basis().reason(), GrantReason::reason)
        }
    }
}

/// The history of a name's record, after `separator`.
pub(crate) fn told(opening: Option<&GrantReason>, separator: &str) -> String {
    opening.map_or_else(String::new, |opening| format!("{separator}{opening}"))
}

fn words(decision: &Decision) -> Words<'_> {
    let (kind, action, note) = match decision {
        Decision::Ignore(ignored) => ("Normal", "Ignore", error_chain(ignored)),
        Decision::Deny(denial) => ("Warning", "Deny", error_chain(denial)),
        Decision::Fail(failure) => ("Warning", "Fail", error_chain(failure)),
        Decision::Retry(deferral) => ("Normal", "Defer", error_chain(deferral)),
        Decision::Issue(certificate) => {
            let (name, machine) = (&certificate.node_name, &certificate.provider_id);
            let generation = certificate.uid.generation;
            let told = told(certificate.opening.as_ref(), ": ");
            let note = format!(
                "issued a certificate of generation {generation} to node {name} on machine {machine}{told}"
            );
            ("Normal", "Issue", note)
        }
        Decision::Approve(approval) => {
            let (name, machine) = (approval.node_name(), approval.provider_id());
            let told = told(approval.opening(), ": ");
            let note = format!("approved a certificate of node {name} on machine {machine}{told}");
            ("Normal", "Approve", note)
        }
    };
    (kind, action, reason(decision), note)
}

/// The note, cut to the limit of the API.
fn cut(mut note: String) -> String {
    note.truncate(note.floor_char_boundary(MAX_NOTE_LEN));
    note
}

/// An Event.
///
/// kube's `Recorder` makes one object of all events with the same reason, and patches it: it drops their notes, of
/// which each has the names of its own join, and keeps every object of the last minutes in memory.
pub(crate) fn event(
    regarding: ObjectReference,
    related: Option<ObjectReference>,
    (kind, action, reason, note): Words<'_>,
    now: SystemTime,
) -> Event {
    Event {
        metadata: ObjectMeta {
            // A request's name may be invalid for an Event.
            generate_name: Some(format!("{CONTROLLER}-")),
            // The API requires the object's namespace.
            namespace: Some(
                regarding
                    .namespace
                    .as_deref()
                    .unwrap_or(NAMESPACE)
                    .to_owned(),
            ),
            ..ObjectMeta::default()
        },
        event_time: Timestamp::try_from(now).ok().map(MicroTime),
        type_: Some(kind.to_owned()),
        action: Some(action.to_owned()),
        reason: Some(reason.to_owned()),
        note: Some(cut(note)),
        regarding: Some(regarding),
        related,
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(CONTROLLER.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests;
