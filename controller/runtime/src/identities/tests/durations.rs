//! The durations of `identities restored` in docs/disasters.md, for 1,000 nodes and calls that take 30 ms each.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::{Identities, NamedNodes};
use crate::capi::ObjectKey;
use crate::client::ClusterAccess;

const NODES: u32 = 1000;

const CALL: Duration = Duration::from_millis(30);

/// A record from a backup. Its node has presented a certificate of a later generation.
fn record(node: &str) -> Value {
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
        "metadata": {
            "name": format!("prod-1.{node}"), "namespace": "default", "resourceVersion": "7",
        },
        "spec": {
            "clusterName": "prod-1", "nodeName": node, "uid": "0".repeat(32),
            "providerID": format!("metal:///{node}"), "attestor": "tpm", "generation": 5,
            "opened": {
                "keySHA256": "0".repeat(64), "requestName": "r", "requestUID": "u",
                "time": "2026-11-21T12:00:00Z",
            },
            "notAfter": "2026-11-28T12:00:00Z",
        },
        "status": {"presentedGeneration": 9},
    })
}

fn machine(node: &str) -> Value {
    json!({
        "metadata": {"name": node, "namespace": "default", "uid": node},
        "spec": {"clusterName": "prod-1", "providerID": format!("metal:///{node}")},
        "status": {"nodeRef": {"name": node}},
    })
}

/// A page with half of the objects.
fn page(query: &str, object: fn(&str) -> Value) -> Value {
    let half = NODES / 2;
    let (numbers, next) = if query.contains("continue=") {
        (half..NODES, "")
    } else {
        (0..half, "next")
    };
    let items: Vec<_> = numbers
        .map(|number| object(&format!("n{number}")))
        .collect();
    json!({"metadata": {"continue": next}, "items": items})
}

/// The response of a management cluster. If `are_lost` is set, the cluster does not contain any records.
fn answer(are_lost: bool, path: &str, query: &str) -> Value {
    let resource = json!({
        "name": "machines", "kind": "Machine", "singularName": "", "namespaced": true, "verbs": ["get"],
    });
    let name = path.rsplit('/').next().unwrap();
    match name {
        "v1beta2" => json!({
            "kind": "APIResourceList", "groupVersion": "cluster.x-k8s.io/v1beta2", "resources": [resource],
        }),
        "machines" => page(query, machine),
        "nodeidentities" if are_lost => json!({"metadata": {}, "items": []}),
        "nodeidentities" => page(query, record),
        "prod-1" => json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
            "metadata": {"name": "prod-1", "namespace": "default"},
            "spec": {"clusterName": "prod-1", "authorizedAttestors": ["insecure"]},
        }),
        "selfsubjectreviews" => {
            json!({"metadata": {}, "status": {"userInfo": {"username": "jane"}}})
        }
        _ => match name.strip_prefix("prod-1.") {
            Some(node) => record(node),
            None => json!({"metadata": {}}),
        },
    }
}

/// Recovers all records. Returns the number of changed records, the number of calls, and the duration.
async fn recovered(are_lost: bool) -> (usize, u32, Duration) {
    let calls: Arc<Mutex<u32>> = Arc::default();
    let counted = calls.clone();
    let access = ClusterAccess::in_memory(move |request: Request<Body>| {
        *counted.lock() += 1;
        async move {
            sleep(CALL).await;
            let path = request.uri().path().to_owned();
            let query = request.uri().query().unwrap_or_default().to_owned();
            let is_new_record =
                path.ends_with("/nodeidentities") && request.method() == Method::POST;
            let body = if is_new_record {
                request.into_body().collect().await.unwrap().to_bytes()
            } else {
                Bytes::from(answer(are_lost, &path, &query).to_string())
            };
            Response::new(Full::new(body))
        }
    });
    let lost = (0..NODES).filter(|_| are_lost);
    let named = NamedNodes {
        nodes: lost.map(|number| format!("n{number}")).collect(),
        selector: None,
    };
    let key = ObjectKey::new("default", "prod-1");
    let identities = Identities::new(&access);
    let begun = Instant::now();
    let done = identities.restored(&key, &named, false, SystemTime::UNIX_EPOCH);
    let done = Box::pin(done).await.unwrap();
    let calls = *calls.lock();
    let changed = if are_lost { done.recreated } else { done.reset };
    (changed.len(), calls, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_thousand_node_identities_are_restored_in_the_documented_time() {
    // The calls for each node, and the documented duration.
    for (are_lost, calls_of_node, documented) in [(false, 3, 90), (true, 2, 60)] {
        let (changed, calls, took) = recovered(are_lost).await;

        assert_eq!(changed, 1000, "{are_lost}");
        // The other calls read objects.
        let reads = calls - calls_of_node * NODES;
        assert!((1..=10).contains(&reads), "{are_lost}: {calls} calls");
        assert!(took >= CALL * calls, "{are_lost}: {took:?}");
        let documented = Duration::from_secs(documented)..Duration::from_secs(documented + 5);
        assert!(documented.contains(&took), "{are_lost}: {took:?}");
    }
}
