//! Detects a Cluster that was created again with the same name and the same CA.
//!
//! Certificates of the previous Cluster would be valid, and its list of revoked certificates is gone. So all
//! generations from before the creation of the workload cluster are refused. An annotation of the
//! `KubeletAuthentication` identifies the first workload cluster: `clusterctl move` keeps it, and administrators of the
//! workload cluster cannot write it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use kube::api::{Api, Patch};
use kube::{Client, ResourceExt as _};
use node_attestation_core::cluster_line;
use node_attestation_core::crd::{
    KubeletAuthentication, LOWEST_VALID_GENERATION_ANNOTATION, WORKLOAD_UID_ANNOTATION,
};
use node_attestation_core::ledger::{RevocationDecisions, Revocations};
use node_attestation_core::log_lines::LogLines;
use node_attestation_core::time::unix_seconds;
use serde_json::json;

use crate::capi::ObjectKey;
use crate::client::{CONTROLLER, CallError, call, merge};
use crate::hardening::HardeningError;
use crate::hardening::workload_identity::{self, WorkloadIdentity};
use crate::log_lines::ClusterLines;
use crate::watch::readable_one_of;

/// The identity of the workload cluster could not be determined or recorded.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreatedAgainError {
    #[error("the identity of the workload cluster is unknown")]
    Unknown(#[from] HardeningError),
    #[error("the identity of the workload cluster was not written to the KubeletAuthentication")]
    NotWritten(#[from] CallError),
}

impl CreatedAgainError {
    /// Whether only a permission is missing. In this case, requests are served, and an operator is informed.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Unknown(HardeningError::Forbidden { .. }))
    }
}

/// Compares the workload cluster with the first one. If it is different, its creation time becomes the floor.
pub(super) async fn compare(
    workload: &Client,
    (management, key): (&Client, &ObjectKey),
    revocations: &Revocations,
    now: SystemTime,
) -> Result<(), CreatedAgainError> {
    let Some(identity) = workload_identity::read(workload).await? else {
        return Ok(());
    };
    if revocations.decisions().workload_uid.as_ref() == Some(&identity.uid) {
        return Ok(());
    }
    let api: Api<KubeletAuthentication> = Api::namespaced(management.clone(), &key.namespace);
    // The watched version can be older.
    let Some(authentication) = call(readable_one_of(&api, &key.name)).await? else {
        return Ok(());
    };
    let known = RevocationDecisions::of_annotations(Some(authentication.annotations()));
    let lines = ClusterLines::of(key);
    let (decisions, annotations) = decided(known, identity, &lines, now);
    let patch = json!({
        "metadata": {
            "resourceVersion": authentication.resource_version(),
            "annotations": annotations,
        },
    });
    let (parameters, patch) = (merge(CONTROLLER), Patch::Merge(&patch));
    call(api.patch_metadata(&key.name, &parameters, &patch)).await?;
    revocations.decide(decisions);
    Ok(())
}

/// The decisions with this identity, and the annotations to write.
fn decided(
    known: RevocationDecisions,
    identity: WorkloadIdentity,
    lines: &dyn LogLines,
    now: SystemTime,
) -> (RevocationDecisions, BTreeMap<&'static str, String>) {
    let uid = identity.uid.clone();
    let mut annotations = BTreeMap::from([(WORKLOAD_UID_ANNOTATION, uid)]);
    let mut decisions = known;
    let before = decisions.workload_uid.replace(identity.uid);
    if before.is_some_and(|before| decisions.workload_uid != Some(before)) {
        // The workload cluster controls this time, and a time after `now` would refuse its new certificates.
        let began = unix_seconds(identity.began.min(now));
        decisions.floor = decisions.floor.max(began);
        let floor = decisions.floor.to_string();
        annotations.insert(LOWEST_VALID_GENERATION_ANNOTATION, floor);
        cluster_line!(
            lines,
            WARN,
            floor = decisions.floor,
            "the Cluster was recreated: earlier certificates are refused"
        );
    }
    (decisions, annotations)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

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

    /// The floor and the number of annotations after the workload cluster `uid` was seen at 50, which began at `began`.
    fn seen(known: Option<&str>, floor: u64, uid: &str, began: u64) -> (u64, usize) {
        let known = RevocationDecisions {
            floor,
            workload_uid: known.map(str::to_owned),
            ..RevocationDecisions::default()
        };
        let identity = WorkloadIdentity {
            uid: uid.to_owned(),
            began: at(began),
        };
        let (decisions, annotations) = decided(known, identity, &Unlimited, at(50));
        assert_eq!(decisions.workload_uid.as_deref(), Some(uid));
        assert_eq!(annotations[WORKLOAD_UID_ANNOTATION], uid);
        let written = annotations.get(LOWEST_VALID_GENERATION_ANNOTATION);
        assert!(written.is_none_or(|written| *written == decisions.floor.to_string()));
        (decisions.floor, annotations.len())
    }

    #[test]
    fn only_a_new_workload_cluster_raises_the_floor() {
        assert_eq!(seen(None, 0, "a", 30), (0, 1));
        assert_eq!(seen(Some("a"), 0, "a", 30), (0, 1));
        assert_eq!(seen(Some("a"), 0, "b", 30), (30, 2));
        assert_eq!(seen(Some("a"), 40, "b", 30), (40, 2));
    }

    /// An API server that responds to reads with this object, and stores patches.
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

    #[tokio::test]
    async fn a_recreated_cluster_with_recreated_settings_gets_no_floor() {
        let (management, patched) = api_server(200, authentication(&Value::Null));
        let (workload, _) = api_server(200, namespace("b"));
        let key = ObjectKey::new("default", "prod-1");
        let revocations = Revocations::unread();

        let management = (management.client(), &key);
        compare(workload.client(), management, &revocations, at(50))
            .await
            .unwrap();

        let annotations = patched.lock()[0]["metadata"]["annotations"].clone();
        assert_eq!(annotations, json!({WORKLOAD_UID_ANNOTATION: "b"}));
        assert_eq!(revocations.decisions().floor, 0, "it is by hand");
    }

    #[tokio::test]
    async fn a_recreated_cluster_gets_a_floor_in_one_write() {
        let known = authentication(&json!({WORKLOAD_UID_ANNOTATION: "a"}));
        let (management, patched) = api_server(200, known);
        let key = ObjectKey::new("default", "prod-1");
        let revocations = Revocations::unread();

        // The second one finds what the first one wrote down.
        for _ in 0..2 {
            let (workload, _) = api_server(200, namespace("b"));
            let management = (management.client(), &key);
            compare(workload.client(), management, &revocations, at(50))
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
