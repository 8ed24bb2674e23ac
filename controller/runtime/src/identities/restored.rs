//! Recovers the records of a Cluster after a backup was restored, or after records were lost.

use std::time::SystemTime;

use node_attestation_core::crd::NodeIdentity;

use super::lost::{Named, NamedNodes};
use super::{Changed, Identities, IdentitiesError, is_revoked};
use crate::capi::ObjectKey;
use crate::client::CallError;

/// The result of [`Identities::restored`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Restored {
    /// The records that were reset. In a dry run, the records that would be reset.
    pub reset: Vec<NodeIdentity>,
    /// The lost records that were created. In a dry run, the records that would be created.
    pub recreated: Vec<NodeIdentity>,
    /// The number of other live records. Their nodes did not present a later generation.
    pub unchanged: usize,
    /// The nodes whose records were not changed, with the reason.
    pub failed: Vec<(String, CallError)>,
    /// The error, if an Event could not be created.
    pub event_error: Option<CallError>,
}

impl Identities {
    /// Resets the records of the Cluster that come from a backup. These are the records whose node presented a
    /// certificate of a later generation with evidence, and the records for `named` nodes, which the operator
    /// specifies. Creates the lost records of named nodes without evidence. A dry run does not write anything.
    ///
    /// A denial is not a reason for a reset, because an attacker can cause a denial for any name and then claim the
    /// name. The command can be repeated, and does not change revoked records. A record that changes concurrently, or
    /// that is invalid, does not affect other records.
    ///
    /// # Errors
    ///
    /// If one of the named nodes has only a retired record, if its certificates are revoked, or if it has neither a
    /// record nor a Machine, no record is changed. The same applies to a node without a record in a Cluster with
    /// evidence. If the API server does not respond, or if a permission is missing, the changes before the failure
    /// remain.
    pub async fn restored(
        &self,
        cluster: &ObjectKey,
        named: &NamedNodes,
        is_rehearsal: bool,
        now: SystemTime,
    ) -> Result<Restored, IdentitiesError> {
        let ObjectKey { namespace, name } = cluster;
        let records = self.list(Some(namespace), Some(name)).await?;
        let Named { reset: nodes, lost } =
            Box::pin(self.named(cluster, named, &records, now)).await?;
        let live: Vec<_> = records
            .into_iter()
            .filter(|record| record.spec.tombstone.is_none())
            .collect();
        for node in &named.nodes {
            let is_lost = lost.iter().any(|record| record.spec.node_name == *node);
            let record = live.iter().find(|record| record.spec.node_name == *node);
            match record {
                None if is_lost => {}
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
            let node = record.spec.node_name.clone();
            if is_rehearsal {
                if is_due(&record, is_named) {
                    restored.reset.push(record);
                } else {
                    restored.unchanged += 1;
                }
                continue;
            }
            let changed = Box::pin(self.reset_if_due(record, is_named, now)).await;
            let reset = restored.note(node, changed)?;
            restored.reset.extend(reset);
        }
        for record in lost {
            if is_rehearsal {
                restored.recreated.push(record);
                continue;
            }
            let node = record.spec.node_name.clone();
            let created = Box::pin(self.recreate(&record, now)).await.map(Some);
            let created = restored.note(node, created)?;
            restored.recreated.extend(created);
        }
        Ok(restored)
    }

    /// Resets the record if it comes from a backup, or if the operator specified its node. Otherwise, returns `None`.
    async fn reset_if_due(
        &self,
        record: NodeIdentity,
        is_named: bool,
        now: SystemTime,
    ) -> Result<Option<Changed>, IdentitiesError> {
        if !is_due(&record, is_named) {
            return Ok(None);
        }
        match Box::pin(self.reset(&record, now)).await {
            Err(IdentitiesError::Call(error)) if error.is_conflict() => {}
            changed => return changed.map(Some),
        }
        // A renewal or a sweep changed the record after it was listed.
        let namespace = record.metadata.namespace.as_deref().unwrap_or_default();
        let (cluster, node) = (&record.spec.cluster_name, &record.spec.node_name);
        // If the record now has another generation, it belongs to another holder, which the operator did not specify.
        let generation = record.spec.generation;
        match self.of_node(namespace, cluster, node).await {
            Ok(fresh) if is_due(&fresh, is_named) && fresh.spec.generation == generation => {
                Box::pin(self.reset(&fresh, now)).await.map(Some)
            }
            Ok(_) | Err(IdentitiesError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Restored {
    /// Adds the result for this node's record. Returns the record, if it was changed.
    fn note(
        &mut self,
        node: String,
        changed: Result<Option<Changed>, IdentitiesError>,
    ) -> Result<Option<NodeIdentity>, IdentitiesError> {
        match changed {
            Ok(Some(changed)) => {
                let before = self.event_error.take();
                self.event_error = changed.event_error.or(before);
                return Ok(Some(changed.identity));
            }
            Ok(None) => self.unchanged += 1,
            Err(IdentitiesError::Call(error)) if error.is_conflict() || error.is_invalid() => {
                self.failed.push((node, error));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}

/// Whether the record comes from a backup, or the operator specified its node.
fn is_due(record: &NodeIdentity, is_named: bool) -> bool {
    record.spec.tombstone.is_none() && !is_revoked(record) && (is_named || is_from_backup(record))
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

    /// The names of the records that were patched.
    type Patched = Arc<Mutex<Vec<String>>>;

    /// A record, the statuses of the first responses to writes of this record, and the fields of the record's spec
    /// after these writes.
    type Refusals = (&'static str, Vec<u16>, Value);

    /// A management cluster with these records.
    fn management(refusals: Vec<Refusals>) -> (ClusterAccess, Patched) {
        let patched = Patched::default();
        let names = patched.clone();
        let refusals = Arc::new(Mutex::new(refusals));
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            let is_patch = *request.method() == Method::PATCH;
            let (status, answer) = if path.ends_with("/nodeidentities") {
                (200, json!({"metadata": {}, "items": records()}))
            } else if path.contains("nodeidentities") {
                let found = records().into_iter();
                let mut found = found.filter(|one| one["metadata"]["name"] == name);
                let mut record = found.next().unwrap();
                let mut refusals = refusals.lock();
                let mut refused = None;
                if let Some((_, codes, spec)) = refusals.iter_mut().find(|(of, ..)| *of == name) {
                    refused = (is_patch && !codes.is_empty()).then(|| codes.remove(0));
                    for (name, value) in spec.as_object().unwrap() {
                        record["spec"][name] = value.clone();
                    }
                }
                if let Some(code) = refused {
                    let status = json!({"kind": "Status", "code": code, "metadata": {}});
                    (code, status)
                } else {
                    names.lock().extend(is_patch.then(|| name.clone()));
                    (200, record)
                }
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
        restored_with(nodes, Vec::new()).await
    }

    async fn restored_with(
        nodes: &[&str],
        refusals: Vec<Refusals>,
    ) -> (Result<Restored, IdentitiesError>, Vec<String>) {
        let (access, patched) = management(refusals);
        let identities = Identities::new(&access);
        let named = NamedNodes {
            nodes: nodes.iter().copied().map(str::to_owned).collect(),
            selector: None,
        };
        let key = ObjectKey::new("default", "prod-1");
        let restored = identities.restored(&key, &named, false, SystemTime::UNIX_EPOCH);
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

    #[tokio::test]
    async fn a_record_that_changes_during_the_command_does_not_stop_it() {
        let none = || json!({});
        let [later, insecure] = ["prod-1.later", "prod-1.insecure"];
        for (refusal, expected, failed) in [
            // A renewal changed the record, so it is read again.
            ((later, vec![409], none()), vec![later, insecure], None),
            (
                (later, vec![409, 409], none()),
                vec![insecure],
                Some("later"),
            ),
            ((later, vec![422], none()), vec![insecure], Some("later")),
            // Another machine now holds the name.
            (
                (insecure, vec![409], json!({"generation": 6})),
                vec![later],
                None,
            ),
            // The node has renewed with the generation in the record.
            (
                (later, vec![409], json!({"generation": 9})),
                vec![insecure],
                None,
            ),
        ] {
            let (done, patched) = restored_with(&["insecure"], vec![refusal.clone()]).await;

            assert_eq!(patched, expected, "{refusal:?}");
            let done = done.unwrap();
            let nodes = done.failed.iter().map(|(node, _)| node.as_str());
            assert_eq!(
                nodes.collect::<Vec<_>>(),
                Vec::from_iter(failed),
                "{refusal:?}"
            );
            assert_eq!(done.reset.len(), expected.len(), "{refusal:?}");
        }
    }

    #[tokio::test]
    async fn a_missing_permission_stops_the_command() {
        let refusal = ("prod-1.later", vec![403], json!({}));

        let (done, patched) = restored_with(&["insecure"], vec![refusal]).await;

        assert!(matches!(
            done,
            Err(IdentitiesError::Call(CallError::Refused(_)))
        ));
        assert!(patched.is_empty());
    }
}
