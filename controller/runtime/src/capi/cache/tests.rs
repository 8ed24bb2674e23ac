use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use futures::FutureExt as _;
use futures::future::join_all;
use serde_json::json;

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

#[tokio::test]
async fn concurrent_callers_share_one_lookup_of_a_kind_that_is_not_served() {
    let lookups = Arc::new(AtomicUsize::new(0));
    let counted = lookups.clone();
    // Another thread answers: all must have asked by then.
    let (open, gate) = mpsc::channel();
    let gate = Arc::new(Mutex::new(gate));
    let objects = answered_by(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        gate.lock().recv().unwrap();
        json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""})
    });
    let wanted = reference("RackMachine");

    let mut found = join_all((0..10).map(|_| objects.resource(&wanted)));
    assert!((&mut found).now_or_never().is_none());
    open.send(()).unwrap();
    open.send(()).unwrap();
    let found = found.await;

    assert!(found.iter().all(|found| matches!(found, Ok(None))));
    assert_eq!(lookups.load(Ordering::Relaxed), 1);
    // The kind may be served by now.
    assert_eq!(objects.resource(&wanted).await.unwrap(), None);
    assert_eq!(lookups.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn lookups_that_were_dropped_leave_nothing_behind() {
    let objects = objects();
    for number in 0..1000 {
        let wanted = reference(&format!("Rack{number}Machine"));
        assert!(objects.resource(&wanted).now_or_never().is_none());
    }
    assert!(objects.0.resources.lock().len() < 10);
}
