//! Tests of each listed kind, with an unreadable object next to a valid object.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt as _;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response, Uri};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, WatchEvent};
use kube::client::Body;
use kube::core::{ApiResource, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use node_attestation_core::crd::{KubeletAuthentication, NodeIdentity, RevokedNodeCredentials};
use serde_json::{Value, json};
use tower::ServiceBuilder;
use tower::layer::layer_fn;

use super::*;
use crate::client::{Bounded, NamedBy};
use crate::testing::{hostile_values, with_each_value};
use crate::watch::NoFields;

mod oversized;
mod values;

/// A time that Go can parse and jiff cannot, because jiff's last `Timestamp` is one day earlier.
const NO_TIMESTAMP: &str = "9999-12-31T23:59:59Z";

/// A client for an API server that contains these objects. The API server answers every list with all objects, a watch
/// with an event for each object, and a read with the object that has this name.
fn client(objects: Vec<Value>) -> Client {
    let answer = move |uri: &Uri| -> String {
        let query = uri.query().unwrap_or_default();
        let name = uri.path().rsplit('/').next().unwrap_or_default();
        let named = |one: &&Value| one["metadata"]["name"] == name;
        if query.contains("watch=true") {
            // The fields are in the same order as in an API server's event.
            let event = |object| format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n");
            objects.iter().map(event).collect()
        } else if let Some(object) = objects.iter().find(named) {
            object.to_string()
        } else {
            let metadata = json!({"resourceVersion": "1"});
            json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": objects})
                .to_string()
        }
    };
    let server = tower::service_fn(move |request: Request<Body>| {
        let answer = Full::new(Bytes::from(answer(request.uri())));
        async move { Ok::<_, Infallible>(Response::new(answer)) }
    });
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Tenant, "tenant-a"));
    Client::new(ServiceBuilder::new().layer(bounded).service(server), "a")
}

fn named(mut object: Value, name: &str) -> Value {
    object["metadata"]["name"] = json!(name);
    object["metadata"]["namespace"] = json!("a");
    object["metadata"]["uid"] = json!(format!("uid-of-{name}"));
    object["metadata"]["resourceVersion"] = json!("7");
    object
}

/// Copies of the object with every form of metadata that an API server can return.
fn hostile(object: &Value) -> Vec<(&'static str, Value)> {
    let around = |inner, _| Value::Object([("f:a".to_owned(), inner)].into_iter().collect());
    let deep = (0..2000).fold(Value::Null, around);
    let with = |field: &str, value: Value| {
        let mut object = named(object.clone(), "hostile");
        object["metadata"][field] = value;
        object
    };
    vec![
        (
            "time",
            with(
                "managedFields",
                json!([{"manager": "m", "time": NO_TIMESTAMP}]),
            ),
        ),
        ("deep", with("managedFields", json!([{"fieldsV1": deep}]))),
        ("no array", with("managedFields", json!("none"))),
    ]
}

/// Like [`hostile`], but for the fields that k8s-openapi parses in all metadata.
fn hostile_to_types(object: &Value) -> Vec<(&'static str, Value)> {
    let with = |field: &str, value: Value| {
        let mut object = named(object.clone(), "hostile");
        object["metadata"][field] = value;
        object
    };
    let mut shapes = hostile(object);
    shapes.extend([
        ("number", with("generateName", json!({"a": 5}))),
        ("self", with("selfLink", json!([[]]))),
        ("made", with("creationTimestamp", json!(NO_TIMESTAMP))),
        ("deleted", with("deletionTimestamp", json!(NO_TIMESTAMP))),
        ("labels", with("labels", json!(["a"]))),
        ("annotations", with("annotations", json!({"a": {"b": 1}}))),
        ("owners", with("ownerReferences", json!([{}]))),
        ("generation", with("generation", json!("1"))),
        ("no metadata", json!({"metadata": 5})),
        ("no object", json!([[], 5, "text"])),
        ("nothing", Value::Null),
    ]);
    shapes
}

/// The names from a list. If `versioned` is set, also the names from a watch.
async fn watched<K>(api: Api<K>, versioned: bool) -> [BTreeSet<String>; 2]
where
    K: Resource<DynamicType: Clone + Debug> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default().page_size(16)));
    let of = |object: &K| object.meta().name.clone().unwrap_or_default();
    let reading = async {
        while let Some(event) = events.next().await {
            match event.expect("a list or a watch was not read") {
                Event::InitDone if !versioned => break,
                Event::Init | Event::InitDone | Event::Delete(_) => {}
                Event::InitApply(object) => drop(seen[0].insert(of(&object))),
                Event::Apply(object) => drop(seen[1].insert(of(&object))),
            }
            if seen.iter().all(|seen| seen.contains("good")) {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(1), reading)
        .await
        .expect("the good object was not seen");
    seen
}

async fn lists<K, R>(kind: &str, object: Value)
where
    K: Clone + Debug + DeserializeOwned + Send + 'static,
    R: Resource<DynamicType = ()> + Clone + Debug + 'static,
{
    for (shape, hostile) in hostile_to_types(&object) {
        let readable = hostile["metadata"]["name"] == "hostile";
        let good = named(object.clone(), "good");
        let client = client(vec![hostile, good]);
        let api: Api<Lenient<K, R>> = Api::all(client.clone());
        let seen = Box::pin(watched(api.clone(), readable)).await;
        for seen in seen.iter().take(1 + usize::from(readable)) {
            let all = readable.then_some("hostile").into_iter().chain(["good"]);
            let seen = seen
                .iter()
                .map(String::as_str)
                .filter(|name| !name.is_empty());
            assert!(
                all.eq(seen.collect::<BTreeSet<_>>().into_iter().rev()),
                "{kind}: {shape}"
            );
        }
        let one_page = ListParams::default().limit(16);
        let mut page = Box::pin(api.list(&one_page)).await.unwrap();
        let good = page.items.pop().unwrap();
        assert!(
            good.object.is_ok(),
            "{kind}: {shape}: {:?}",
            good.object.err()
        );
        if readable {
            let hostile = Box::pin(api.get("hostile")).await.unwrap();
            assert!(
                hostile.object.is_ok(),
                "{kind}: {shape}: {:?}",
                hostile.object.err()
            );
            assert_eq!(hostile.meta().uid.as_deref(), Some("uid-of-hostile"));
        }
    }
}

/// The results of reading one object and of reading a list, for types from kube or k8s-openapi.
async fn gets<K>(kind: &str, api: impl Fn(Client) -> Api<K>, object: Value)
where
    K: Clone + Debug + DeserializeOwned,
{
    for (shape, hostile) in hostile(&object) {
        let api = api(client(vec![hostile, named(object.clone(), "good")]));
        let one = api.get("hostile").await;
        assert!(one.is_ok(), "{kind}: {shape}: {:?}", one.err());
        let all = api.list(&ListParams::default().limit(16)).await;
        assert_eq!(all.unwrap().items.len(), 2, "{kind}: {shape}");
    }
}

fn request() -> Value {
    json!({"spec": {"request": "", "signerName": "s", "username": "u"}})
}

fn authentication() -> Value {
    json!({"spec": {"clusterName": "good", "authorizedAttestors": ["aws"]}})
}

fn secret() -> Value {
    json!({"type": "Opaque", "data": {"value": "YQ=="}})
}

fn binding() -> Value {
    json!({"roleRef": {"apiGroup": "g", "kind": "ClusterRole", "name": "r"}})
}

fn identity() -> Value {
    let time = "2026-01-01T00:00:00Z";
    let opened = json!({
        "time": time, "requestName": "r", "requestUID": "u", "keySHA256": "0".repeat(64),
    });
    json!({"spec": {
        "clusterName": "c", "nodeName": "n", "uid": "0".repeat(32), "providerID": "aws:///z/i",
        "attestor": "aws", "generation": 1, "opened": opened, "notAfter": time,
    }})
}

#[tokio::test(start_paused = true)]
async fn one_unreadable_object_does_not_block_others_of_its_kind() {
    lists::<CertificateSigningRequest, CertificateSigningRequest>("CSR", request()).await;
    lists::<KubeletAuthentication, KubeletAuthentication>("KA", authentication()).await;
    lists::<NodeIdentity, NodeIdentity>("NodeIdentity", identity()).await;
    let revoked = json!({"spec": {"revoked": {}}});
    lists::<RevokedNodeCredentials, RevokedNodeCredentials>("revoked", revoked).await;
    lists::<Secret, Secret>("Secret", secret()).await;
    lists::<Node, Node>("Node", json!({})).await;
    lists::<Lease, Lease>("Lease", json!({"spec": {}})).await;
    lists::<ClusterRoleBinding, ClusterRoleBinding>("binding", binding()).await;
}

#[tokio::test(start_paused = true)]
async fn one_object_is_read_with_any_managed_fields() {
    gets("CSR", Api::<CertificateSigningRequest>::all, request()).await;
    gets(
        "KA",
        |c| Api::<KubeletAuthentication>::namespaced(c, "a"),
        authentication(),
    )
    .await;
    gets(
        "NodeIdentity",
        |c| Api::<NodeIdentity>::namespaced(c, "a"),
        identity(),
    )
    .await;
    let revoked = json!({"spec": {"revoked": {}}});
    gets("revoked", Api::<RevokedNodeCredentials>::all, revoked).await;
    gets("Secret", |c| Api::<Secret>::namespaced(c, "a"), secret()).await;
    gets("Node", Api::<PartialObjectMeta<Node>>::all, json!({})).await;
    gets(
        "Lease",
        |c| Api::<Lease>::namespaced(c, "a"),
        json!({"spec": {}}),
    )
    .await;
    gets("ClusterRole", Api::<ClusterRole>::all, json!({"rules": []})).await;
    gets("binding", Api::<ClusterRoleBinding>::all, binding()).await;
    let kind = ApiResource {
        group: "infrastructure.cluster.x-k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "infrastructure.cluster.x-k8s.io/v1".to_owned(),
        kind: "AWSCluster".to_owned(),
        plural: "awsclusters".to_owned(),
    };
    let infrastructure = |c| Api::<DynamicObject>::namespaced_with(c, "a", &kind);
    gets("infrastructure", infrastructure, json!({"spec": {}})).await;
}

#[test]
fn an_enum_value_from_a_later_version_does_not_block_other_objects() {
    let object = |name: &str, adoption: &str| {
        let mut object = named(authentication(), name);
        object["spec"]["adoption"] = json!(adoption);
        object
    };
    let list = json!([object("one", "WordOfALaterVersion"), object("two", "Allow")]);

    let list: Vec<Lenient<KubeletAuthentication>> = serde_json::from_value(list).unwrap();

    assert!(list[0].object.is_err());
    assert_eq!(list[0].meta().name.as_deref(), Some("one"));
    assert!(list[1].object.is_ok());
}

#[test]
fn an_event_is_read_with_its_fields_in_any_order() {
    let object = named(request(), "good");
    for text in [
        format!(r#"{{"type":"ADDED","object":{object}}}"#),
        format!(r#"{{"object":{object},"type":"ADDED"}}"#),
    ] {
        let event = serde_json::from_str::<WatchEvent<Lenient<CertificateSigningRequest>>>(&text);
        let WatchEvent::Added(seen) = event.unwrap() else {
            panic!("{text}");
        };
        assert_eq!(seen.object.unwrap().spec.signer_name, "s");
    }
}

/// Asserts that a readable object of this kind has the same metadata as an object of which only metadata is read.
fn has_same_metadata<K: DeserializeOwned + 'static>(kind: &str, object: Value) {
    let mut object = named(object, "good");
    object["metadata"]["labels"] = json!({"a": "b"});
    object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut texts: Vec<_> = with_each_value(&object, &hostile_values())
        .into_iter()
        .map(|(place, hostile)| (place, hostile.to_string()))
        .collect();
    texts.push(("nowhere".to_owned(), object.to_string()));
    let mut readable = 0;
    for (place, text) in texts {
        let (metadata, read) = parsed::<K>(&text);
        if read.is_ok() {
            readable += 1;
            assert_eq!(metadata, parsed::<NoFields>(&text).0, "{kind}: {place}");
        }
    }
    assert!(readable > 0, "{kind}");
    // The client adds this member to an object that it has truncated.
    let mut truncated = object;
    truncated[EXCESS_REMOVED] = json!(true);
    assert!(parsed::<K>(&truncated.to_string()).1.is_err(), "{kind}");
}

#[test]
fn metadata_parsed_with_its_object_equals_separately_parsed_metadata() {
    has_same_metadata::<CertificateSigningRequest>("CSR", request());
    has_same_metadata::<NodeIdentity>("NodeIdentity", identity());

    let spec = r#""spec":{"request":"","signerName":"s"}"#;
    let twice = format!(r#"{{"metadata":{{"name":"a"}},{spec},"metadata":{{"name":"b"}}}}"#);
    let (metadata, request) = parsed::<CertificateSigningRequest>(&twice);
    assert_eq!(request.unwrap().metadata, metadata);
}

#[test]
fn a_deletion_timestamp_with_any_time_is_recognized() {
    for (time, deleting) in [
        (json!("2026-01-01T00:00:00Z"), true),
        (json!(NO_TIMESTAMP), true),
        (json!(5), true),
        (Value::Null, false),
    ] {
        let object = json!({"metadata": {"deletionTimestamp": time}});
        let object: Lenient<Node> = serde_json::from_value(object).unwrap();
        assert_eq!(
            object.meta().deletion_timestamp.is_some(),
            deleting,
            "{time}"
        );
    }
}

#[test]
fn a_parse_error_contains_no_object_content() {
    let object = json!({"data": {"token": "swordfish", "other": ["\"swordfish\""]}});
    let object: Lenient<Secret> = serde_json::from_value(object).unwrap();
    let error = object.object.unwrap_err().to_string();
    assert!(!error.contains("swordfish"), "{error}");
    for text in ["\"sword\"fish\"", "\"swordfish\""] {
        let error = serde_json::from_str::<bool>(&json!(text).to_string()).unwrap_err();
        let error = Unreadable::from(error).to_string();
        assert!(!error.contains("fish"), "{error}");
    }
}

fn metadata(namespace: &str, uid: u32) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(namespace.to_owned()),
        uid: Some(uid.to_string()),
        ..ObjectMeta::default()
    }
}

/// Whether the client logs this object.
fn is_logged(skipped: &mut Skipped, metadata: &ObjectMeta) -> bool {
    skipped
        .take(metadata)
        .is_some_and(|(_, left_out)| left_out.is_some())
}

#[tokio::test(start_paused = true)]
async fn the_next_log_line_contains_the_number_of_omitted_objects() {
    let mut skipped = Skipped::new("Node");
    for uid in 0..LINES.burst + 7 {
        is_logged(&mut skipped, &metadata("a", uid));
    }
    tokio::time::advance(LINES.every).await;

    let taken = skipped.take(&metadata("a", LINES.burst));
    assert_eq!(taken.unwrap().1, Some(7));
}

/// The API server of a tenant returns an object in another tenant's namespace.
#[tokio::test(start_paused = true)]
async fn unreadable_objects_of_tenants_do_not_displace_other_log_lines() {
    let own = ClusterLines::of(&crate::object_key::ObjectKey::new("own", "prod-1"));
    let mut skipped = Skipped::of_cluster("CertificateSigningRequest", own);
    let mut logged = 0;
    for (number, namespace) in (0..).zip(["victim", "other", "own"].repeat(1000)) {
        let Some((lines, left_out)) = skipped.take(&metadata(namespace, number)) else {
            continue;
        };
        assert_eq!(lines.cluster(), Some("own/prod-1"));
        logged += u32::from(left_out.is_some());
    }
    assert_eq!(logged, LINES.burst);
    assert_eq!(skipped.logged.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn each_version_of_an_unreadable_object_is_logged_once() {
    let mut skipped = Skipped::new("Node");
    let mut later = metadata("a", 0);
    later.resource_version = Some("2".to_owned());

    assert!(is_logged(&mut skipped, &metadata("a", 0)));
    assert!(is_logged(&mut skipped, &later));
    assert!(!is_logged(&mut skipped, &metadata("a", 0)));
    tokio::time::advance(LINES.every * LINES.burst).await;
    assert!(!is_logged(&mut skipped, &later));
}

#[tokio::test(start_paused = true)]
async fn unreadable_objects_are_rate_limited_by_namespace() {
    let mut skipped = Skipped::new("Node");
    for uid in 0..LINES.burst {
        assert!(is_logged(&mut skipped, &metadata("a", uid)), "{uid}");
    }
    let next = metadata("a", LINES.burst);
    assert!(!is_logged(&mut skipped, &next));
    assert!(is_logged(&mut skipped, &metadata("b", 0)));

    tokio::time::advance(LINES.every).await;

    assert!(is_logged(&mut skipped, &next));
    assert!(!is_logged(&mut skipped, &metadata("a", LINES.burst + 1)));
}

#[tokio::test(start_paused = true)]
async fn the_log_of_unreadable_objects_uses_bounded_memory() {
    let mut skipped = Skipped::new("Node");
    let namespaces = u32::try_from(MAX_NAMESPACES).unwrap();
    for number in 0..namespaces + 2 * LINES.burst {
        is_logged(&mut skipped, &metadata(&number.to_string(), number));
    }
    is_logged(&mut skipped, &metadata(&"n".repeat(MAX_NAME_LEN + 1), 0));
    // All other namespaces share the entry with the empty name.
    assert_eq!(skipped.logged.len(), MAX_NAMESPACES + 1);

    let versions = skipped.logged.values().map(|logged| logged.versions.len());
    let most = usize::try_from(LINES.burst).unwrap();
    assert_eq!(versions.max(), Some(most));
    let next = metadata("another", 0);
    assert!(!is_logged(&mut skipped, &next));
}
