//! Test objects for each kind that exceed the limits for one object.

use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::pin;

use futures::stream::StreamExt as _;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::api::Api;
use kube::client::Body;
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use serde_json::{Value, json};
use tower::ServiceBuilder;
use tower::layer::layer_fn;

use super::{Lenient, ReadAlone, on_management, watch_config};
use crate::client::{Bounded, NamedBy};
use crate::testing::{long_text, many_values};

/// A client for an API server that returns these objects in a list, and then in events.
fn client(named_by: NamedBy, objects: [&Value; 2]) -> Client {
    let metadata = json!({"resourceVersion": "1"});
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": objects});
    let list = Bytes::from(list.to_string());
    let event = |object: &Value| format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n");
    let events = Bytes::from(objects.map(event).concat());
    let server = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let text = if query.contains("watch=") {
            events.clone()
        } else {
            list.clone()
        };
        async move { Ok::<_, Infallible>(Response::new(Full::new(text))) }
    });
    let bounded = layer_fn(move |service| Bounded::new(service, named_by, "a"));
    Client::new(ServiceBuilder::new().layer(bounded).service(server), "a")
}

fn named(object: &Value, name: &str) -> Value {
    let mut object = object.clone();
    let metadata = &mut object["metadata"];
    metadata["name"] = json!(name);
    metadata["namespace"] = json!("a");
    metadata["uid"] = json!(name);
    metadata["resourceVersion"] = json!("7");
    object
}

/// Asserts that an oversized object of a kind does not hide `good`, in a list and in a watch. An object with too many
/// values must be unreadable, and must keep its name.
pub(crate) async fn hides_no_other<K, R>(
    named_by: NamedBy,
    good: &Value,
    api: impl Fn(Client) -> Api<Lenient<K, R>>,
) where
    K: ReadAlone,
    R: Resource<DynamicType: Clone + Debug> + Clone + Debug + 'static,
{
    let good = named(good, "good");
    let mut oversized = vec![
        ("metadata", "labels", many_values(), false),
        ("metadata", "annotations", many_values(), false),
        ("spec", "unread", many_values(), false),
        ("status", "unread", many_values(), false),
    ];
    // For a tenant's API server, longer pages are read in smaller pages, which this server does not have.
    if named_by == NamedBy::Operator {
        oversized.push(("metadata", "unread", long_text(), true));
    }
    for (part, field, value, is_read) in oversized {
        let mut hostile = named(&good, "hostile");
        hostile[part][field] = value;
        let objects = client(named_by, [&hostile, &good]);
        let mut events = pin!(on_management(api(objects), watch_config()));
        let mut read = Vec::new();
        while read.len() < 4 {
            match events.next().await.unwrap().unwrap() {
                Event::InitApply(object) | Event::Apply(object) => read.push(object),
                Event::Init | Event::InitDone => {}
                Event::Delete(object) => panic!("{object:?}"),
            }
        }
        for (number, object) in read.iter().enumerate() {
            let is_good = number % 2 == 1;
            let name = if is_good { "good" } else { "hostile" };
            assert_eq!(
                object.metadata.name.as_deref(),
                Some(name),
                "{part}.{field}"
            );
            assert_eq!(object.metadata.namespace.as_deref(), Some("a"));
            match &object.object {
                Ok(_) => assert!(is_good || is_read, "{part}.{field}"),
                Err(error) => {
                    assert!(!is_good && !is_read, "{part}.{field}: {error}");
                    assert!(error.to_string().contains("too many values"), "{error}");
                }
            }
        }
    }
}
