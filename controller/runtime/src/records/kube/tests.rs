//! Tests with an API server that returns the responses that a test specifies.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::future::pending;
use futures::stream::StreamExt as _;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube::client::Body;
use node_attestation_core::identifiers::RecordUid;
use node_attestation_core::inventory::StaticInventory;
use node_attestation_core::ledger::{RecordLedger, Revoked, SeenBoot, Tombstone, TombstoneReason};
use node_attestation_core::refusal::Refusal;
use node_attestation_core::testing::records::{World, at, claim, name, renewal};
use node_attestation_core::verifier::TpmBoot;
use tokio::time::advance;

mod owners;

use super::*;
use crate::records::RecordsWatch;

enum Answer {
    Json(u16, Value),
    /// A watch that receives the events that a test sends.
    Open(UnboundedReceiver<Value>),
    Never,
}

fn client(answer: impl Fn(&str) -> Answer + Clone + Send + 'static) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer(&request.uri().to_string());
        async move {
            let (status, body) = match answer {
                Answer::Json(status, json) => (
                    status,
                    Full::new(Bytes::from(json.to_string())).boxed_unsync(),
                ),
                Answer::Open(events) => {
                    let frame = |event: Value| {
                        Ok::<_, Infallible>(Frame::data(Bytes::from(format!("{event}\n"))))
                    };
                    (200, StreamBody::new(events.map(frame)).boxed_unsync())
                }
                Answer::Never => pending().await,
            };
            let response = Response::builder().status(status);
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn only_the_later_generation_is_written_to_the_status() {
    let (sender, mut written) = unbounded();
    let service = tower::service_fn(move |request: Request<Body>| {
        let sender = sender.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            if parts.method == "PATCH" {
                let patch: Value = serde_json::from_slice(&body).unwrap();
                let object = parts.uri.path().to_owned();
                sender.unbounded_send((object, patch)).unwrap();
            }
            let failure = json!({"kind": "Status", "code": 404, "metadata": {}});
            let body = Full::new(Bytes::from(failure.to_string()));
            let response = Response::builder().status(404);
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    let client = Client::new(service, "default");
    let records = KubeRecords::start(client, "default", "prod-1", &Metrics::default());

    assert!(records.note_later(&name("n1"), 7).await.is_err());

    let (object, patch) = written.next().await.unwrap();
    assert!(object.ends_with("/prod-1.n1/status"), "{object}");
    assert_eq!(patch, json!({"status": {"presentedGeneration": 7}}));
}

fn start(answer: impl Fn(&str) -> Answer + Clone + Send + 'static) -> KubeRecords {
    KubeRecords::start(client(answer), "default", "prod-1", &Metrics::default())
}

fn is_watch(uri: &str) -> bool {
    uri.contains("watch=true")
}

fn list_of(records: &[Record]) -> Answer {
    let items = records.iter().map(|record| {
        let mut object = NodeIdentity::new(
            &crd::object_name("prod-1", record.node_name.as_str()),
            object::spec(record, "prod-1").unwrap(),
        );
        object.metadata.namespace = Some("default".to_owned());
        let label = (CLUSTER_NAME_LABEL.to_owned(), "prod-1".to_owned());
        object.metadata.labels = Some([label].into());
        object.metadata.uid = Some("uid".to_owned());
        object.metadata.resource_version = Some("1".to_owned());
        object
    });
    Answer::Json(
        200,
        json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentityList",
            "metadata": {"resourceVersion": "1"}, "items": items.collect::<Vec<_>>(),
        }),
    )
}

fn empty_list() -> Answer {
    list_of(&[])
}

fn bare() -> Record {
    let mut claim = claim("m1", "n1", 1, 0);
    claim.machine_name = None;
    Record::first(&claim, RecordUid::new([7; 16]), None, at(0))
}

/// A record with a value in every field.
fn full() -> Record {
    let mut record = bare();
    record.generation = 2;
    record.holder.instance = Some("i-1".to_owned());
    record.holder.machine_name = Some("m1".to_owned());
    record.holder.endorsement_key = Some(KeyDigest::of(b"ek"));
    record.holder.boot = Some(TpmBoot {
        resets: 1,
        restarts: 0,
        clock: 5,
    });
    record.opened.stale_node = Some("node-1".to_owned());
    record.former_until = Some(at(9));
    record.renewed_until = Some(at(8));
    record.renewed_boot = record.holder.boot.map(|boot| SeenBoot { boot, at: at(1) });
    record.superseded = Some(1);
    record.tombstone = Some(Tombstone {
        since: at(1),
        reason: TombstoneReason::MachineGone,
        until: at(9),
    });
    record.revoked = Some(Revoked {
        generation: 1,
        at: at(1),
    });
    record
}

/// Applies a merge patch (RFC 7386).
fn merged(target: &mut Value, patch: Value) {
    let Value::Object(fields) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(&name);
        } else {
            merged(&mut target[name], value);
        }
    }
}

/// Asserts that the value contains each field of the schema.
fn assert_whole(path: &str, schema: &JSONSchemaProps, value: &Value) {
    for (name, property) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        let value = value.get(name).filter(|value| !value.is_null());
        assert_whole(
            &path,
            property,
            value.unwrap_or_else(|| panic!("{path} is not said")),
        );
    }
}

#[tokio::test]
async fn a_patch_clears_each_field_that_the_record_does_not_have() {
    let records = start(|_| Answer::Never);
    let spec = |record: &Record| {
        let spec = object::spec(record, "prod-1").unwrap();
        serde_json::to_value(spec).unwrap()
    };
    let definition = crd::manifests().remove(1);
    let schema = definition.spec.versions[0].schema.clone().unwrap();
    let schema = schema.open_api_v3_schema.unwrap().properties.unwrap();
    assert_whole("spec", &schema["spec"], &spec(&full()));

    let mut object = json!({"spec": spec(&full())});
    let patch = records.patch(&bare(), &Version::new("7")).unwrap();
    merged(&mut object, patch);

    let mut expected = json!({"spec": null});
    merged(&mut expected, json!({"spec": spec(&bare())}));
    assert_eq!(object["spec"], expected["spec"]);
}

#[tokio::test]
async fn a_patch_contains_the_version_that_was_read() {
    let records = start(|_| Answer::Never);

    let patch = records.patch(&bare(), &Version::new("7")).unwrap();

    assert_eq!(patch["metadata"]["resourceVersion"], "7");
}

#[tokio::test(start_paused = true)]
async fn failing_lists_are_retried_with_backoff() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let _records = start(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Answer::Json(500, json!({"kind": "Status", "code": 500}))
    });

    for _ in 0..600 {
        advance(Duration::from_millis(100)).await;
        tokio::task::yield_now().await;
    }

    // The waits between the calls are at most 0.25, 0.5, 1, 2, 4, 8, 15, 15 and 15 s, and at least half of that.
    let calls = calls.load(Ordering::Relaxed);
    assert!((5..=14).contains(&calls), "{calls} calls in a minute");
}

/// A watch after its first list, and the channel for its events. The API server does not respond to later calls.
fn watched_once() -> (KubeRecords, UnboundedSender<Value>) {
    watched(Vec::new())
}

/// Like [`watched_once`], but with these records in the list.
fn watched(listed: Vec<Record>) -> (KubeRecords, UnboundedSender<Value>) {
    let (sender, receiver) = unbounded();
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let lists = Arc::new(AtomicUsize::new(0));
    let records = start(move |uri| {
        if !is_watch(uri) {
            return match lists.fetch_add(1, Ordering::Relaxed) {
                0 => list_of(&listed),
                _ => Answer::Never,
            };
        }
        let receiver = receiver.lock().unwrap().take();
        receiver.map_or(Answer::Never, Answer::Open)
    });
    (records, sender)
}

#[tokio::test(start_paused = true)]
async fn records_are_unknown_after_a_minute_without_watch_events() {
    let (records, sender) = watched_once();
    assert!(records.known(&name("n1")).await.is_ok());

    tokio::time::sleep(Duration::from_secs(70)).await;

    for error in [
        records.known(&name("n1")).await.unwrap_err(),
        records.all().await.unwrap_err(),
    ] {
        assert_eq!(error.to_string(), "the watch of node identities is delayed");
    }
    drop(sender);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_waits_after_a_minute_without_watch_events() {
    let (records, sender) = watched(vec![bare()]);
    let world = World::new();
    let machines = StaticInventory::new(world.machines).unwrap();
    let ledger = RecordLedger::new(
        Arc::new(records),
        Arc::new(machines),
        world.nodes,
        world.policy,
        world.enforcement,
    );
    let renewal = renewal("m1", bare().generation, 1);
    let granted = ledger.renew(&renewal, at(1)).await.unwrap();
    assert_eq!(granted.uid, renewal.uid);
    tokio::time::sleep(Duration::from_secs(70)).await;

    let refused = ledger.renew(&renewal, at(1)).await;

    let Err(Refusal::Retry(deferral)) = refused else {
        panic!("not put off: {refused:?}");
    };
    assert_eq!(deferral.reason(), "LedgerUnavailable");
    drop(sender);
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_keeps_the_records_known() {
    let (records, sender) = watched_once();
    assert!(records.known(&name("n1")).await.is_ok());
    for version in 2..10 {
        tokio::time::sleep(Duration::from_secs(40)).await;
        let bookmark = json!({
            "type": "BOOKMARK",
            "object": {
                "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
                "metadata": {"resourceVersion": version.to_string()},
            },
        });
        sender.unbounded_send(bookmark).unwrap();

        assert!(records.known(&name("n1")).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn records_are_unknown_while_they_are_listed_again() {
    let (lists, watches) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let (seen, watches) = (lists.clone(), Arc::new(watches));
    let (sender, receiver) = unbounded();
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let records = start(move |uri| {
        if is_watch(uri) {
            watches.fetch_add(1, Ordering::Relaxed);
            let receiver = receiver.lock().unwrap().take();
            return receiver.map_or(Answer::Never, Answer::Open);
        }
        match seen.fetch_add(1, Ordering::Relaxed) {
            0 => empty_list(),
            2.. => Answer::Never,
            page => Answer::Json(
                200,
                json!({
                    "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentityList",
                    "metadata": {"resourceVersion": "9", "continue": page.to_string()}, "items": [],
                }),
            ),
        }
    });
    assert!(records.known(&name("n1")).await.is_ok());

    let expired = json!({
        "type": "ERROR",
        "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410,
                   "message": "too old resource version"},
    });
    sender.unbounded_send(expired).unwrap();
    while lists.load(Ordering::Relaxed) < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    let error = records.known(&name("n1")).await.unwrap_err();
    assert_eq!(error.to_string(), "the watch of node identities is delayed");
    drop(sender);
}

#[tokio::test(start_paused = true)]
async fn one_watch_has_the_records_of_many_clusters() {
    let (sender, receiver) = unbounded();
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let client = client(move |uri| {
        assert!(!uri.contains("/namespaces/"), "{uri}");
        if !is_watch(uri) {
            return empty_list();
        }
        let receiver = receiver.lock().unwrap().take();
        receiver.map_or(Answer::Never, Answer::Open)
    });
    let (watch, watching) = RecordsWatch::new(client, None, &Metrics::default());
    let _watching = tokio::spawn(watching);
    let key = |namespace, cluster| ObjectKey::new(namespace, cluster);
    let [own, other, namesake] = [key("a", "prod-1"), key("a", "prod-2"), key("b", "prod-1")]
        .map(|key| watch.of_cluster(&key));
    let spec = object::spec(&bare(), "prod-1").unwrap();
    let mut object = NodeIdentity::new(&crd::object_name("prod-1", "n1"), spec);
    object.metadata.namespace = Some("a".to_owned());
    object.metadata.uid = Some("uid".to_owned());
    object.metadata.resource_version = Some("2".to_owned());
    let label = (CLUSTER_NAME_LABEL.to_owned(), "prod-1".to_owned());
    object.metadata.labels = Some([label].into());
    own.known(&name("n1")).await.unwrap();

    let send = |kind| {
        let event = json!({"type": kind, "object": object});
        sender.unbounded_send(event).unwrap();
    };
    send("ADDED");
    let version = Version::new("2");
    own.caught_up(&name("n1"), &version).await.unwrap();

    let known = |records: KubeRecords| async move { records.known(&name("n1")).await.unwrap() };
    assert_eq!(known(other).await, None);
    assert_eq!(known(namesake).await, None);
    let key = key("a", "prod-1");
    assert_eq!(known(watch.of_cluster(&key)).await.unwrap().record, bare());

    send("DELETED");
    while known(watch.of_cluster(&key)).await.is_some() {
        advance(Duration::from_millis(1)).await;
    }
}

/// A management cluster with records that have these names and owners, and the write calls with their bodies. Each
/// write to the record `prod-1.busy` causes a conflict, and writes to the record `prod-1.invalid` are rejected.
fn with_records(
    records: Vec<(&'static str, Option<Value>)>,
) -> (Client, Arc<Unshared<Vec<Value>>>) {
    let written: Arc<Unshared<Vec<Value>>> = Arc::default();
    let told = written.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (told, records) = (told.clone(), records.clone());
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path();
            let answer = if path == "/apis/cluster.x-k8s.io/v1beta2" {
                let resource = json!({
                    "name": "clusters", "kind": "Cluster", "singularName": "", "namespaced": true, "verbs": ["get"],
                });
                json!({
                    "kind": "APIResourceList", "groupVersion": "cluster.x-k8s.io/v1beta2", "resources": [resource],
                })
            } else if parts.method == hyper::Method::GET {
                let items: Vec<_> = records
                    .iter()
                    .map(|(name, owner)| {
                        let owners: Vec<_> = owner.iter().collect();
                        let metadata = json!({
                            "name": name, "namespace": "default", "resourceVersion": "7", "ownerReferences": owners,
                        });
                        let is_cut = name.contains(".cut").then_some(true);
                        json!({"metadata": metadata, "$excessRemoved": is_cut})
                    })
                    .collect();
                json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                    "metadata": {"resourceVersion": "9"}, "items": items,
                })
            } else {
                let body = body.collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let name = path.rsplit('/').next().unwrap();
                told.lock().push(json!({"path": name, "body": body}));
                if parts.method == hyper::Method::POST {
                    let mut object = body;
                    object["metadata"]["resourceVersion"] = json!("8");
                    object
                } else if name == "status" {
                    json!({"metadata": {"name": "n1"}, "spec": object::spec(&bare(), "prod-1").unwrap()})
                } else {
                    json!({
                        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                        "metadata": {"name": name},
                    })
                }
            };
            let is_patch = parts.method == hyper::Method::PATCH;
            let refusals = [(".busy", 409_u16, "Conflict"), (".invalid", 422, "Invalid")];
            let mut refusals = refusals.into_iter();
            let refusal = refusals.find(|(end, ..)| is_patch && path.ends_with(end));
            let (status, answer) = match refusal {
                Some((_, code, reason)) => {
                    let answer = json!({"kind": "Status", "code": code, "reason": reason});
                    (code, answer)
                }
                None => (200, answer),
            };
            let body = Full::new(Bytes::from(answer.to_string()));
            let response = Response::builder().status(status);
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    (Client::new(service, "default"), written)
}
