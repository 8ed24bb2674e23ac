//! The records of a Cluster after a backup is restored.

use std::collections::BTreeSet;
use std::time::SystemTime;

use node_attestation_core::crd::NodeIdentity;

use super::{Identities, IdentitiesError, is_revoked};
use crate::capi::ObjectKey;
use crate::client::CallError;

/// The outcome of [`Identities::restored`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Restored {
    /// The records that were reset.
    pub reset: Vec<NodeIdentity>,
    /// The number of other live records. Their nodes did not present a later generation.
    pub unchanged: usize,
    /// The error of an Event that was not created.
    pub event_error: Option<CallError>,
}

impl Identities {
    /// Resets the records of the Cluster that come from a backup: records whose node presented a certificate of a later
    /// generation with evidence, and records of `nodes`, which the operator specifies.
    ///
    /// A denial is not a reason to reset, because an attacker can cause one for any name and then claim the name. The
    /// command can be repeated, and does not change revoked records.
    ///
    /// # Errors
    ///
    /// One of `nodes` has no live record, or its certificates are revoked: then no record is reset. Or a call failed:
    /// then the records before it are reset.
    pub async fn restored(
        &self,
        cluster: &ObjectKey,
        nodes: &BTreeSet<String>,
        now: SystemTime,
    ) -> Result<Restored, IdentitiesError> {
        let ObjectKey { namespace, name } = cluster;
        let records = self.list(Some(namespace), Some(name)).await?;
        let live: Vec<_> = records
            .into_iter()
            .filter(|record| record.spec.tombstone.is_none())
            .collect();
        for node in nodes {
            let record = live.iter().find(|record| record.spec.node_name == *node);
            match record {
                None => return Err(IdentitiesError::not_found(namespace, name, node)),
                Some(record) if is_revoked(record) => {
                    return Err(IdentitiesError::Revoked(node.clone()));
                }
                Some(_) => {}
            }
        }
        let mut restored = Restored::default();
        for record in live {
            let is_named = nodes.contains(&record.spec.node_name);
            if is_revoked(&record) || !is_named && !is_from_backup(&record) {
                restored.unchanged += 1;
                continue;
            }
            let changed = Box::pin(self.reset(&record, now)).await?;
            restored.reset.push(changed.identity);
            restored.event_error = changed.event_error.or(restored.event_error);
        }
        Ok(restored)
    }
}

/// Whether the node presented a later generation with evidence.
fn is_from_backup(record: &NodeIdentity) -> bool {
    let status = record.status.as_ref();
    let presented = status.and_then(|status| status.presented_generation);
    presented.is_some_and(|presented| presented > record.spec.generation)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::client::ClusterAccess;

    /// A live record of generation 5.
    fn record(node: &str, attestor: &str, status: &Value, spec: &Value) -> Value {
        let mut object = json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
            "metadata": {
                "name": format!("prod-1.{node}"), "namespace": "default", "resourceVersion": "7",
            },
            "spec": {
                "clusterName": "prod-1", "nodeName": node, "uid": "0".repeat(32),
                "providerID": "metal:///m1", "attestor": attestor, "generation": 5,
                "opened": {
                    "keySHA256": "0".repeat(64), "requestName": "r", "requestUID": "u",
                    "time": "2026-11-21T12:00:00Z",
                },
                "notAfter": "2026-11-28T12:00:00Z",
            },
            "status": status,
        });
        for (name, value) in spec.as_object().unwrap() {
            object["spec"][name] = value.clone();
        }
        object
    }

    fn records() -> Vec<Value> {
        let at = "2026-11-22T12:00:00Z";
        let none = json!({});
        let later = json!({"presentedGeneration": 9});
        let revoked = json!({"revoked": {"generation": 5, "at": at}});
        let tombstone = json!({"tombstone": {"since": at, "reason": "MachineGone", "until": at}});
        vec![
            record("later", "tpm", &later, &none),
            record("same", "tpm", &json!({"presentedGeneration": 5}), &none),
            record("renewing", "tpm", &none, &none),
            record("revoked", "tpm", &later, &revoked),
            record("gone", "tpm", &later, &tombstone),
            record("insecure", "insecure", &none, &none),
        ]
    }

    /// A management cluster with these records, and the names of the patched ones.
    fn management() -> (ClusterAccess, Arc<Mutex<Vec<String>>>) {
        let patched: Arc<Mutex<Vec<String>>> = Arc::default();
        let names = patched.clone();
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            let (status, answer) = if path.ends_with("/nodeidentities") {
                (200, json!({"metadata": {}, "items": records()}))
            } else if *request.method() == Method::PATCH && path.contains("nodeidentities") {
                names.lock().push(name.clone());
                let found = records().into_iter();
                let mut found = found.filter(|one| one["metadata"]["name"] == name);
                (200, found.next().unwrap())
            } else {
                (403, json!({"kind": "Status", "code": 403, "metadata": {}}))
            };
            async move {
                let body = Full::new(Bytes::from(answer.to_string()));
                Response::builder().status(status).body(body).unwrap()
            }
        });
        (access, patched)
    }

    async fn restored(nodes: &[&str]) -> (Result<Restored, IdentitiesError>, Vec<String>) {
        let (access, patched) = management();
        let identities = Identities::new(&access);
        let nodes = nodes.iter().copied().map(str::to_owned).collect();
        let key = ObjectKey::new("default", "prod-1");
        let restored = identities.restored(&key, &nodes, SystemTime::UNIX_EPOCH);
        let restored = Box::pin(restored).await;
        let patched = patched.lock().clone();
        (restored, patched)
    }

    #[tokio::test]
    async fn only_a_record_whose_node_presented_a_later_generation_is_reset() {
        let (done, patched) = restored(&[]).await;

        assert_eq!(patched, ["prod-1.later"]);
        let done = done.unwrap();
        assert_eq!((done.reset.len(), done.unchanged), (1, 4));
        assert!(done.event_error.is_some());
    }

    #[tokio::test]
    async fn a_node_without_evidence_is_reset_only_if_the_operator_names_it() {
        let (done, patched) = restored(&["insecure"]).await;

        assert!(done.is_ok());
        assert_eq!(patched, ["prod-1.later", "prod-1.insecure"]);
    }

    #[tokio::test]
    async fn a_named_node_that_is_revoked_or_has_no_live_record_is_an_error() {
        let (done, patched) = restored(&["insecure", "revoked"]).await;
        assert!(matches!(done, Err(IdentitiesError::Revoked(node)) if node == "revoked"));
        assert!(patched.is_empty());

        let (done, patched) = restored(&["gone"]).await;
        assert!(matches!(done, Err(IdentitiesError::NotFound { .. })));
        assert!(patched.is_empty());
    }
}
