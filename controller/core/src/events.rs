//! Events on requests: what happened, for people who look at the object.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Resource as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::decide::Decision;
use crate::logs::error_chain;

/// What the events name as their source.
const CONTROLLER: &str = "node-attestation-controller";

/// For one event; what takes longer is given up, so that those behind it have their turn.
const EVENT_DEADLINE: Duration = Duration::from_secs(5);

/// How many are written at once: fewer than requests are answered at once, as they matter less.
const WRITES_AT_ONCE: usize = 4;

/// How many may wait to be written: some thousand machines that join at once, at 1 kB each.
const MAX_WAITING: usize = 2048;

/// How long those that still wait may take on a stop: the answers are written by then, and whoever
/// stops a Pod waits for no more than 30 s in all.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

/// The API's limit on a note (`k8s.io/api/events/v1`: 1 kB).
const MAX_NOTE_LEN: usize = 1000;

/// Events of what has no namespace are here (Kubernetes' event recorder), where `kubectl describe`
/// looks for them.
const NAMESPACE: &str = "default";

/// Takes events to be written by an [`EventWriter`]. It never waits, and none of its failures ever
/// reaches a request: where too many wait already, an event is left out.
///
/// Each is an object of its own, and nothing is remembered: a request has one answer, so there is
/// nothing to count.
#[derive(Debug, Clone)]
pub struct Events {
    waiting: Option<mpsc::Sender<Event>>,
    left_out: Arc<AtomicU64>,
}

/// The task that writes events.
#[derive(Debug)]
#[must_use = "what still waits is written only while somebody waits for it"]
pub struct EventWriter {
    task: JoinHandle<()>,
    left_out: Arc<AtomicU64>,
}

impl Events {
    /// Begins to write to the API server that `client` speaks to.
    pub fn start(client: Client) -> (Self, EventWriter) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let left_out = Arc::new(AtomicU64::new(0));
        let writer = EventWriter {
            task: tokio::spawn(write_all(Api::namespaced(client, NAMESPACE), receiver)),
            left_out: left_out.clone(),
        };
        let events = Self {
            waiting: Some(sender),
            left_out,
        };
        (events, writer)
    }

    /// Writes none.
    pub fn none() -> Self {
        Self {
            waiting: None,
            left_out: Arc::default(),
        }
    }

    /// Tells of `decision`.
    pub(crate) fn publish(
        &self,
        request: &CertificateSigningRequest,
        decision: &Decision,
        now: SystemTime,
    ) {
        let Some(waiting) = &self.waiting else {
            return;
        };
        let Some(event) = event_of(request, decision, now) else {
            return;
        };
        if waiting.try_send(event).is_err() && self.left_out.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("events come faster than they can be written; some are left out");
        }
    }
}

impl EventWriter {
    /// Waits for what still is to be written, and no longer than a moment.
    ///
    /// Every [`Events`] must be dropped before: while there is one, more can come.
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

async fn write_all(api: Api<Event>, mut waiting: mpsc::Receiver<Event>) {
    stream::poll_fn(|context| waiting.poll_recv(context))
        .for_each_concurrent(WRITES_AT_ONCE, |event| write(&api, event))
        .await;
}

async fn write(api: &Api<Event>, event: Event) {
    let options = PostParams::default();
    match timeout(EVENT_DEADLINE, api.create(&options, &event)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            tracing::debug!(error = error_chain(&error), "the event was not written");
        }
        Err(_) => tracing::debug!("the event was not written in time"),
    }
}

fn event_of(
    request: &CertificateSigningRequest,
    decision: &Decision,
    now: SystemTime,
) -> Option<Event> {
    let (kind, action, reason, note) = match decision {
        Decision::Ignore(_) => return None,
        Decision::Issue(certificate) => (
            "Normal",
            "Issue",
            "Issued",
            format!(
                "issued a certificate to node {} on machine {}",
                certificate.node_name(),
                certificate.provider_id()
            ),
        ),
        Decision::Approve(approval) => (
            "Normal",
            "Approve",
            approval.basis().reason(),
            format!(
                "approved a certificate of node {} on machine {}",
                approval.node_name(),
                approval.provider_id()
            ),
        ),
        Decision::Deny(denial) => ("Warning", "Deny", denial.reason(), error_chain(denial)),
        Decision::Fail(failure) => ("Warning", "Fail", failure.reason(), error_chain(failure)),
        Decision::Retry(deferral) => ("Normal", "Defer", deferral.reason(), error_chain(deferral)),
    };
    let note = note.chars().take(MAX_NOTE_LEN / char::MAX.len_utf8());
    Some(Event {
        metadata: ObjectMeta {
            // The request's own name need not be one that an event may have.
            generate_name: Some(format!("{CONTROLLER}-")),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Timestamp::try_from(now).ok().map(MicroTime),
        type_: Some(kind.to_owned()),
        action: Some(action.to_owned()),
        reason: Some(reason.to_owned()),
        note: Some(note.collect()),
        regarding: Some(request.object_ref(&())),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(CONTROLLER.to_owned()),
        ..Event::default()
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;
    use crate::refusal::Denial;
    use crate::request::forge::{now, valid};

    #[test]
    fn an_event_has_what_the_api_asks_for() {
        let denial = Decision::Deny(Denial::NoPemBlock);

        let event = event_of(&valid(), &denial, now()).unwrap();

        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.reason.as_deref(), Some("NoPemBlock"));
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        assert!(event.event_time.is_some());
        let regarding = event.regarding.unwrap();
        assert_eq!(regarding.kind.as_deref(), Some("CertificateSigningRequest"));
        assert_eq!(regarding.name, valid().metadata.name);
    }

    /// An API server that takes connections and never answers.
    fn silent() -> (std::net::TcpListener, Client) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let config = kube::Config::new(url.parse().unwrap());
        (listener, Client::try_from(config).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_takes_no_events_costs_no_time_and_little_memory() {
        let (_listener, client) = silent();
        let (events, writer) = Events::start(client);
        let denial = Decision::Deny(Denial::NoPemBlock);
        let begun = tokio::time::Instant::now();

        for _ in 0..=MAX_WAITING {
            events.publish(&valid(), &denial, now());
        }

        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(events.left_out.load(Ordering::Relaxed), 1);
        drop(events);
        writer.finish().await;
        assert_eq!(begun.elapsed().as_secs(), DRAIN_DEADLINE.as_secs());
    }

    #[tokio::test]
    async fn what_waits_on_a_stop_is_still_written() {
        let (listener, client) = silent();
        let server = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = [0; 4];
            connection.read_exact(&mut request).unwrap();
            let refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";
            connection.write_all(refusal).unwrap();
            request
        });
        let (events, writer) = Events::start(client);

        events.publish(&valid(), &Decision::Deny(Denial::NoPemBlock), now());
        drop(events);
        writer.finish().await;

        assert_eq!(&server.join().unwrap(), b"POST");
    }

    #[test]
    fn a_long_note_is_cut_to_the_apis_limit() {
        let denial = Decision::Deny(Denial::NotStrictDer {
            detail: "\u{1f600}".repeat(2000),
        });

        let event = event_of(&valid(), &denial, now()).unwrap();

        assert!(event.note.unwrap().len() <= MAX_NOTE_LEN);
    }

    #[test]
    fn what_is_not_ours_is_not_told_of() {
        let ignored = Decision::Ignore(crate::refusal::Ignored::AlreadyDenied);

        assert_eq!(event_of(&valid(), &ignored, now()), None);
    }
}
