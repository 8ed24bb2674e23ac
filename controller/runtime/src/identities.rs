//! Operator commands for the records in a management cluster: show, reset, revoke, and recover after a restore.
//!
//! Each command writes to the record or to the `KubeletAuthentication`, and the controller reacts to the change. The
//! write contains the operator's name, as the API server reports it, so that an admission policy can check it. The
//! command also creates an Event that contains this name. If the Event cannot be created, the write is kept.

use std::time::SystemTime;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::events::v1::Event;
use kube::Resource;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kubelet_attestation::ensure;
use node_attestation_core::crd::{
    CHANGED_BY_ANNOTATION, CLUSTER_NAME_LABEL, NodeIdentity, NodeIdentitySpec, RESET_ANNOTATION,
    Revoked, object_name,
};
use node_attestation_core::ledger::whole_seconds;
use serde_json::{Value, json};

mod decisions;
mod lost;
mod restored;
mod selected;

pub use lost::NamedNodes;
pub use restored::Restored;
pub use selected::IdentityChange;

use crate::capi::{ObjectKey, member_machines};
use crate::client::{CallError, ClusterAccess, call};
use crate::events::event;
use crate::watch::{Lenient, Skipped, all_of, created, patched, readable_one_of, reviewed};

/// The records of a management cluster, for operators.
#[derive(Debug, Clone)]
pub struct Identities {
    management: ClusterAccess,
}

/// A record that was changed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Changed {
    /// The record after the change. If the response was unreadable, the record that was sent or changed.
    pub identity: NodeIdentity,
    /// The error, if the Event could not be created.
    pub event_error: Option<CallError>,
}

/// A command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentitiesError {
    /// The record does not exist.
    #[error("NodeIdentity {namespace}/{name} does not exist")]
    NotFound {
        /// The namespace of the record.
        namespace: String,
        /// The name of the record.
        name: String,
    },
    /// The Cluster does not have a `KubeletAuthentication`.
    #[error("Cluster {0} has no KubeletAuthentication")]
    NoAuthentication(ObjectKey),
    /// A node without a record has no Machine that the operator could have meant.
    #[error("node {0} has neither a node identity nor a Machine with its name and a provider ID")]
    NoMachine(String),
    /// Several Machines have the Node of a lost record.
    #[error("several Machines have the Node {0} in their status, so no node identity was created")]
    SeveralMachines(String),
    /// A record can be created only for a node without evidence.
    #[error(
        "the nodes of Cluster {0} have evidence: to recover missing node identities, set adoption: Recover"
    )]
    HasEvidence(ObjectKey),
    /// The labels do not show which nodes have evidence.
    #[error(
        "some nodes of Cluster {0} have evidence: specify the nodes without evidence by name, not with a selector"
    )]
    MixedEvidence(ObjectKey),
    /// The certificates for the record are revoked.
    #[error(
        "the certificates of node {0} are revoked: to allow its machine to join again, set --revoked"
    )]
    Revoked(String),
    /// The requested lowest valid generation is lower than the current one.
    #[error(
        "generation {floor} is lower than the current floor, {before}, which can only increase"
    )]
    FloorFalls {
        /// The requested lowest valid generation.
        floor: u64,
        /// The current lowest valid generation.
        before: u64,
    },
    /// The lowest valid generation is in the future, and would also reject new certificates.
    #[error("generation {0} is in the future")]
    FloorInFuture(u64),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl IdentitiesError {
    fn not_found(namespace: &str, cluster: &str, node: &str) -> Self {
        Self::NotFound {
            namespace: namespace.to_owned(),
            name: object_name(cluster, node),
        }
    }
}

/// The reason and the note of an Event, and the operator's name, if it is known.
type EventText<'a> = (&'a str, String, Option<String>);

/// Whether an operator revoked the certificates of the current generation.
fn is_revoked(identity: &NodeIdentity) -> bool {
    let revoked = identity.spec.revoked.as_ref();
    revoked.is_some_and(|revoked| revoked.generation >= identity.spec.generation)
}

impl Identities {
    /// Creates access to the records in this management cluster.
    pub fn new(management: &ClusterAccess) -> Self {
        Self {
            management: management.clone(),
        }
    }

    /// All records, or only the records for one namespace or Cluster. Logs records that cannot be decoded.
    ///
    /// # Errors
    ///
    /// Returns an error if the records could not be read.
    pub async fn list(
        &self,
        namespace: Option<&str>,
        cluster: Option<&str>,
    ) -> Result<Vec<NodeIdentity>, IdentitiesError> {
        let client = self.management.client().clone();
        let api: Api<Lenient<NodeIdentity>> = match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let mut wanted = ListParams::default();
        if let Some(cluster) = cluster {
            wanted = wanted.labels(&format!("{CLUSTER_NAME_LABEL}={cluster}"));
        }
        let mut skipped = Skipped::new("NodeIdentity");
        let mut records = Vec::new();
        for seen in all_of(&api, wanted).await? {
            match seen.object {
                Ok(record) => records.push(record),
                Err(error) => skipped.note(&seen.metadata, &error),
            }
        }
        Ok(records)
    }

    /// The live records in a Cluster whose Machines match this label selector.
    ///
    /// # Errors
    ///
    /// Returns an error if the Machines or the records could not be read.
    pub async fn of_machines(
        &self,
        cluster: &ObjectKey,
        labels: &str,
    ) -> Result<Vec<NodeIdentity>, IdentitiesError> {
        let machines = member_machines(self.management.client(), cluster, labels).await?;
        let ObjectKey { namespace, name } = cluster;
        let mut records = self.list(Some(namespace), Some(name)).await?;
        records.retain(|record| {
            let machine = record.spec.machine_name.as_ref();
            let mut names = machines.iter().map(|machine| &machine.name);
            let is_selected = machine.is_some_and(|name| names.any(|one| one == name));
            is_selected && record.spec.tombstone.is_none()
        });
        Ok(records)
    }

    /// The record for a node name.
    ///
    /// # Errors
    ///
    /// Returns an error if the object does not exist or cannot be read.
    pub async fn of_node(
        &self,
        namespace: &str,
        cluster: &str,
        node: &str,
    ) -> Result<NodeIdentity, IdentitiesError> {
        let name = object_name(cluster, node);
        let api: Api<NodeIdentity> = Api::namespaced(self.management.client().clone(), namespace);
        let found = call(readable_one_of(&api, &name)).await?;
        found.ok_or_else(|| IdentitiesError::not_found(namespace, cluster, node))
    }

    /// Resets the record, so that the next claim can replace its current generation.
    ///
    /// # Errors
    ///
    /// Returns an error if the record's certificates are revoked, if the record has changed since it was read, or if it
    /// could not be written.
    pub async fn reset(
        &self,
        identity: &NodeIdentity,
        now: SystemTime,
    ) -> Result<Changed, IdentitiesError> {
        let node = &identity.spec.node_name;
        ensure!(
            !is_revoked(identity),
            IdentitiesError::Revoked(node.clone())
        );
        self.reset_revoked(identity, now).await
    }

    /// Resets the record even if its certificates are revoked. The caller must [release](Self::release) its machine
    /// first.
    ///
    /// # Errors
    ///
    /// Returns an error if the record has changed since it was read, or if it could not be written.
    pub async fn reset_revoked(
        &self,
        identity: &NodeIdentity,
        now: SystemTime,
    ) -> Result<Changed, IdentitiesError> {
        let generation = identity.spec.generation.to_string();
        let who = self.who().await;
        let patch = json!({
            "metadata": {
                "resourceVersion": identity.metadata.resource_version,
                "annotations": {RESET_ANNOTATION: generation, CHANGED_BY_ANNOTATION: who},
            },
        });
        let note = format!(
            "generation {generation} of node {} was reset: the next valid claim opens a new generation",
            identity.spec.node_name
        );
        let text = ("ResetRequested", note, who);
        self.write(identity, patch, text, now).await
    }

    /// Revokes the certificates of the record's current generation, and cancels a reset.
    ///
    /// # Errors
    ///
    /// Returns an error if the record has changed since it was read, or if it could not be written.
    pub async fn revoke(
        &self,
        identity: &NodeIdentity,
        now: SystemTime,
    ) -> Result<Changed, IdentitiesError> {
        let NodeIdentitySpec {
            generation,
            cluster_name,
            provider_id,
            ..
        } = &identity.spec;
        let namespace = identity.metadata.namespace.clone().unwrap_or_default();
        let cluster = ObjectKey::new(namespace, cluster_name);
        let who = self.who().await;
        self.take_release_back(&cluster, provider_id, who.as_deref())
            .await?;
        let generation = *generation;
        let revoked = Revoked {
            generation,
            // The expiry time of the entry depends on this time. If this machine's clock were used and were slow, the
            // entry could expire too early. If it were fast, a release by another operator could have no effect.
            at: whole_seconds(self.present(now)),
        };
        let patch = json!({
            "metadata": {
                "resourceVersion": identity.metadata.resource_version,
                "annotations": {RESET_ANNOTATION: null, CHANGED_BY_ANNOTATION: who},
            },
            "spec": {"revoked": revoked},
        });
        let note = format!(
            "the certificates of generation {generation} of node {} were revoked",
            identity.spec.node_name
        );
        let text = ("Revoked", note, who);
        self.write(identity, patch, text, now).await
    }

    /// Patches the record, if it still has the version that the operator has read.
    async fn write(
        &self,
        identity: &NodeIdentity,
        patch: Value,
        text: EventText<'_>,
        now: SystemTime,
    ) -> Result<Changed, IdentitiesError> {
        let namespace = identity.metadata.namespace.clone().unwrap_or_default();
        let name = identity.metadata.name.as_deref().unwrap_or_default();
        let api: Api<NodeIdentity> = Api::namespaced(self.management.client().clone(), &namespace);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let written = call(patched(&api, name, &parameters, &patch)).await?;
        let written = written.readable_or(identity);
        let event = self.write_event(&namespace, &written, text, now).await;
        Ok(Changed {
            identity: written,
            event_error: event.err(),
        })
    }

    /// Creates the Event for a write, with the operator's name.
    async fn write_event(
        &self,
        namespace: &str,
        written: &impl Resource<DynamicType = ()>,
        (reason, note, who): EventText<'_>,
        now: SystemTime,
    ) -> Result<(), CallError> {
        let who = who.as_deref().unwrap_or("an unknown user");
        let note = format!("{note}, by {who}");
        let words = ("Warning", "Identities", reason, note);
        let event = event(written.object_ref(&()), None, words, now);
        let events: Api<Event> = Api::namespaced(self.management.client().clone(), namespace);
        let parameters = PostParams::default();
        let written = created(&events, &parameters, &event);
        call(written).await.map(drop)
    }

    /// The requester's user name, as reported by the API server. A failure must not delay a revocation.
    async fn who(&self) -> Option<String> {
        let reviews: Api<SelfSubjectReview> = Api::all(self.management.client().clone());
        let review = SelfSubjectReview::default();
        let answer = call(reviewed(&reviews, &review)).await;
        answer.ok()?.status?.user_info?.username
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use kubelet_attestation::names::ProviderId;
    use parking_lot::Mutex;

    use super::*;

    mod clocks;
    mod durations;

    pub(super) fn record() -> NodeIdentity {
        let object = json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
            "metadata": {"name": "prod-1.n1", "namespace": "default", "resourceVersion": "7"},
            "spec": {
                "clusterName": "prod-1", "nodeName": "n1", "uid": "0".repeat(32),
                "providerID": "metal:///m1", "attestor": "null", "generation": 1,
                "opened": {
                    "keySHA256": "0".repeat(64), "requestName": "r", "requestUID": "u",
                    "time": "2026-11-21T12:00:00Z",
                },
                "notAfter": "2026-11-28T12:00:00Z",
            },
        });
        serde_json::from_value(object).unwrap()
    }

    /// A management cluster that accepts writes to records and rejects Events.
    fn without_events() -> Identities {
        let management = ClusterAccess::in_memory(|request: Request<Body>| async move {
            let (status, answer) = if request.uri().path().contains("nodeidentities") {
                (200, serde_json::to_value(record()).unwrap())
            } else {
                (
                    403,
                    json!({"kind": "Status", "status": "Failure", "code": 403}),
                )
            };
            let response = Response::builder().status(status);
            response
                .body(Full::new(Bytes::from(answer.to_string())))
                .unwrap()
        });
        Identities { management }
    }

    #[tokio::test]
    async fn a_record_change_succeeds_even_if_its_event_fails() {
        let identities = without_events();

        let now = SystemTime::UNIX_EPOCH;
        for changed in [
            identities.revoke(&record(), now).await,
            identities.reset(&record(), now).await,
        ] {
            let changed = changed.unwrap();
            assert_eq!(changed.identity, record());
            assert!(changed.event_error.is_some());
        }
    }

    /// The user name in each write: in each patch, and at the end of each Event's note.
    type Names = Arc<Mutex<Vec<Value>>>;

    /// A management cluster that reports this user, and contains one `KubeletAuthentication`.
    fn with_user(name: &'static str) -> (Identities, Names) {
        let names = Names::default();
        let written = names.clone();
        let management = ClusterAccess::in_memory(move |request: Request<Body>| {
            let written = written.clone();
            async move {
                let is_patch = *request.method() == Method::PATCH;
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                if is_patch {
                    let annotations = &body["metadata"]["annotations"];
                    written
                        .lock()
                        .push(annotations[CHANGED_BY_ANNOTATION].clone());
                }
                let answer = if path.contains("selfsubjectreviews") {
                    json!({"metadata": {}, "status": {"userInfo": {"username": name}}})
                } else if path.contains("kubeletauthentications") {
                    json!({
                        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
                        "kind": "KubeletAuthentication",
                        "metadata": {"name": "prod-1", "namespace": "default"},
                        "spec": {"clusterName": "prod-1", "authorizedAttestors": ["null"]},
                    })
                } else if path.contains("nodeidentities") {
                    serde_json::to_value(record()).unwrap()
                } else {
                    let note = body["note"].as_str().unwrap_or_default();
                    let (_, by) = note.rsplit_once(", by ").unwrap_or_default();
                    written.lock().push(json!(by));
                    body
                };
                let body = Full::new(Bytes::from(answer.to_string()));
                Response::builder().body(body).unwrap()
            }
        });
        (Identities { management }, names)
    }

    #[tokio::test]
    async fn a_floor_can_be_the_second_after_the_present_one_but_not_later() {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(7_500);
        let cluster = ObjectKey::new("default", "prod-1");
        for (floor, is_raised) in [(7, true), (8, true), (9, false)] {
            let (identities, _) = with_user("jane@example.com");

            let raised = identities.raise_floor(&cluster, Some(floor), now).await;

            match raised {
                Ok((raised, event_error)) => {
                    assert!(event_error.is_none() && is_raised, "{floor}");
                    assert_eq!(raised, floor);
                }
                Err(IdentitiesError::FloorInFuture(found)) => {
                    assert!(found == floor && !is_raised, "{floor}");
                }
                Err(error) => panic!("{floor}: {error}"),
            }
        }
    }

    #[tokio::test]
    async fn each_change_and_its_event_have_the_authenticated_user_name() {
        let now = SystemTime::UNIX_EPOCH;
        let cluster = ObjectKey::new("default", "prod-1");
        let machine = || ProviderId::parse("metal:///m1").unwrap();
        let acts = ["revoke", "reset", "release", "floor"];
        for act in acts {
            let (identities, names) = with_user("jane@example.com");

            let event_error = match act {
                "revoke" => identities.revoke(&record(), now).await.unwrap().event_error,
                "reset" => identities.reset(&record(), now).await.unwrap().event_error,
                "release" => {
                    let released = identities.release(&cluster, machine(), None, now);
                    released.await.unwrap()
                }
                _ => {
                    let raised = identities.raise_floor(&cluster, Some(0), now).await;
                    raised.unwrap().1
                }
            };

            assert!(event_error.is_none(), "{act}: {event_error:?}");
            let names = names.lock().clone();
            assert_eq!(names, ["jane@example.com", "jane@example.com"], "{act}");
        }
    }
}
