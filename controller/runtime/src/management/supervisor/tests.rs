use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::Mutex;

use futures::stream::{self, StreamExt as _};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Method, Request, Response};
use node_attestation_core::crd::{
    ALLOW_RETIREMENT_ANNOTATION, KubeletAuthentication, KubeletAuthenticationSpec,
};
use node_attestation_core::verifier::Verifiers;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::capi::WATCH_FILTER_LABEL;
use crate::client::ClusterAccess;
use crate::footprint::{any, assert_limits, size};
use crate::management::{Controller, Settings};

mod hanging;
mod own_access;
mod parsing;
mod recreated;
mod unreadable;

fn allowed(annotations: &Value) -> usize {
    let authentication = json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthentication",
        "metadata": {"name": "prod-1", "annotations": annotations},
        "spec": {"clusterName": "prod-1", "authorizedAttestors": ["aws"]},
    });
    allowed_retirements(&serde_json::from_value(authentication).unwrap())
}

#[test]
fn the_retirement_annotation_allows_exactly_its_number() {
    let annotated = |value| allowed(&json!({ALLOW_RETIREMENT_ANNOTATION: value}));

    assert_eq!(annotated("12"), 12);
    assert_eq!(allowed(&Value::Null), 0);
    for none in ["0", "", "all", "-1", "1.5", "99999999999999999999"] {
        assert_eq!(annotated(none), 0, "{none}");
    }
}

#[test]
fn the_futures_of_a_supervisor_have_limits() {
    assert_limits(&[
        ("task", size(|| supervise(any(), any(), any())), 450),
        (
            "serve_selected",
            size(|| serve_selected(any(), any(), any(), any())),
            500,
        ),
        ("run", size(|| any::<Box<Supervisor>>().run(any())), 2700),
        ("supervisor", size_of::<Supervisor>(), 1700),
    ]);
}

/// Whether a controller with this filter selects the cluster, based on the label of its `KubeletAuthentication`.
fn selects(filter: Option<&str>, cluster: &Observed<Cluster>, label: Option<&str>) -> bool {
    let selection = Selection {
        namespace: None,
        watch_filter: filter.map(str::to_owned),
    };
    let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
    let mut authentication = KubeletAuthentication::new("prod-1", spec);
    let label = label.map(|value| (WATCH_FILTER_LABEL.to_owned(), value.to_owned()));
    authentication.metadata.labels = Some(label.into_iter().collect());
    is_selected(&selection, cluster, authentication.metadata.labels.as_ref())
}

#[test]
fn the_label_of_the_authentication_is_used_only_without_a_cluster() {
    let blue = Some("blue");
    for label in [None, blue, Some("green"), Some("")] {
        // The Cluster has not been read yet, or belongs to a different controller.
        assert!(!selects(blue, &Observed::Unknown, label), "{label:?}");
        assert_eq!(selects(blue, &Observed::Absent, label), label == blue);
        for cluster in [Observed::Unknown, Observed::Absent] {
            assert!(selects(None, &cluster, label), "{label:?}");
        }
    }
}

/// The number of clusters, which exceeds the limit of concurrent calls to the management cluster's API server.
const CLUSTERS: usize = 200;

/// The time that the API server needs to list a Secret.
const SLOW: Duration = Duration::from_secs(1);

/// The time at which all `KubeletAuthentication`s change. At this time, a second write of a status is permitted, and
/// lists of Secrets are still in progress.
const CHANGE: Duration = Duration::from_millis(2500);

fn authentication(number: usize, generation: i64) -> Value {
    let name = format!("c{number}");
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthentication",
        "metadata": {
            "name": name, "namespace": "default", "uid": name, "generation": generation,
            "resourceVersion": generation.to_string(),
        },
        "spec": {"clusterName": name, "authorizedAttestors": ["null"]},
    })
}

fn cluster(number: usize) -> Value {
    let name = format!("c{number}");
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {},
    })
}

/// The discovery document for the Cluster API kinds.
pub(super) fn discovery() -> Value {
    let kinds = [
        ("clusters", "Cluster"),
        ("machines", "Machine"),
        ("machinepools", "MachinePool"),
    ];
    let resources = kinds.map(|(name, kind)| {
        json!({"name": name, "kind": kind, "namespaced": true, "singularName": "", "verbs": ["list"]})
    });
    let group = "cluster.x-k8s.io/v1beta2";
    json!({"kind": "APIResourceList", "groupVersion": group, "resources": resources})
}

/// The names and generations of the objects whose status was written.
type Written = Arc<Mutex<BTreeSet<(String, i64)>>>;

pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

pub(super) fn whole(code: u16, object: &Value) -> Answer {
    let body = Full::new(Bytes::from(object.to_string())).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

/// The events of a watch, which report a new generation of each `KubeletAuthentication` after some time.
fn changes() -> Answer {
    let change = async {
        sleep(CHANGE).await;
        let event = |number| {
            json!({"type": "MODIFIED", "object": authentication(number, 2)}).to_string() + "\n"
        };
        let events: Vec<String> = (0..CLUSTERS).map(event).collect();
        Ok(Frame::data(Bytes::from(events.concat())))
    };
    let events = stream::once(change).chain(stream::pending());
    Response::new(StreamBody::new(events).boxed_unsync())
}

/// A management cluster whose API server lists Secrets slowly, and records the generation of each status.
async fn answer(request: Request<kube::client::Body>, written: Written) -> Answer {
    let path = request.uri().path().to_owned();
    let is_watch = request
        .uri()
        .query()
        .is_some_and(|query| query.contains("watch="));
    if [Method::PUT, Method::POST].contains(request.method()) {
        let object = request.into_body().collect().await.unwrap().to_bytes();
        let object: Value = serde_json::from_slice(&object).unwrap();
        if object["kind"] == "Lease" {
            return whole(200, &object);
        }
        let generation = object["metadata"]["generation"].as_i64().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        written.lock().unwrap().insert((name, generation));
        return whole(200, &object);
    }
    let list = |items: Vec<Value>| {
        let metadata = json!({"resourceVersion": "1"});
        whole(
            200,
            &json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items}),
        )
    };
    match path.rsplit('/').next().unwrap() {
        "kubeletauthentications" if is_watch => changes(),
        _ if is_watch => Response::new(StreamBody::new(stream::pending()).boxed_unsync()),
        "kubeletauthentications" => list(
            (0..CLUSTERS)
                .map(|number| authentication(number, 1))
                .collect(),
        ),
        "secrets" => {
            sleep(SLOW).await;
            list(Vec::new())
        }
        "nodeidentities" | "machines" | "machinepools" => list(Vec::new()),
        "v1beta2" => whole(200, &discovery()),
        "clusters" => list((0..CLUSTERS).map(cluster).collect()),
        _ => whole(
            404,
            &json!({"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"}),
        ),
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_while_secrets_of_other_clusters_are_listed() {
    let written: Written = Written::default();
    let server = written.clone();
    let management = ClusterAccess::in_memory(move |request| answer(request, server.clone()));
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(CHANGE + 8 * SLOW).await;

    let of = |generation| {
        let written = written.lock().unwrap();
        written.iter().filter(|(_, one)| *one == generation).count()
    };
    assert_eq!((of(1), of(2)), (CLUSTERS, CLUSTERS));
    drop(stop);
    running.await.unwrap();
}

/// The Secrets that are watched within one minute, if this number of the 200 `KubeletAuthentication`s have a Cluster.
async fn secrets_watched(clusters: usize) -> BTreeSet<String> {
    let watched: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let noted = watched.clone();
    let management = ClusterAccess::in_memory(move |request: Request<kube::client::Body>| {
        let (path, query) = (
            request.uri().path(),
            request.uri().query().unwrap_or_default(),
        );
        if path.ends_with("/secrets") && query.contains("watch=") {
            let name = query.split("metadata.name").nth(1).unwrap();
            noted.lock().unwrap().insert(name.to_owned());
        }
        let is_list = path.ends_with("/clusters") && !query.contains("watch=");
        async move {
            if is_list {
                let items: Vec<_> = (0..clusters).map(cluster).collect();
                let metadata = json!({"resourceVersion": "1"});
                return whole(
                    200,
                    &json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items}),
                );
            }
            answer(request, Written::default()).await
        }
    });
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(Duration::from_mins(1)).await;

    drop(stop);
    running.await.unwrap();
    watched.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn the_secrets_of_a_missing_cluster_are_not_watched() {
    for clusters in [0, 3] {
        let watched = secrets_watched(clusters).await;

        assert_eq!(watched.len(), 2 * clusters, "{watched:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_beyond_the_limit_of_its_namespace_is_not_served() {
    for (limit, expected) in [(None, 0), (NonZeroUsize::new(2), CLUSTERS - 2)] {
        let reasons: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
        let noted = reasons.clone();
        let management = ClusterAccess::in_memory(move |request: Request<kube::client::Body>| {
            let noted = noted.clone();
            async move {
                if request.method() != Method::PUT {
                    return answer(request, Written::default()).await;
                }
                let object = request.into_body().collect().await.unwrap().to_bytes();
                let object: Value = serde_json::from_slice(&object).unwrap();
                for condition in object["status"]["conditions"]
                    .as_array()
                    .into_iter()
                    .flatten()
                {
                    if condition["type"] == "Ready" {
                        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                        let reason = condition["reason"].as_str().unwrap().to_owned();
                        noted.lock().unwrap().insert(name, reason);
                    }
                }
                whole(200, &object)
            }
        });
        let settings = Settings {
            max_clusters_per_namespace: limit,
            ..Settings::default()
        };
        let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
        let controller = Controller::new(&management, settings, Arc::new(verifiers));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

        sleep(CHANGE + 8 * SLOW).await;

        let reasons = reasons.lock().unwrap().clone();
        let beyond = |reason: &String| reason == "TooManyClusters";
        assert_eq!(
            reasons.values().filter(|reason| beyond(reason)).count(),
            expected
        );
        for oldest in ["c0", "c1"] {
            assert_eq!(reasons[oldest], "KubeconfigNotFound");
        }
        drop(stop);
        running.await.unwrap();
    }
}

/// The last generation that the controller reports for an object that changes every 10 ms, for 10 seconds.
const LAST: i64 = 1000;

/// Like [`answer`], but with one `KubeletAuthentication` that changes constantly.
async fn answer_of_storm(request: Request<kube::client::Body>, written: Written) -> Answer {
    if !request.uri().path().ends_with("/kubeletauthentications") {
        return answer(request, written).await;
    }
    let query = request.uri().query().unwrap_or_default();
    if !query.contains("watch=") {
        let metadata = json!({"resourceVersion": "1"});
        let items = [authentication(0, 1)];
        let list =
            json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
        return whole(200, &list);
    }
    let events = stream::iter(2..=LAST).then(|generation| async move {
        sleep(Duration::from_millis(10)).await;
        let event = json!({"type": "MODIFIED", "object": authentication(0, generation)});
        Ok(Frame::data(Bytes::from(event.to_string() + "\n")))
    });
    Response::new(StreamBody::new(events.chain(stream::pending())).boxed_unsync())
}

#[tokio::test(start_paused = true)]
async fn a_constantly_changing_object_is_reconciled_once_a_second() {
    let written: Written = Written::default();
    let server = written.clone();
    let management =
        ClusterAccess::in_memory(move |request| answer_of_storm(request, server.clone()));
    let reconciled: Arc<Mutex<usize>> = Arc::default();
    let counted = reconciled.clone();
    let verifiers = move |_: &KubeletAuthentication, _: &str| {
        *counted.lock().unwrap() += 1;
        Verifiers::default()
    };
    let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(Duration::from_secs(20)).await;

    let has_last = written.lock().unwrap().contains(&("c0".to_owned(), LAST));
    assert!(has_last, "the last change has an effect");
    let count = *reconciled.lock().unwrap();
    assert!((10..50).contains(&count), "{count} times");
    drop(stop);
    running.await.unwrap();
}
