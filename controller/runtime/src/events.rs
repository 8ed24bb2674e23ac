//! Events about requests and machines.
//!
//! An answer creates an Event on the machine's object if the inventory contains such an object, and otherwise on the
//! request. A refusal also creates an Event on the request. Therefore a join creates one Event, which includes the
//! history of the name's record ([`GrantReason`]). Renewals and serving certificates do not create Events. A challenge
//! fails its request, but does not create an Event either, because it is part of a join or a renewal.

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
use tokio::time::timeout;

use node_attestation_core::cluster_line;
use node_attestation_core::decide::{Decided, Decision};
use node_attestation_core::ledger::GrantReason;
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::refusal::{Deferral, Failure, Unavailable};
use node_attestation_core::unshared::Unshared;

use crate::client::{CONTROLLER, in_time};
use crate::log_lines::ClusterLines;
use crate::object_key::ObjectKey;
use crate::turns::FairRate;
use crate::watch::created_metadata;

mod in_line;
mod limiter;
mod waiting;

use in_line::InLine;
use waiting::{Memory, Waiting};

/// The deadline for writing one Event.
const EVENT_DEADLINE: Duration = Duration::from_secs(5);

/// The limit on concurrent writes. It is lower than the limit for answers, which have priority.
const WRITES_AT_ONCE: usize = 4;

/// The limit on waiting Events: the Events for a few thousand machines that join together, at 1 kB each.
const MAX_WAITING: usize = 2048;

/// The shared rate of Events on the machines and records in all clusters: enough for 1,000 machines that join at the
/// same time. Kubernetes keeps Events for one hour, so at most 73,000 Events of 1 kB each exist.
pub(crate) const RATE: Rate = Rate {
    burst: 1000,
    every: Duration::from_millis(50),
};

/// The deadline for writing the waiting Events when the controller stops, after all answers were written. A Pod has 30
/// s in total.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

/// The API's limit on the length of a note (`k8s.io/api/events/v1`: 1 kB).
const MAX_NOTE_LEN: usize = 1000;

/// The namespace for Events about cluster-scoped objects, as in Kubernetes' event recorder and `kubectl describe`.
const NAMESPACE: &str = "default";

/// Accepts Events for an [`EventWriter`]. The sink never waits and never fails: if too many Events are waiting, it
/// drops the new Event.
///
/// Each Event is stored as an object in the API server. The number of Events is limited for each machine, and for all
/// machines of one cluster. Without these limits, any user who can create requests could fill the management cluster. A
/// later Event on the machine contains the number of dropped Events. Events on machines take turns across all clusters:
/// first by namespace, then by cluster.
#[derive(Debug, Clone)]
pub struct Events {
    // Boxed, because each cluster's channel allocates space for 32 entries immediately.
    waiting: mpsc::Sender<Box<Waiting>>,
    /// Not shared: only one cluster uses this lock.
    memory: Arc<Unshared<Memory>>,
    left_out: Arc<AtomicU64>,
    lines: ClusterLines,
}

/// The limits on the Events of one cluster. The cluster shares some of these limits with other clusters.
#[derive(Debug)]
pub(crate) struct EventLimits {
    /// The shared rate of Events on the machines and records in all clusters.
    pub(crate) rate: Arc<FairRate>,
    pub(crate) cluster: ObjectKey,
    pub(crate) lines: ClusterLines,
}

impl EventLimits {
    /// The limits for a controller with a single cluster.
    fn alone() -> Self {
        let cluster = ObjectKey::new("", "");
        Self {
            rate: Arc::new(FairRate::new(RATE)),
            lines: ClusterLines::of(&cluster),
            cluster,
        }
    }
}

/// An Event, and the cluster to write it to.
type Addressed = (Destination, Event);

/// The type, action, reason and note of an Event.
pub(crate) type Words<'a> = (&'a str, &'a str, &'a str, String);

/// The cluster that contains an Event's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    /// The workload cluster, which contains the requests.
    Workload,
    /// The management cluster, which contains the machines.
    Management,
}

/// The task that writes Events.
#[derive(Debug)]
#[must_use = "the pending Events are written only while the future is polled"]
pub struct EventWriter {
    task: JoinHandle<()>,
    left_out: Arc<AtomicU64>,
    lines: ClusterLines,
}

impl Events {
    /// Starts a writer.
    ///
    /// Uses `workload` to write Events on requests. Uses `management` to write Events on machines, or `workload` if
    /// that cluster contains the machines' objects.
    pub fn start(workload: Client, management: Option<Client>) -> (Self, EventWriter) {
        Self::start_within(workload, management, EventLimits::alone())
    }

    /// Starts a writer for one of several clusters, with these limits.
    pub(crate) fn start_within(
        workload: Client,
        management: Option<Client>,
        limits: EventLimits,
    ) -> (Self, EventWriter) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let events = Self::sending(sender, &limits);
        let writer = EventWriter {
            left_out: events.left_out.clone(),
            lines: limits.lines.clone(),
            task: tokio::spawn(write_all(workload, management, receiver, limits)),
        };
        (events, writer)
    }

    fn sending(waiting: mpsc::Sender<Box<Waiting>>, limits: &EventLimits) -> Self {
        Self {
            waiting,
            memory: Arc::new(Unshared::new(Memory::of(&limits.cluster.namespace))),
            left_out: Arc::default(),
            lines: limits.lines.clone(),
        }
    }

    /// Creates a sink that drops all Events.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        let (waiting, _) = mpsc::channel(1);
        Self::sending(waiting, &EventLimits::alone())
    }

    /// Adds an Event about an object in the management cluster.
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
        self.send((Destination::Management, event(regarding, None, words, now)));
    }

    /// Adds an Event about a machine's request that has been pending for `age`.
    pub(crate) fn waits(
        &self,
        machine: ObjectReference,
        request: &CertificateSigningRequest,
        deferral: &Deferral,
        (age, now): (Duration, SystemTime),
    ) {
        let seconds = age.as_secs();
        let note = format!(
            "{}; the request has been pending for {seconds} s",
            error_chain(deferral)
        );
        let words = ("Warning", "Defer", deferral.reason(), note);
        let event = event(machine, Some(request.object_ref(&())), words, now);
        self.send((Destination::Management, event));
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
        let waiting = Waiting::new(event, &self.memory);
        let sent = waiting.map(|waiting| self.waiting.try_send(Box::new(waiting)));
        let is_sent = sent.is_some_and(|sent| sent.is_ok());
        if !is_sent && self.left_out.fetch_add(1, Ordering::Relaxed) == 0 {
            cluster_line!(
                &self.lines,
                WARN,
                "Events are created faster than they can be written; some Events are skipped"
            );
        }
    }
}

impl EventWriter {
    /// Waits for a short time until all Events are written.
    ///
    /// All [`Events`] must be dropped before this call.
    pub async fn finish(mut self) {
        if timeout(DRAIN_DEADLINE, &mut self.task).await.is_err() {
            self.task.abort();
            cluster_line!(
                &self.lines,
                WARN,
                "the deadline passed before the controller wrote all Events"
            );
        }
        let left_out = self.left_out.load(Ordering::Relaxed);
        if left_out > 0 {
            cluster_line!(&self.lines, WARN, events = left_out, "skipped Events");
        }
    }
}

/// At the end of a term, the canceled task of a cluster drops the writer without [`EventWriter::finish`]. Without this
/// implementation, the writer would continue after the Lease was released, without `DRAIN_DEADLINE`.
impl Drop for EventWriter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes all Events. This is not an `async fn`, because that would reserve space for its arguments twice.
fn write_all(
    workload: Client,
    management: Option<Client>,
    waiting: mpsc::Receiver<Box<Waiting>>,
    limits: EventLimits,
) -> impl Future<Output = ()> + Send + 'static {
    let management = management.unwrap_or_else(|| workload.clone());
    limited(waiting, limits).for_each_concurrent(WRITES_AT_ONCE, move |(cluster, event)| {
        let client = match cluster {
            Destination::Workload => &workload,
            Destination::Management => &management,
        };
        // Boxed, because each cluster's writer reserves space for one write more than it runs at the same time.
        write(client.clone(), event).map(drop).boxed()
    })
}

/// Applies the limits to Events, and counts dropped Events. Events on machines wait for their turn among the Events of
/// all clusters, without delaying Events on requests.
fn limited(
    waiting: mpsc::Receiver<Box<Waiting>>,
    limits: EventLimits,
) -> impl Stream<Item = Addressed> {
    stream::unfold(InLine::new(waiting, limits), |mut line| async {
        let next = line.next().await?;
        Some((next, line))
    })
}

/// Writes an Event about an object in the management cluster, with this type, action, reason and note. Returns whether
/// the Event was written.
///
/// The caller must limit the number of Events. A failure is logged.
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
    let parameters = PostParams::default();
    let created = created_metadata(&api, &parameters, &event);
    let written = in_time(EVENT_DEADLINE, created).await;
    let written = written.map_err(Unavailable::from);
    if let Err(error) = &written {
        tracing::debug!(error = error_chain(error), "cannot write the Event");
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
        Decision::Issue(certificate) if !is_news(certificate.grant_reason.as_ref()) => {
            return Vec::new();
        }
        Decision::Approve(approval) if !is_news(approval.grant_reason()) => return Vec::new(),
        Decision::Retry(_) | Decision::Issue(_) | Decision::Approve(_) => false,
    };
    let request = request.object_ref(&());
    let words = words(&decided.decision);
    let on_machine = decided.machine.clone().map(|machine| {
        let event = event(machine, Some(request.clone()), words.clone(), now);
        (Destination::Management, event)
    });
    let on_request = (is_refused || on_machine.is_none())
        .then(|| (Destination::Workload, event(request, None, words, now)));
    on_machine.into_iter().chain(on_request).collect()
}

fn is_news(grant_reason: Option<&GrantReason>) -> bool {
    grant_reason.is_some_and(GrantReason::is_news)
}

/// The reason for a decision.
pub(crate) fn reason(decision: &Decision) -> &'static str {
    match decision {
        Decision::Ignore(ignored) => ignored.reason(),
        Decision::Deny(denial) => denial.reason(),
        Decision::Fail(failure) => failure.reason(),
        Decision::Retry(deferral) => deferral.reason(),
        Decision::Issue(certificate) => {
            let grant_reason = certificate.grant_reason.as_ref();
            grant_reason.map_or("Issued", GrantReason::reason)
        }
        Decision::Approve(approval) => {
            let grant_reason = approval.grant_reason();
            grant_reason.map_or(approval.approval_reason().reason(), GrantReason::reason)
        }
    }
}

/// The history of the record for the name, preceded by `separator`.
pub(crate) fn grant_history(grant_reason: Option<&GrantReason>, separator: &str) -> String {
    grant_reason.map_or_else(String::new, |grant_reason| {
        format!("{separator}{grant_reason}")
    })
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
            let grant_history = grant_history(certificate.grant_reason.as_ref(), ": ");
            let note = format!(
                "issued a certificate of generation {generation} for node {name} on machine {machine}{grant_history}"
            );
            ("Normal", "Issue", note)
        }
        Decision::Approve(approval) => {
            let machine = approval.provider_id();
            let machine = machine.map_or_else(String::new, |id| format!(" on machine {id}"));
            let (name, grant_history) = (
                approval.node_name(),
                grant_history(approval.grant_reason(), ": "),
            );
            let note = format!("approved a certificate for node {name}{machine}{grant_history}");
            ("Normal", "Approve", note)
        }
    };
    (kind, action, reason(decision), note)
}

/// The note, truncated to the API's limit.
fn cut(mut note: String) -> String {
    note.truncate(note.floor_char_boundary(MAX_NOTE_LEN));
    note
}

/// Creates an Event.
///
/// kube's `Recorder` is not suitable. The recorder merges all Events with the same reason into one object and patches
/// that object. Therefore it drops the notes, although each note contains the names for one join. The recorder also
/// keeps all objects from the last minutes in memory.
pub(crate) fn event(
    regarding: ObjectReference,
    related: Option<ObjectReference>,
    (kind, action, reason, note): Words<'_>,
    now: SystemTime,
) -> Event {
    Event {
        metadata: ObjectMeta {
            // A request name is not always valid as an Event name.
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
