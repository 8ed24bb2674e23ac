use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use futures::FutureExt as _;
use futures::future::{join, join_all};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::advance;

use super::super::lookups::{MAX_OF_NAMESPACE, NOT_FOUND};
use super::super::objects::InfraMachine;
use super::super::testing::{answered_by, objects};
use super::*;

fn reference(kind: &str) -> Reference {
    Reference {
        group: "infrastructure.cluster.x-k8s.io".to_owned(),
        version: Some("v1beta1".to_owned()),
        kind: kind.to_owned(),
        name: "m1".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_callers_share_one_lookup_of_a_kind_that_is_not_served() {
    let lookups = Arc::new(AtomicUsize::new(0));
    let counted = lookups.clone();
    // Another thread answers after all callers have sent their lookups.
    let (open, gate) = mpsc::channel();
    let gate = Arc::new(Mutex::new(gate));
    let objects = answered_by(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        gate.lock().recv().unwrap();
        json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""})
    });
    let wanted = reference("RackMachine");

    let mut found = join_all((0..10).map(|_| objects.resource("tenant", &wanted)));
    assert!((&mut found).now_or_never().is_none());
    open.send(()).unwrap();
    open.send(()).unwrap();
    let found = found.await;

    assert!(found.iter().all(|found| matches!(found, Ok(None))));
    assert_eq!(lookups.load(Ordering::Relaxed), 1);
    advance(NOT_FOUND.checked_sub(Duration::from_secs(1)).unwrap()).await;
    assert_eq!(objects.resource("tenant", &wanted).await.unwrap(), None);
    assert_eq!(lookups.load(Ordering::Relaxed), 1);
    // The API server might serve the kind now, so the kind is looked up again.
    advance(Duration::from_secs(1)).await;
    assert_eq!(objects.resource("tenant", &wanted).await.unwrap(), None);
    assert_eq!(lookups.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn cached_kinds_are_dropped_once_they_are_not_served() {
    let objects = answered_by(
        |_| json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""}),
    );
    for round in 0..3 {
        for number in 0..1000 {
            let wanted = reference(&format!("Rack{round}x{number}Machine"));
            assert_eq!(objects.resource("tenant", &wanted).await.unwrap(), None);
        }
        advance(NOT_FOUND).await;
    }
    assert!(objects.0.resources.unfound_of("tenant") <= MAX_OF_NAMESPACE);
}

#[tokio::test]
async fn dropped_lookups_release_their_memory() {
    let objects = objects();
    for number in 0..1000 {
        let wanted = reference(&format!("Rack{number}Machine"));
        assert!(objects.resource("tenant", &wanted).now_or_never().is_none());
    }
    assert!(objects.0.resources.unfound_of("tenant") < 10);
}

/// An API server that serves `RackMachine` in `v1beta1` during this many lookups, and answers requests for objects with
/// this response.
fn serving(of_object: Value, served: usize) -> (Objects, Arc<AtomicUsize>) {
    let lookups = Arc::new(AtomicUsize::new(0));
    let counted = lookups.clone();
    let objects = answered_by(move |path| {
        if path != "/apis/infrastructure.cluster.x-k8s.io/v1beta1" {
            return of_object.clone();
        }
        if counted.fetch_add(1, Ordering::Relaxed) >= served {
            return json!({"code": 404, "message": "404 page not found"});
        }
        let resource = json!({
            "name": "rackmachines", "kind": "RackMachine", "namespaced": true, "singularName": "", "verbs": ["get"],
        });
        json!({"kind": "APIResourceList", "groupVersion": "", "resources": [resource]})
    });
    (objects, lookups)
}

#[tokio::test(start_paused = true)]
async fn an_unserved_api_version_is_an_outage_and_discovery_is_repeated() {
    // The error into which kube converts the text `404 page not found`.
    let (objects, lookups) = serving(json!({"code": 404, "message": "404 page not found"}), 2);
    let wanted = reference("RackMachine");
    let is_outage_after = async |number: usize| {
        let found = objects.fetch::<InfraMachine>("default", &wanted).await;

        assert!(matches!(found, Err(FetchError::NotServed(_))), "{found:?}");
        assert_eq!(lookups.load(Ordering::Relaxed), number);
    };

    // Discovery still lists the version.
    is_outage_after(1).await;
    is_outage_after(2).await;
    // Discovery no longer lists the version. A tenant can specify an unserved version, so not every read repeats the
    // lookup.
    is_outage_after(3).await;
    is_outage_after(3).await;
    advance(NOT_FOUND).await;
    is_outage_after(4).await;
}

#[tokio::test]
async fn a_missing_object_of_a_served_kind_is_reported_as_absent() {
    let (objects, lookups) = serving(json!({"code": 404, "reason": "NotFound"}), 1);
    let wanted = reference("RackMachine");

    for _ in 0..2 {
        let found = objects.fetch::<InfraMachine>("default", &wanted).await;

        assert!(found.unwrap().is_none());
        assert_eq!(lookups.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_slow_reads_release_their_turns_after_a_deadline() {
    let objects = objects();
    let hanging = (0..SLOW_READS.all).map(|number| {
        let objects = objects.clone();
        async move {
            let cluster = ObjectKey::new(format!("flood-{number}"), "prod-1");
            objects.read_slowly(&cluster, pending::<()>()).await
        }
    });
    let victim = ObjectKey::new("other", "prod-1");
    let begun = Instant::now();

    let read = objects.read_slowly(&victim, async { begun.elapsed() });
    let (ended, waited) = join(join_all(hanging), read).await;

    assert!(ended.iter().all(Option::is_none));
    assert_eq!(waited.unwrap().as_secs(), SLOW_DEADLINE.as_secs());
}
