//! Events on requests: what happened, for people who look at the object.

use std::fmt::{self, Debug};
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};

use crate::decide::Decision;
use crate::logs::error_chain;

/// What the events name as their source.
const CONTROLLER: &str = "node-attestation-controller";

/// An event is worth no longer wait: the answer itself is written already.
const EVENT_DEADLINE: Duration = Duration::from_secs(5);

/// The API's limit on a note (`k8s.io/api/events/v1`: 1 kB).
const MAX_NOTE_LEN: usize = 1000;

/// Writes events. None of its failures ever reaches a request.
#[derive(Clone)]
pub struct Events {
    recorder: Option<Recorder>,
}

impl Events {
    /// Writes to the API server that `client` speaks to.
    ///
    /// A request has no namespace, so its events are in `default`, where `kubectl describe` looks for them.
    pub fn new(client: Client) -> Self {
        let reporter = Reporter {
            controller: CONTROLLER.to_owned(),
            instance: None,
        };
        Self {
            recorder: Some(Recorder::new(client, reporter)),
        }
    }

    /// Writes none.
    pub fn none() -> Self {
        Self { recorder: None }
    }

    /// Tells of `decision`.
    pub(crate) async fn publish(&self, request: &CertificateSigningRequest, decision: &Decision) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let Some(event) = event_of(decision) else {
            return;
        };
        let regarding = request.object_ref(&());
        match tokio::time::timeout(EVENT_DEADLINE, recorder.publish(&event, &regarding)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(error = error_chain(&error), "the event was not written");
            }
            Err(_) => tracing::debug!("the event was not written in time"),
        }
    }
}

impl Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("written", &self.recorder.is_some())
            .finish()
    }
}

fn event_of(decision: &Decision) -> Option<Event> {
    let (type_, action, reason, note) = match decision {
        Decision::Ignore(_) => return None,
        Decision::Issue(certificate) => (
            EventType::Normal,
            "Issue",
            "Issued",
            format!(
                "issued a certificate to node {} on machine {}",
                certificate.node_name(),
                certificate.provider_id()
            ),
        ),
        Decision::Deny(denial) => {
            let note = error_chain(denial);
            (EventType::Warning, "Deny", denial.reason(), note)
        }
        Decision::Fail(failure) => {
            let note = error_chain(failure);
            (EventType::Warning, "Fail", failure.reason(), note)
        }
        Decision::Retry(deferral) => {
            let note = error_chain(deferral);
            (EventType::Normal, "Defer", deferral.reason(), note)
        }
    };
    let note = note.chars().take(MAX_NOTE_LEN / char::MAX.len_utf8());
    Some(Event {
        type_,
        reason: reason.to_owned(),
        note: Some(note.collect()),
        action: action.to_owned(),
        secondary: None,
    })
}
