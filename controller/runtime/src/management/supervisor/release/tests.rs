use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Method, Request, Response};
use kube::client::Body;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::verifier::Verifiers;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::*;
use crate::management::{Controller, Settings};

type Answer = Response<UnsyncBoxBody<Bytes, std::convert::Infallible>>;

fn whole(code: u16, object: &Value) -> Answer {
    let body = Full::new(Bytes::from(object.to_string())).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

fn failure(code: u16, reason: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": code, "reason": reason});
    whole(code, &status)
}

fn authentication() -> Value {
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthentication",
        "metadata": {
            "name": "prod-1", "namespace": "default", "uid": "ka", "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {"clusterName": "prod-1", "authorizedAttestors": ["null"]},
    })
}

/// The time at which the `KubeletAuthentication` is deleted.
const DELETED: Duration = Duration::from_secs(5);

/// A management cluster whose Cluster has no CA, so that it is not served. Notes the reasons of Events.
async fn management(request: Request<Body>, paused: bool, told: Arc<Mutex<Vec<String>>>) -> Answer {
    let uri = request.uri().clone();
    let is_watch = uri.query().is_some_and(|query| query.contains("watch="));
    if [Method::PUT, Method::POST].contains(request.method()) {
        let object = request.into_body().collect().await.unwrap().to_bytes();
        let object: Value = serde_json::from_slice(&object).unwrap();
        if object["kind"] == "Event" || !object["regarding"].is_null() {
            assert_eq!(object["regarding"]["kind"], "Cluster");
            let reason = object["reason"].as_str().unwrap();
            told.lock().push(reason.to_owned());
        }
        return whole(200, &object);
    }
    let list = |items: Vec<Value>| {
        let metadata = json!({"resourceVersion": "1"});
        let list =
            json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
        whole(200, &list)
    };
    let name = uri.path().rsplit('/').next().unwrap();
    match name {
        "kubeletauthentications" if is_watch => {
            let deleted = async {
                sleep(DELETED).await;
                let event = json!({"type": "DELETED", "object": authentication()});
                Ok(Frame::data(Bytes::from(format!("{event}\n"))))
            };
            let events = stream::once(deleted).chain(stream::pending());
            Response::new(StreamBody::new(events).boxed_unsync())
        }
        _ if is_watch => Response::new(StreamBody::new(stream::pending()).boxed_unsync()),
        "kubeletauthentications" => list(vec![authentication()]),
        "v1beta2" => {
            let kinds = [
                ("clusters", "Cluster"),
                ("machines", "Machine"),
                ("machinepools", "MachinePool"),
            ];
            let resources = kinds.map(|(name, kind)| {
                json!({"name": name, "kind": kind, "namespaced": true, "singularName": "", "verbs": ["list"]})
            });
            let group = "cluster.x-k8s.io/v1beta2";
            whole(
                200,
                &json!({"kind": "APIResourceList", "groupVersion": group, "resources": resources}),
            )
        }
        "clusters" => list(vec![json!({
            "apiVersion": CORE_API_VERSION, "kind": "Cluster",
            "metadata": {"name": "prod-1", "namespace": "default", "uid": "c", "resourceVersion": "1"},
            "spec": {"paused": paused},
        })]),
        "machines" | "machinepools" | "secrets" | "nodeidentities" => list(Vec::new()),
        _ => failure(404, "NotFound"),
    }
}

/// The times at which the policy's binding was deleted, after the `KubeletAuthentication` of a Cluster that is not
/// served was; and the reasons of Events. The API server of the workload cluster is away for as long as `away`.
async fn released(paused: bool, away: Duration) -> (Vec<Duration>, Vec<String>) {
    let begun = Instant::now();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = told.clone();
    let access =
        ClusterAccess::in_memory(move |request| management(request, paused, noted.clone()));
    let deletions: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let noted = deletions.clone();
    let workload = ClusterAccess::in_memory(move |request: Request<Body>| {
        let is_deletion = request.method() == Method::DELETE;
        let is_away = begun.elapsed() < away;
        if is_deletion && !is_away && request.uri().path().contains("bindings") {
            noted.lock().push(begun.elapsed());
        }
        async move {
            if is_away {
                failure(503, "ServiceUnavailable")
            } else {
                failure(404, "NotFound")
            }
        }
    });
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    let controller = Controller::new(&access, Settings::default(), Arc::new(verifiers))
        .connecting_by(Arc::new(move |_| workload.clone()));
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(Duration::from_mins(30)).await;

    drop(stop);
    running.await.unwrap();
    (deletions.lock().clone(), told.lock().clone())
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_a_cluster_that_is_not_served_is_removed_after_the_deletion() {
    let (deletions, told) = released(false, Duration::ZERO).await;

    assert_eq!(deletions.len(), 1, "{deletions:?}");
    assert!(deletions[0] < DELETED * 2, "{deletions:?}");
    assert_eq!(told, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_cannot_be_removed_is_told_and_tried_again() {
    let away = Duration::from_mins(10);

    let (deletions, told) = released(false, away).await;

    assert_eq!(deletions.len(), 1, "{deletions:?}");
    assert!(deletions[0] < away + LAST_RESTART * 2, "{deletions:?}");
    assert_eq!(told, ["PolicyNotRemoved", "PolicyRemoved"]);
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_a_paused_cluster_stays_after_the_deletion() {
    let (deletions, told) = released(true, Duration::ZERO).await;

    assert_eq!((deletions, told), (Vec::new(), Vec::new()));
}
