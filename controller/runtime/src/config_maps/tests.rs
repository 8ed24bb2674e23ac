//! Tests with an API server that counts the calls for each `ConfigMap`. A test can change the `ConfigMaps`.

use std::convert::Infallible;

use futures::future::{join, join_all, pending};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::advance;

use super::*;

/// The entries, if they have not changed.
#[derive(Debug, PartialEq, Eq)]
struct Entries(BTreeMap<String, String>);

#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    refused: bool,
    hangs: bool,
    /// The number of calls for a complete object, and the number of calls for its metadata.
    calls: (usize, usize),
}

#[derive(Clone, Default)]
struct World(Arc<Unshared<Server>>);

impl World {
    fn with(&self, change: impl FnOnce(&mut Server)) {
        change(&mut self.0.lock());
    }

    /// Writes a `ConfigMap` with one entry.
    fn write(&self, name: &str, version: u32, value: &str) {
        let object = json!({
            "metadata": {"name": name, "uid": "u", "resourceVersion": version.to_string()},
            "data": {"key": value},
        });
        self.with(|server| drop(server.objects.insert(format!("/{name}"), object)));
    }

    fn calls(&self) -> (usize, usize) {
        self.0.lock().calls
    }

    fn answer(&self, request: &Request<Body>) -> Option<(u16, Value)> {
        let mut server = self.0.lock();
        if server.hangs {
            return None;
        }
        if server.refused {
            let status = json!({"status": "Failure", "reason": "Forbidden", "message": "may not get", "code": 403});
            return Some((403, status));
        }
        let accept = request.headers().get(ACCEPT);
        let of_metadata =
            accept.is_some_and(|kinds| kinds.to_str().unwrap().contains("PartialObjectMetadata"));
        if of_metadata {
            server.calls.1 += 1;
        } else {
            server.calls.0 += 1;
        }
        let path = request.uri().path();
        let name = path
            .strip_prefix("/api/v1/namespaces/prod/configmaps")
            .unwrap();
        let Some(object) = server.objects.get(name) else {
            return Some((
                404,
                json!({"status": "Failure", "reason": "NotFound", "code": 404}),
            ));
        };
        let mut object = object.clone();
        if of_metadata {
            object["apiVersion"] = json!("meta.k8s.io/v1");
            object["kind"] = json!("PartialObjectMetadata");
            object.as_object_mut().unwrap().remove("data");
        }
        Some((200, object))
    }

    fn client(&self) -> Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = world.answer(&request);
            async move {
                let Some((status, body)) = answer else {
                    return pending().await;
                };
                let body = Full::new(Bytes::from(body.to_string()));
                Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn config_maps(&self, names: &[&str]) -> ConfigMaps<Entries> {
        self.config_maps_within(names, Share::alone(1024 * 1024))
    }

    fn config_maps_within(&self, names: &[&str], share: Share) -> ConfigMaps<Entries> {
        ConfigMaps {
            client: self.client(),
            keys: names
                .iter()
                .map(|&name| ObjectKey::new("prod", name))
                .collect(),
            parse: |_, data| Entries(data),
            share,
            line: FairTurns::new(FETCHES).line(&ObjectKey::new("prod", names.join(","))),
            kept: Turnstile::default(),
            last: Unshared::default(),
        }
    }
}

/// The value of the only entry of each `ConfigMap`.
async fn values(config_maps: &ConfigMaps<Entries>) -> Result<Vec<String>, ConfigMapUnread> {
    let contents = config_maps.read().await?;
    Ok(contents.iter().map(|one| one.0["key"].clone()).collect())
}

#[tokio::test(start_paused = true)]
async fn concurrent_readers_share_one_call_for_each_config_map() {
    let world = World::default();
    world.write("a", 1, "1");
    world.write("b", 1, "2");
    let config_maps = world.config_maps(&["b", "a"]);

    let all = join_all((0..1000).map(|_| values(&config_maps))).await;

    assert!(
        all.iter()
            .all(|one| *one == Ok(vec!["2".to_owned(), "1".to_owned()]))
    );
    assert_eq!(world.calls(), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn only_changed_config_maps_are_fetched_after_five_seconds() {
    let world = World::default();
    world.write("a", 1, "1");
    world.write("b", 1, "2");
    let config_maps = world.config_maps(&["a", "b"]);
    values(&config_maps).await.unwrap();
    world.write("a", 2, "3");

    advance(Duration::from_millis(4999)).await;
    assert_eq!(values(&config_maps).await.unwrap(), ["1", "2"]);
    assert_eq!(world.calls(), (2, 0));

    advance(Duration::from_millis(1)).await;
    assert_eq!(values(&config_maps).await.unwrap(), ["3", "2"]);
    assert_eq!(world.calls(), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_recreated_config_map_with_the_same_version_is_read_again() {
    let world = World::default();
    world.write("a", 1, "1");
    let config_maps = world.config_maps(&["a"]);
    values(&config_maps).await.unwrap();

    world.write("a", 1, "2");
    world.with(|server| server.objects.get_mut("/a").unwrap()["metadata"]["uid"] = json!("v"));
    advance(FRESH).await;

    assert_eq!(values(&config_maps).await.unwrap(), ["2"]);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_config_map_is_named_and_read_again_after_five_seconds() {
    let world = World::default();
    world.write("a", 1, "1");
    let config_maps = world.config_maps(&["a", "b"]);
    assert!(config_maps.last_outcome().is_none());

    let absent = Err(ConfigMapUnread(
        "ConfigMap prod/b does not exist".to_owned(),
    ));
    assert_eq!(values(&config_maps).await, absent);
    assert_eq!(
        config_maps.last_outcome().unwrap().unwrap_err(),
        absent.clone().unwrap_err()
    );
    world.write("b", 1, "2");
    assert_eq!(values(&config_maps).await, absent);

    advance(FRESH).await;
    assert_eq!(values(&config_maps).await.unwrap(), ["1", "2"]);
    assert!(config_maps.last_outcome().unwrap().is_ok());

    // A `ConfigMap` can be deleted after it was read.
    world.with(|server| drop(server.objects.remove("/b")));
    advance(FRESH).await;
    assert_eq!(values(&config_maps).await, absent);

    world.with(|server| server.refused = true);
    advance(FRESH).await;
    let refused = values(&config_maps).await.unwrap_err().to_string();
    assert!(
        refused.starts_with("cannot read ConfigMap prod/a: "),
        "{refused}"
    );
    assert!(refused.contains("may not get"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_api_server_fails_all_readers_at_the_deadline() {
    let world = World::default();
    world.write("a", 1, "1");
    world.with(|server| server.hangs = true);
    let config_maps = world.config_maps(&["a"]);

    let asked = Instant::now();
    let all = join_all((0..10).map(|_| values(&config_maps))).await;

    let late = "cannot read the ConfigMaps of namespace prod within 20 s";
    let late = ConfigMapUnread(late.to_owned());
    assert!(all.iter().all(|one| one.as_ref() == Err(&late)), "{all:?}");
    // A caller that waited for the first read gets the result of that read.
    assert!(asked.elapsed() < DEADLINE + Duration::from_secs(1));

    world.with(|server| server.hangs = false);
    advance(FRESH).await;
    assert_eq!(values(&config_maps).await.unwrap(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn a_config_map_over_the_memory_share_is_reported_and_dropped() {
    let world = World::default();
    world.write("large", 1, &"x".repeat(64 * 1024));
    world.write("small", 1, "1");
    let share = Share::alone(32 * 1024);
    let config_maps = world.config_maps_within(&["small", "large"], share.clone());

    let memory = values(&config_maps).await.unwrap_err().to_string();
    assert!(
        memory.starts_with("ConfigMap prod/large exceeds the available memory"),
        "{memory}"
    );

    world.write("large", 2, "2");
    advance(FRESH).await;
    assert_eq!(values(&config_maps).await.unwrap(), ["1", "2"]);
    // The memory for each read is a multiple of 16 KiB.
    assert!(!share.holding().resize(1));
    drop(config_maps);
    assert!(share.holding().resize(32 * 1024));
}

#[tokio::test(start_paused = true)]
async fn a_binary_config_map_entry_is_treated_as_empty() {
    let world = World::default();
    world.write("a", 1, "1");
    world.with(|server| {
        server.objects.get_mut("/a").unwrap()["binaryData"] = json!({"other": "AAEC"});
    });
    let contents = world.config_maps(&["a"]).read().await.unwrap();

    let expected = [("key", "1"), ("other", "")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(contents[0].0, BTreeMap::from(expected));
}

#[tokio::test(start_paused = true)]
async fn config_map_reads_of_a_flooding_namespace_get_half_of_the_slots() {
    let turns = FairTurns::new(FETCHES);
    let asked: Arc<Unshared<Vec<String>>> = Arc::default();
    let noted = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        noted.lock().push(request.uri().path().to_owned());
        pending::<Result<Response<Full<Bytes>>, Infallible>>()
    });
    let client = Client::new(service, "default");
    let reader = |namespace: &str, name: &str| {
        let names = [name.to_owned()];
        ConfigMaps::among(&turns, client.clone(), namespace, &names, |_, data| {
            Entries(data)
        })
    };
    let victim = reader("tenant-b", "keys");
    let flood = (0..20).map(|number| reader("tenant-a", &number.to_string()));
    let flood: Vec<_> = flood.collect();
    let flood = join_all(flood.iter().map(ConfigMaps::read));

    let reads = join(flood, Box::pin(victim.read()));
    let waited = timeout(Duration::from_secs(1), reads).await;

    assert!(waited.is_err());
    let of = |namespace: &str| {
        let part = format!("/namespaces/{namespace}/");
        let asked = asked.lock();
        asked.iter().filter(|path| path.contains(&part)).count()
    };
    assert_eq!([of("tenant-a"), of("tenant-b")], [2, 1]);
}
