//! Recreates the lost records of nodes without evidence.
//!
//! Such a node cannot prove that it held its name, so an operator decides. The new record refers to the node's Machine,
//! and is reset: the next claim with a token of this Machine opens a generation, whether the Node is up or down. While
//! the Node is up, another machine cannot claim the name. The record does not contain the UID from the node's current
//! certificate. Therefore this certificate remains valid until it expires, and can be revoked only with the lowest
//! valid generation.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kubelet_attestation::ensure;
use kubelet_attestation::names::Provider;
use node_attestation_core::crd::{
    CHANGED_BY_ANNOTATION, CLUSTER_NAME_LABEL, KubeletAuthentication, NodeIdentity,
    NodeIdentitySpec, Opened, RESET_ANNOTATION, object_name,
};
use node_attestation_core::identifiers::RecordUid;
use node_attestation_core::ledger::whole_seconds;

use super::{Changed, Identities, IdentitiesError};
use crate::capi::{MemberMachine, ObjectKey, is_cluster, member_machines};
use crate::client::call;
use crate::watch::created;

/// The maximum validity of a certificate without evidence. The lost record contained the expiry time of the current
/// certificate.
const LONGEST: Duration = Duration::from_hours(366 * 24);

/// The request and the key in a record that no request created. No key has this digest.
const NO_REQUEST: &str = "identities-restored";
const NO_KEY: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The nodes that an operator specifies.
#[derive(Debug, Clone, Default)]
pub struct NamedNodes {
    /// The names of Nodes.
    pub nodes: BTreeSet<String>,
    /// A label selector for Machines.
    pub selector: Option<String>,
}

/// The records of the specified nodes.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// The nodes whose live records are reset.
    pub(super) reset: BTreeSet<String>,
    /// The records to create.
    pub(super) lost: Vec<NodeIdentity>,
}

impl Identities {
    /// The named nodes with a live record in `records`, and new records for the nodes without any record. A selector
    /// names only nodes without evidence. Therefore, if attestors with evidence are also authorized, a selector does
    /// not name nodes without a record. The new record of such a node would permit a claim with only its token.
    pub(super) async fn named(
        &self,
        cluster: &ObjectKey,
        named: &NamedNodes,
        records: &[NodeIdentity],
        now: SystemTime,
    ) -> Result<Named, IdentitiesError> {
        let has_record = |node: &str| records.iter().any(|one| one.spec.node_name == node);
        let nodes = named.nodes.iter().cloned();
        let (reset, mut missing): (BTreeSet<_>, BTreeSet<_>) =
            nodes.partition(|node| has_record(node));
        let mut found = Named {
            reset,
            lost: Vec::new(),
        };
        let (mut machines, mut is_selected) = (Vec::new(), false);
        if !missing.is_empty() {
            machines = member_machines(self.management.client(), cluster, "").await?;
            machines.retain(|machine| {
                let node = machine.node.as_ref();
                node.is_some_and(|node| missing.contains(node.as_str()))
            });
        }
        if let Some(labels) = &named.selector {
            let selected = member_machines(self.management.client(), cluster, labels).await?;
            for machine in selected {
                let Some(node) = machine.node.as_ref().map(ToString::to_string) else {
                    continue;
                };
                let record = records.iter().find(|one| one.spec.node_name == node);
                match record.map(|record| &record.spec) {
                    Some(spec) => {
                        let is_insecure = spec.attestor == Provider::INSECURE.as_str();
                        let is_its = spec.machine_name.as_ref() == Some(&machine.name);
                        found.reset.extend((is_insecure && is_its).then_some(node));
                    }
                    None if named.nodes.contains(&node) => {}
                    None => {
                        is_selected = true;
                        missing.insert(node);
                        machines.push(machine);
                    }
                }
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let authentication = self.authentication(cluster).await?;
        let attestors = authentication.spec.authorized_attestors.iter();
        let (insecure, others): (Vec<_>, Vec<_>) =
            attestors.partition(|one| *one == Provider::INSECURE.as_str());
        ensure!(
            !insecure.is_empty(),
            IdentitiesError::HasEvidence(cluster.clone())
        );
        ensure!(
            others.is_empty() || !is_selected,
            IdentitiesError::MixedEvidence(cluster.clone())
        );
        let who = self.who().await;
        let now = whole_seconds(self.present(now));
        for machine in machines {
            let identity = record(&authentication, cluster, machine, (who.as_deref(), now));
            let Some(identity) = identity else { continue };
            let node = &identity.spec.node_name;
            // Only one of the Machines can have this Node, but the status does not show which one.
            ensure!(
                missing.remove(node),
                IdentitiesError::SeveralMachines(node.clone())
            );
            found.lost.push(identity);
        }
        match missing.pop_first() {
            Some(node) => Err(IdentitiesError::NoMachine(node)),
            None => Ok(found),
        }
    }

    /// Creates the record of a node without evidence.
    pub(super) async fn recreate(
        &self,
        identity: &NodeIdentity,
        now: SystemTime,
    ) -> Result<Changed, IdentitiesError> {
        let namespace = identity.metadata.namespace.clone().unwrap_or_default();
        let api: Api<NodeIdentity> = Api::namespaced(self.management.client().clone(), &namespace);
        let written = call(created(&api, &PostParams::default(), identity)).await?;
        let written = written.readable_or(identity);
        let NodeIdentitySpec {
            node_name,
            provider_id,
            ..
        } = &written.spec;
        let note = format!(
            "the lost node identity of node {node_name} was recreated for machine {provider_id}: the next valid \
             claim opens a new generation"
        );
        let annotations = written.metadata.annotations.as_ref();
        let who = annotations.and_then(|all| all.get(CHANGED_BY_ANNOTATION).cloned());
        let text = ("IdentityRecreated", note, who);
        let event = self.write_event(&namespace, &written, text, now).await;
        Ok(Changed {
            identity: written,
            event_error: event.err(),
        })
    }
}

/// Returns a new record for this Machine. The record is reset. `None` if the Machine has no Node or no provider ID.
fn record(
    authentication: &KubeletAuthentication,
    cluster: &ObjectKey,
    machine: MemberMachine,
    (who, now): (Option<&str>, SystemTime),
) -> Option<NodeIdentity> {
    let node = machine.node?.to_string();
    let mut random = [0; 16];
    aws_lc_rs::rand::fill(&mut random).ok()?;
    let moment = |time| Time(Timestamp::try_from(time).unwrap_or_default());
    let spec = NodeIdentitySpec {
        cluster_name: cluster.name.clone(),
        uid: RecordUid::new(random).to_string(),
        provider_id: machine.provider_id?.to_string(),
        attestor: Provider::INSECURE.as_str().to_owned(),
        instance: None,
        machine_name: Some(machine.name),
        endorsement_key_sha256: None,
        tpm_boot: None,
        generation: 1,
        opened: Opened {
            key_sha256: NO_KEY.to_owned(),
            request_name: NO_REQUEST.to_owned(),
            request_uid: NO_REQUEST.to_owned(),
            time: moment(now),
            stale_node_uid: None,
        },
        not_after: moment(now + LONGEST),
        former_until: None,
        renewed_until: None,
        last_tpm_boot: None,
        superseded_generation: None,
        tombstone: None,
        revoked: None,
        node_name: node,
    };
    let name = object_name(&cluster.name, &spec.node_name);
    let reset = (RESET_ANNOTATION.to_owned(), spec.generation.to_string());
    let by = who.map(|who| (CHANGED_BY_ANNOTATION.to_owned(), who.to_owned()));
    let label = (CLUSTER_NAME_LABEL.to_owned(), cluster.name.clone());
    let mut owners = authentication.metadata.owner_references.clone();
    if let Some(owners) = &mut owners {
        owners.retain(is_cluster);
    }
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: Some(cluster.namespace.clone()),
        labels: Some([label].into()),
        annotations: Some([reset].into_iter().chain(by).collect()),
        owner_references: owners,
        ..ObjectMeta::default()
    };
    Some(NodeIdentity {
        metadata,
        spec,
        status: None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::client::ClusterAccess;
    use crate::identities::Restored;

    /// The bodies of all records that were created, and the names of the records that were patched.
    type Written = Arc<Mutex<Vec<Value>>>;

    fn machine(node: &str) -> Value {
        json!({
            "metadata": {"name": format!("{node}-machine"), "namespace": "default", "uid": node},
            "spec": {"clusterName": "prod-1", "providerID": format!("metal:///{node}")},
            "status": {"nodeRef": {"name": node}},
        })
    }

    /// A live record of a node without evidence.
    fn live(node: &str) -> Value {
        json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
            "metadata": {"name": format!("prod-1.{node}"), "namespace": "default"},
            "spec": {
                "clusterName": "prod-1", "nodeName": node, "uid": "0".repeat(32),
                "providerID": format!("metal:///{node}"), "attestor": "insecure", "generation": 5,
                "machineName": format!("{node}-machine"),
                "opened": {
                    "keySHA256": "0".repeat(64), "requestName": "r", "requestUID": "u",
                    "time": "2026-11-21T12:00:00Z",
                },
                "notAfter": "2026-11-28T12:00:00Z",
            },
        })
    }

    /// A `KubeletAuthentication` that a Cluster and another object own, with these attestors.
    fn authentication(attestors: &str) -> Value {
        let attestors: Vec<_> = attestors.split(',').collect();
        let owner = |version: &str, kind: &str| {
            let name = "prod-1";
            json!({"apiVersion": version, "kind": kind, "name": name, "uid": kind})
        };
        let owners = [
            owner("v1", "ConfigMap"),
            owner("cluster.x-k8s.io/v1beta2", "Cluster"),
        ];
        json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
            "metadata": {"name": "prod-1", "namespace": "default", "ownerReferences": owners},
            "spec": {"clusterName": "prod-1", "authorizedAttestors": attestors},
        })
    }

    /// A live record of a node with evidence.
    fn proved() -> Value {
        let mut record = live("proved");
        record["spec"]["attestor"] = json!("tpm");
        record
    }

    /// The answer of a management cluster with the nodes `kept`, `lost`, `proved` and `other`, and `gone`, whose
    /// Machine is being deleted. `kept` and `proved` have a record. The selector `rack=7` selects the Machines of
    /// `kept`, `lost` and `proved`. The selector `twin` selects two Machines that have the same Node.
    fn answer(attestor: &str, path: &str, query: &str) -> Value {
        let mut machines =
            ["kept", "lost", "proved", "other", "gone", "twin", "second"].map(machine);
        machines[4]["metadata"]["deletionTimestamp"] = json!("2026-11-21T12:00:00Z");
        machines[6]["status"]["nodeRef"]["name"] = json!("twin");
        let machines = if query.contains("rack") {
            machines.get(..3).unwrap_or_default().to_vec()
        } else if query.contains("twin") {
            machines.get(5..).unwrap_or_default().to_vec()
        } else {
            machines.to_vec()
        };
        let resource = json!({
            "name": "machines", "kind": "Machine", "singularName": "", "namespaced": true, "verbs": ["get"],
        });
        match path.rsplit('/').next().unwrap_or_default() {
            "v1beta2" => json!({
                "kind": "APIResourceList", "groupVersion": "cluster.x-k8s.io/v1beta2", "resources": [resource],
            }),
            "machines" => json!({"metadata": {}, "items": machines}),
            "nodeidentities" => json!({"metadata": {}, "items": [live("kept"), proved()]}),
            "prod-1.kept" => live("kept"),
            "prod-1.proved" => proved(),
            "prod-1" => authentication(attestor),
            "selfsubjectreviews" => {
                json!({"metadata": {}, "status": {"userInfo": {"username": "jane"}}})
            }
            _ => json!({"metadata": {}}),
        }
    }

    async fn restored(
        attestor: &'static str,
        (nodes, selector): (&[&str], Option<&str>),
        is_rehearsal: bool,
    ) -> (Result<Restored, IdentitiesError>, Vec<Value>) {
        let written = Written::default();
        let writes = written.clone();
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let writes = writes.clone();
            async move {
                let path = request.uri().path().to_owned();
                let query = request.uri().query().unwrap_or_default().to_owned();
                let is_record = path.contains("/nodeidentities");
                let (is_post, is_patch) = (
                    *request.method() == Method::POST,
                    *request.method() == Method::PATCH,
                );
                let mut answer = answer(attestor, &path, &query);
                if is_record && is_post {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    answer = serde_json::from_slice(&body).unwrap();
                    writes.lock().push(answer.clone());
                } else if is_patch {
                    writes.lock().push(answer["metadata"]["name"].clone());
                }
                let body = Full::new(Bytes::from(answer.to_string()));
                Response::builder().body(body).unwrap()
            }
        });
        let named = NamedNodes {
            nodes: nodes.iter().copied().map(str::to_owned).collect(),
            selector: selector.map(str::to_owned),
        };
        let key = ObjectKey::new("default", "prod-1");
        let identities = Identities::new(&access);
        let done = identities.restored(&key, &named, is_rehearsal, SystemTime::UNIX_EPOCH);
        let done = Box::pin(done).await;
        let written = written.lock().clone();
        (done, written)
    }

    #[tokio::test]
    async fn a_lost_record_without_evidence_is_created_for_its_machine() {
        let (done, written) = restored("insecure", (&["lost"], None), false).await;

        let done = done.unwrap();
        assert_eq!((done.reset.len(), done.recreated.len()), (0, 1));
        let [record] = written.try_into().unwrap();
        let (metadata, spec) = (&record["metadata"], &record["spec"]);
        assert_eq!(metadata["name"], "prod-1.lost");
        assert_eq!(metadata["labels"], json!({CLUSTER_NAME_LABEL: "prod-1"}));
        let annotations = json!({RESET_ANNOTATION: "1", CHANGED_BY_ANNOTATION: "jane"});
        assert_eq!(metadata["annotations"], annotations);
        let owners = metadata["ownerReferences"].as_array().unwrap();
        let owners: Vec<_> = owners.iter().map(|owner| &owner["kind"]).collect();
        assert_eq!(owners, ["Cluster"]);
        assert_eq!(spec["nodeName"], "lost");
        assert_eq!(spec["providerID"], "metal:///lost");
        assert_eq!(spec["machineName"], "lost-machine");
        assert_eq!(spec["attestor"], "insecure");
        assert_eq!(spec["generation"], 1);
        assert_eq!(spec["notAfter"], "1971-01-02T00:00:00Z");
        assert_eq!(spec["uid"].as_str().unwrap().len(), 32);
    }

    #[tokio::test]
    async fn a_selector_names_the_nodes_without_evidence_of_its_machines() {
        let (done, written) = restored("insecure", (&[], Some("rack=7")), false).await;

        let done = done.unwrap();
        assert_eq!((done.reset.len(), done.recreated.len()), (1, 1));
        let [reset, created] = written.try_into().unwrap();
        assert_eq!(reset, "prod-1.kept");
        assert_eq!(created["metadata"]["name"], "prod-1.lost");
    }

    #[tokio::test]
    async fn a_selector_creates_no_record_if_nodes_can_have_evidence() {
        let mixed = "tpm,insecure";
        let (done, written) = restored(mixed, (&[], Some("rack=7")), false).await;
        assert!(matches!(done, Err(IdentitiesError::MixedEvidence(_))));
        assert!(written.is_empty(), "{written:?}");

        // An operator can select a node without evidence by its name.
        let (done, _) = restored(mixed, (&["lost"], Some("rack=7")), false).await;
        assert_eq!(done.unwrap().recreated.len(), 1);
    }

    #[tokio::test]
    async fn a_rehearsal_of_a_recovery_writes_nothing() {
        let (done, written) = restored("insecure", (&["other"], Some("rack=7")), true).await;

        let done = done.unwrap();
        let nodes = |records: &[NodeIdentity]| {
            let nodes = records.iter().map(|one| one.spec.node_name.clone());
            nodes.collect::<BTreeSet<_>>()
        };
        assert_eq!(nodes(&done.reset), ["kept".to_owned()].into());
        let lost = ["lost", "other"].map(str::to_owned);
        assert_eq!(nodes(&done.recreated), lost.into());
        assert!(written.is_empty(), "{written:?}");
    }

    #[tokio::test]
    async fn a_lost_record_of_a_node_with_two_machines_is_an_error() {
        for named in [
            (&["twin"][..], None),
            (&[][..], Some("twin")),
            (&["twin"][..], Some("twin")),
        ] {
            let (done, written) = restored("insecure", named, false).await;

            assert!(matches!(done, Err(IdentitiesError::SeveralMachines(of)) if of == "twin"));
            assert!(written.is_empty(), "{written:?}");
        }
    }

    #[tokio::test]
    async fn a_lost_record_with_evidence_or_without_a_machine_is_an_error() {
        let (done, written) = restored("tpm", (&["lost"], None), false).await;
        assert!(matches!(done, Err(IdentitiesError::HasEvidence(_))));
        assert!(written.is_empty());

        for node in ["unknown", "gone"] {
            let (done, written) = restored("insecure", (&["lost", node], None), false).await;
            assert!(matches!(done, Err(IdentitiesError::NoMachine(of)) if of == node));
            assert!(written.is_empty());
        }
    }
}
