//! Rejects the certificates of a deleted Cluster that had the same name and the same CA.
//!
//! Without this check, the deleted Cluster's certificates would be valid, because its revocation list no longer exists.
//! Therefore all generations that precede the creation of the workload cluster are rejected. An annotation on the
//! `KubeletAuthentication` identifies the first workload cluster. `clusterctl move` keeps this annotation, and
//! administrators of the workload cluster cannot write it.
//!
//! The `KubeletAuthentication` of a deleted Cluster is deleted with that Cluster. Therefore a workload cluster that is
//! served for the first time also gets its creation time as the lowest valid generation. This does not reject
//! certificates of the current cluster: the API server never deletes the namespace `kube-system`, and a generation
//! above 1 is the Unix time of its claim. If there is no lowest valid generation, a record starts with generation 1,
//! and a certificate with this generation has a record, unless its Cluster was deleted. Therefore a cluster with
//! records keeps its certificates.

use std::collections::BTreeMap;
use std::time::SystemTime;

use kube::api::{Api, Patch};
use kube::{Client, ResourceExt as _};
use node_attestation_core::cluster_line;
use node_attestation_core::crd::{
    KubeletAuthentication, LOWEST_VALID_GENERATION_ANNOTATION, WORKLOAD_UID_ANNOTATION,
};
use node_attestation_core::ledger::{PresentTime, RevocationDecisions, Revocations};
use node_attestation_core::log_lines::LogLines;
use node_attestation_core::time::unix_seconds;
use serde_json::json;

use crate::capi::ObjectKey;
use crate::client::{CONTROLLER, CallError, call, merge};
use crate::hardening::HardeningError;
use crate::hardening::workload_identity::{self, WorkloadIdentity};
use crate::log_lines::ClusterLines;
use crate::watch::{patched_metadata, readable_one_of};

/// The identity of the workload cluster could not be determined or recorded.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreatedAgainError {
    #[error("the identity of the workload cluster is unknown")]
    Unknown(#[from] HardeningError),
    #[error("cannot compare the identity of the workload cluster with the KubeletAuthentication")]
    NotCompared(#[from] CallError),
}

impl CreatedAgainError {
    /// Whether only a permission is missing. In this case, requests are served, and an operator is informed.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Unknown(HardeningError::Forbidden { .. }))
    }
}

/// Compares the workload cluster with the first workload cluster. If they differ, the creation time of the current
/// cluster becomes the lowest valid generation. The same applies if no first workload cluster is known and the Cluster
/// has no records. `has_records` reads the records, and is called only if necessary.
pub(super) async fn compare(
    workload: &Client,
    (management, key): (&Client, &ObjectKey),
    has_records: impl Future<Output = Result<bool, CallError>>,
    revocations: &Revocations,
    now: impl Into<PresentTime>,
) -> Result<(), CreatedAgainError> {
    let now = now.into();
    let Some(identity) = workload_identity::read(workload).await? else {
        return Ok(());
    };
    if revocations.decisions().workload_uid.as_ref() == Some(&identity.uid) {
        return Ok(());
    }
    let api: Api<KubeletAuthentication> = Api::namespaced(management.clone(), &key.namespace);
    // The version that the watch delivered might be outdated.
    let Some(authentication) = call(readable_one_of(&api, &key.name)).await? else {
        return Ok(());
    };
    let read = RevocationDecisions::of_annotations(Some(authentication.annotations()));
    let known = read.until_or(now.later, revocations.decisions().floor);
    let has_records = known.workload_uid.is_none() && has_records.await?;
    let lines = ClusterLines::of(key);
    let (decisions, annotations) = decided((known, has_records), identity, &lines, now.earlier);
    let patch = json!({
        "metadata": {
            "resourceVersion": authentication.resource_version(),
            "annotations": annotations,
        },
    });
    let (parameters, patch) = (merge(CONTROLLER), Patch::Merge(&patch));
    call(patched_metadata(&api, &key.name, &parameters, &patch)).await?;
    revocations.decide(decisions);
    Ok(())
}

/// The decisions for this identity, and the annotations to write.
fn decided(
    (known, has_records): (RevocationDecisions, bool),
    identity: WorkloadIdentity,
    lines: &dyn LogLines,
    now: SystemTime,
) -> (RevocationDecisions, BTreeMap<&'static str, String>) {
    let uid = identity.uid.clone();
    let mut annotations = BTreeMap::from([(WORKLOAD_UID_ANNOTATION, uid)]);
    let mut decisions = known;
    let before = decisions.workload_uid.replace(identity.uid);
    let is_another = match &before {
        Some(before) => decisions.workload_uid.as_ref() != Some(before),
        None => !has_records,
    };
    if is_another {
        // The workload cluster reports this time. A time after `now` would reject the cluster's new certificates.
        let began = unix_seconds(identity.began.min(now));
        decisions.floor = decisions.floor.max(began);
        let floor = decisions.floor;
        annotations.insert(LOWEST_VALID_GENERATION_ANNOTATION, floor.to_string());
        let is_recreated = before.is_some();
        cluster_line!(
            lines,
            INFO,
            floor,
            is_recreated,
            "certificates that were issued before the workload cluster was created are refused"
        );
    }
    (decisions, annotations)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    use futures::future::lazy;
    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use node_attestation_core::log_lines::Unlimited;
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::client::ClusterAccess;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// The lowest valid generation and the number of annotations after a check at time 50. The checked workload cluster
    /// has the UID `uid`, and was created at `began`.
    fn seen(known: Option<&str>, floor: u64, uid: &str, began: u64) -> (u64, usize) {
        seen_with((known, false), floor, uid, began)
    }

    /// Like [`seen`], but for a Cluster with or without records.
    fn seen_with(
        (known, has_records): (Option<&str>, bool),
        floor: u64,
        uid: &str,
        began: u64,
    ) -> (u64, usize) {
        let known = RevocationDecisions {
            floor,
            workload_uid: known.map(str::to_owned),
            ..RevocationDecisions::default()
        };
        let identity = WorkloadIdentity {
            uid: uid.to_owned(),
            began: at(began),
        };
        let (decisions, annotations) = decided((known, has_records), identity, &Unlimited, at(50));
        assert_eq!(decisions.workload_uid.as_deref(), Some(uid));
        assert_eq!(annotations[WORKLOAD_UID_ANNOTATION], uid);
        let written = annotations.get(LOWEST_VALID_GENERATION_ANNOTATION);
        assert!(written.is_none_or(|written| *written == decisions.floor.to_string()));
        (decisions.floor, annotations.len())
    }

    #[test]
    fn only_a_new_workload_cluster_raises_the_generation_floor() {
        for has_records in [false, true] {
            let known = (Some("a"), has_records);
            assert_eq!(seen_with(known, 0, "a", 30), (0, 1));
            assert_eq!(seen_with(known, 0, "b", 30), (30, 2));
        }
        assert_eq!(seen_with((None, true), 0, "a", 30), (0, 1));
        assert_eq!(seen_with((None, false), 0, "a", 30), (30, 2));
        assert_eq!(seen_with((None, false), 40, "a", 30), (40, 2));
        assert_eq!(seen(Some("a"), 0, "a", 30), (0, 1));
        assert_eq!(seen(Some("a"), 0, "b", 30), (30, 2));
        assert_eq!(seen(Some("a"), 40, "b", 30), (40, 2));
    }

    /// An API server that returns this object, and stores patches.
    fn api_server(status: u16, object: Value) -> (ClusterAccess, Arc<Mutex<Vec<Value>>>) {
        let patched: Arc<Mutex<Vec<Value>>> = Arc::default();
        let writes = patched.clone();
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let (object, writes) = (object.clone(), writes.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                if parts.method == Method::PATCH {
                    writes.lock().push(serde_json::from_slice(&body).unwrap());
                }
                let body = Full::new(Bytes::from(object.to_string()));
                Response::builder().status(status).body(body).unwrap()
            }
        });
        (access, patched)
    }

    fn namespace(uid: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": "kube-system", "uid": uid, "creationTimestamp": "1970-01-01T00:00:30Z",
            },
        })
    }

    fn authentication(annotations: &Value) -> Value {
        json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "KubeletAuthentication",
            "metadata": {
                "name": "prod-1", "namespace": "default", "resourceVersion": "7",
                "annotations": annotations,
            },
            "spec": {"clusterName": "prod-1", "authorizedAttestors": ["tpm"]},
        })
    }

    /// The annotations and the lowest valid generation after the first comparison, for a Cluster with or without
    /// records.
    async fn compared_first(has_records: bool) -> (Value, u64) {
        let (management, patched) = api_server(200, authentication(&Value::Null));
        let (workload, _) = api_server(200, namespace("b"));
        let key = ObjectKey::new("default", "prod-1");
        let revocations = Revocations::unread();

        let management = (management.client(), &key);
        let records = async { Ok(has_records) };
        compare(workload.client(), management, records, &revocations, at(50))
            .await
            .unwrap();

        let annotations = patched.lock()[0]["metadata"]["annotations"].clone();
        (annotations, revocations.decisions().floor)
    }

    #[tokio::test]
    async fn a_recreated_cluster_with_recreated_settings_gets_a_generation_floor() {
        let annotations = json!({
            WORKLOAD_UID_ANNOTATION: "b",
            LOWEST_VALID_GENERATION_ANNOTATION: "30",
        });
        assert_eq!(compared_first(false).await, (annotations, 30));
    }

    #[tokio::test]
    async fn a_cluster_with_records_gets_no_generation_floor_after_an_upgrade() {
        let annotations = json!({WORKLOAD_UID_ANNOTATION: "b"});
        assert_eq!(compared_first(true).await, (annotations, 0));
    }

    #[tokio::test]
    async fn a_cluster_with_unknown_records_waits() {
        let (management, patched) = api_server(200, authentication(&Value::Null));
        let (workload, _) = api_server(200, namespace("b"));
        let key = ObjectKey::new("default", "prod-1");
        let revocations = Revocations::unread();
        let unknown = async { Err(CallError::Deadline(Duration::from_secs(20))) };

        let management = (management.client(), &key);
        let compared = compare(workload.client(), management, unknown, &revocations, at(50)).await;

        let error = compared.unwrap_err();
        assert!(
            matches!(
                error,
                CreatedAgainError::NotCompared(CallError::Deadline(_))
            ),
            "{error:?}"
        );
        assert!(!error.is_forbidden());
        assert!(patched.lock().is_empty());
        assert!(!revocations.is_read());
    }

    /// The `has_records` argument for a Cluster whose first workload cluster is already known. The code must not call
    /// it.
    fn unneeded() -> impl Future<Output = Result<bool, CallError>> {
        lazy(|_| -> Result<bool, CallError> { panic!("the records were read") })
    }

    #[tokio::test]
    async fn a_recreated_cluster_gets_a_generation_floor_in_one_write() {
        let known = authentication(&json!({WORKLOAD_UID_ANNOTATION: "a"}));
        let (management, patched) = api_server(200, known);
        let key = ObjectKey::new("default", "prod-1");
        let revocations = Revocations::unread();

        // The second comparison finds the annotation that the first comparison wrote.
        for _ in 0..2 {
            let (workload, _) = api_server(200, namespace("b"));
            let management = (management.client(), &key);
            let client = workload.client();
            compare(client, management, unneeded(), &revocations, at(50))
                .await
                .unwrap();
        }

        let patched = patched.lock();
        let expected = json!({
            "metadata": {
                "resourceVersion": "7",
                "annotations": {
                    WORKLOAD_UID_ANNOTATION: "b",
                    LOWEST_VALID_GENERATION_ANNOTATION: "30",
                },
            },
        });
        assert_eq!(*patched, [expected]);
        assert_eq!(revocations.decisions().floor, 30);
    }

    #[tokio::test]
    async fn a_floor_in_the_future_does_not_hide_the_known_floor_in_a_comparison() {
        // The second Cluster has another workload cluster, which was created at time 30.
        for (uid, expected) in [("b", 20), ("a", 30)] {
            let annotations = json!({
                WORKLOAD_UID_ANNOTATION: uid,
                LOWEST_VALID_GENERATION_ANNOTATION: "9999999999",
            });
            let (management, _) = api_server(200, authentication(&annotations));
            let (workload, _) = api_server(200, namespace("b"));
            let key = ObjectKey::new("default", "prod-1");
            let revocations = Revocations::unread();
            revocations.decide(RevocationDecisions {
                floor: 20,
                ..RevocationDecisions::default()
            });

            let (client, management) = (workload.client(), (management.client(), &key));
            compare(client, management, unneeded(), &revocations, at(50))
                .await
                .unwrap();

            assert_eq!(revocations.decisions().floor, expected, "{uid}");
        }
    }

    #[tokio::test]
    async fn only_a_missing_namespace_permission_does_not_block_requests() {
        let key = ObjectKey::new("default", "prod-1");
        for (code, is_forbidden) in [(403, true), (500, false)] {
            let status = json!({"kind": "Status", "metadata": {}, "code": code, "message": ""});
            let (workload, _) = api_server(code, status);
            let (management, _) = api_server(200, json!({}));
            let management = (management.client(), &key);

            let compared = compare(
                workload.client(),
                management,
                unneeded(),
                &Revocations::unread(),
                at(50),
            )
            .await;

            assert_eq!(compared.unwrap_err().is_forbidden(), is_forbidden, "{code}");
        }
    }

    #[test]
    fn a_future_cluster_creation_time_is_treated_as_now() {
        assert_eq!(seen(Some("a"), 0, "b", 90), (50, 2));
    }
}
