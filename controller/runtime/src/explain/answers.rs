//! The conditions on a request, and its Events.

use std::time::SystemTime;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::api::{Api, ListParams};
use kubelet_attestation::errors::error_chain;
use serde::Serialize;

use super::{Explainer, bounded, is_answered};
use crate::client::{CallError, call};
use crate::watch::{Lenient, page_of};

/// The namespace for Events about cluster-scoped objects.
const NAMESPACE: &str = "default";

/// The maximum number of Events to read for one object.
const MAX_EVENTS: u32 = 50;

/// A condition of a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Condition {
    /// `Approved`, `Denied` or `Failed`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The reason.
    pub reason: String,
    /// The message.
    pub message: String,
    /// The time.
    pub time: Option<String>,
}

/// An Event.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RelatedEvent {
    /// The kind and name of the object.
    pub on: String,
    /// The time.
    pub time: Option<String>,
    /// The reason.
    pub reason: String,
    /// The note.
    pub note: String,
}

/// The maximum number of conditions. A valid request has at most one condition of each of the three types.
const MAX_CONDITIONS: usize = 16;

pub(super) fn conditions(request: &CertificateSigningRequest) -> Vec<Condition> {
    let text = |text: &Option<String>| bounded(text.as_deref().unwrap_or_default());
    let status = request.status.iter();
    let conditions = status.flat_map(|status| status.conditions.iter().flatten());
    conditions
        .take(MAX_CONDITIONS)
        .map(|one| Condition {
            kind: bounded(&one.type_),
            reason: text(&one.reason),
            message: text(&one.message),
            time: one.last_update_time.as_ref().map(|time| time.0.to_string()),
        })
        .collect()
}

/// The time of the answer. `None` if the request is pending.
pub(super) fn time(request: &CertificateSigningRequest) -> Option<SystemTime> {
    if !is_answered(request) {
        return None;
    }
    let conditions = request.status.as_ref()?.conditions.as_ref()?;
    let times = conditions
        .iter()
        .filter_map(|one| one.last_update_time.as_ref());
    times.map(|time| time.0).max().map(SystemTime::from)
}

impl Explainer {
    /// The Events on the request, and the Events on its machine that refer to the request, oldest first.
    pub(super) async fn events(
        &self,
        request: &CertificateSigningRequest,
        machine: Option<ObjectReference>,
        notes: &mut Vec<String>,
    ) -> Vec<RelatedEvent> {
        let Some(name) = &request.metadata.name else {
            return Vec::new();
        };
        let mut related_events = Vec::new();
        if let Some(workload) = &self.workload {
            let kind = "CertificateSigningRequest";
            let found = events(workload.client(), NAMESPACE, kind, name).await;
            keep(found, "the request", notes, &mut related_events);
        }
        let client = self.management.as_ref().map(|(access, _)| access.client());
        if let (Some(client), Some(machine)) = (client, machine) {
            let namespace = machine.namespace.as_deref().unwrap_or(NAMESPACE);
            let kind = machine.kind.as_deref().unwrap_or_default();
            let its_name = machine.name.as_deref().unwrap_or_default();
            let found = events(client, namespace, kind, its_name).await;
            let found = found.map(|mut all| {
                all.retain(|event| {
                    let related = event.related.as_ref();
                    related.is_some_and(|related| related.name.as_ref() == Some(name))
                });
                all
            });
            keep(found, "the machine", notes, &mut related_events);
        }
        related_events.sort_by(|one, other| one.time.cmp(&other.time));
        related_events
    }
}

async fn events(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<Vec<Event>, CallError> {
    let api: Api<Lenient<Event>> = Api::namespaced(client.clone(), namespace);
    let of = format!("regarding.kind={kind},regarding.name={name}");
    let list = ListParams::default().fields(&of).limit(MAX_EVENTS);
    let events = call(page_of(&api, &list)).await?.items;
    Ok(events
        .into_iter()
        .filter_map(|one| one.object.ok())
        .collect())
}

fn keep(
    found: Result<Vec<Event>, CallError>,
    of: &str,
    notes: &mut Vec<String>,
    related_events: &mut Vec<RelatedEvent>,
) {
    match found {
        Ok(events) => related_events.extend(events.into_iter().map(|event| {
            let on = event.regarding.unwrap_or_default();
            let (kind, name) = (on.kind.unwrap_or_default(), on.name.unwrap_or_default());
            let text = |text: Option<String>| bounded(&text.unwrap_or_default());
            RelatedEvent {
                on: bounded(&format!("{kind} {name}")),
                time: event.event_time.map(|time| format!("{:.0}", time.0)),
                reason: text(event.reason),
                note: text(event.note),
            }
        })),
        Err(error) => {
            let error = error_chain(&error);
            notes.push(format!("cannot read the Events on {of}: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::{
        CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    };

    use super::super::MAX_TEXT_LEN;
    use super::*;

    fn long() -> String {
        "n".repeat(1 << 16)
    }

    #[test]
    fn many_long_conditions_of_a_request_are_truncated() {
        let condition = CertificateSigningRequestCondition {
            type_: long(),
            reason: Some(long()),
            message: Some(long()),
            ..CertificateSigningRequestCondition::default()
        };
        let status = CertificateSigningRequestStatus {
            conditions: Some(vec![condition; 1000]),
            ..CertificateSigningRequestStatus::default()
        };
        let request = CertificateSigningRequest {
            status: Some(status),
            ..CertificateSigningRequest::default()
        };

        let shown = conditions(&request);

        assert_eq!(shown.len(), MAX_CONDITIONS);
        for one in shown {
            let lengths = [one.kind, one.reason, one.message].map(|text| text.len());
            assert_eq!(lengths, [MAX_TEXT_LEN; 3]);
        }
    }

    #[test]
    fn long_texts_of_an_event_are_truncated() {
        let regarding = ObjectReference {
            name: Some(long()),
            ..ObjectReference::default()
        };
        let event = Event {
            reason: Some(long()),
            note: Some(long()),
            regarding: Some(regarding),
            ..Event::default()
        };
        let (mut notes, mut related_events) = (Vec::new(), Vec::new());

        keep(
            Ok(vec![event]),
            "the request",
            &mut notes,
            &mut related_events,
        );

        let one = related_events.remove(0);
        let lengths = [one.on, one.reason, one.note].map(|text| text.len());
        assert_eq!(lengths, [MAX_TEXT_LEN; 3]);
    }
}
