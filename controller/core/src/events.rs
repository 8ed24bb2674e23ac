//! Events on requests: what happened, for people who look at the object.

use std::fmt::{self, Debug};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Resource as _};

use crate::decide::Decision;
use crate::logs::error_chain;

/// What the events name as their source.
const CONTROLLER: &str = "node-attestation-controller";

/// An event is worth no longer wait: the answer itself is written already.
const EVENT_DEADLINE: Duration = Duration::from_secs(5);

/// The API's limit on a note (`k8s.io/api/events/v1`: 1 kB).
const MAX_NOTE_LEN: usize = 1000;

/// Events of what has no namespace are here (Kubernetes' event recorder), where `kubectl describe` looks for them.
const NAMESPACE: &str = "default";

/// Writes events. None of its failures ever reaches a request.
///
/// Each is an object of its own, and nothing is remembered: a request has one answer, so there is nothing to count.
#[derive(Clone)]
pub struct Events {
    api: Option<Api<Event>>,
}

impl Events {
    /// Writes to the API server that `client` speaks to.
    pub fn new(client: Client) -> Self {
        Self {
            api: Some(Api::namespaced(client, NAMESPACE)),
        }
    }

    /// Writes none.
    pub fn none() -> Self {
        Self { api: None }
    }

    /// Tells of `decision`.
    pub(crate) async fn publish(
        &self,
        request: &CertificateSigningRequest,
        decision: &Decision,
        now: SystemTime,
    ) {
        let Some(api) = &self.api else {
            return;
        };
        let Some(event) = event_of(request, decision, now) else {
            return;
        };
        let options = PostParams::default();
        match tokio::time::timeout(EVENT_DEADLINE, api.create(&options, &event)).await {
            Ok(Ok(_)) => {}
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
            .field("written", &self.api.is_some())
            .finish()
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
