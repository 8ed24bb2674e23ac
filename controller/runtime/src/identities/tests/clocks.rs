//! The decisions about revocations, on machines whose clocks differ from the clock of the API server.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::{
    LOWEST_VALID_GENERATION_ANNOTATION, NodeIdentity, RELEASED_MACHINES_ANNOTATION, Revoked,
};
use node_attestation_core::ledger::MAX_CLOCK_DIFFERENCE;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::{Identities, IdentitiesError};
use super::record;
use crate::capi::ObjectKey;
use crate::client::ClusterAccess;

/// The time on the API server, in seconds since 1970.
const SERVER: u64 = 1_796_067_159;

/// The longest duration of a test.
const LONGEST: u64 = 600;

fn second(second: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(second)
}

/// Clocks of operators' machines: an hour slow, right, and an hour fast.
fn clocks() -> [SystemTime; 3] {
    [SERVER - 3600, SERVER, SERVER + 3600].map(second)
}

/// The last patch.
type Written = Arc<Mutex<Value>>;

/// A management cluster with a `KubeletAuthentication` that has these annotations.
fn with_annotations(annotations: Value) -> (Identities, Written) {
    let written = Written::default();
    let last = written.clone();
    let management = ClusterAccess::in_memory(move |request: Request<Body>| {
        let (last, annotations) = (last.clone(), annotations.clone());
        async move {
            let is_patch = *request.method() == Method::PATCH;
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            if is_patch {
                *last.lock() = serde_json::from_slice(&body).unwrap();
            }
            let answer = if path.contains("kubeletauthentications") {
                json!({
                    "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
                    "kind": "KubeletAuthentication",
                    "metadata": {
                        "name": "prod-1", "namespace": "default", "annotations": annotations,
                    },
                    "spec": {"clusterName": "prod-1", "authorizedAttestors": ["null"]},
                })
            } else {
                serde_json::to_value(record()).unwrap()
            };
            let body = Full::new(Bytes::from(answer.to_string()));
            Response::builder().body(body).unwrap()
        }
    });
    let management = management.with_server_time(second(SERVER));
    (Identities { management }, written)
}

fn cluster() -> ObjectKey {
    ObjectKey::new("default", "prod-1")
}

fn machine() -> ProviderId {
    ProviderId::parse("metal:///m1").unwrap()
}

/// The record, revoked at this time.
fn revoked(at: SystemTime) -> NodeIdentity {
    let mut record = record();
    let generation = record.spec.generation;
    record.spec.revoked = Some(Revoked { generation, at });
    record
}

/// The time of the first release in the last patch, which is the release of `m1`, and the other releases.
fn released(written: &Written) -> (u64, String) {
    let annotations = written.lock()["metadata"]["annotations"].clone();
    let releases = annotations[RELEASED_MACHINES_ANNOTATION].as_str().unwrap();
    let (first, others) = releases.split_once(' ').unwrap_or((releases, ""));
    let at = first.strip_prefix("metal:///m1@").unwrap();
    (at.parse().unwrap(), others.to_owned())
}

#[tokio::test]
async fn a_floor_without_a_time_refuses_certificates_of_the_present_second() {
    for now in clocks() {
        let (identities, written) = with_annotations(json!({}));

        let (floor, _) = identities.raise_floor(&cluster(), None, now).await.unwrap();

        // The response contains whole seconds, so the present second can be the second after it.
        assert!((SERVER + 2..SERVER + LONGEST).contains(&floor), "{floor}");
        let annotations = written.lock()["metadata"]["annotations"].clone();
        assert_eq!(
            annotations[LOWEST_VALID_GENERATION_ANNOTATION],
            floor.to_string()
        );
    }
    // Another operator raised the floor in the same second.
    let later = SERVER + 60;
    let annotations = json!({LOWEST_VALID_GENERATION_ANNOTATION: later.to_string()});
    let (identities, _) = with_annotations(annotations);
    let raised = identities
        .raise_floor(&cluster(), None, second(SERVER))
        .await;
    assert!(raised.unwrap().0 >= later);
}

#[tokio::test]
async fn a_floor_in_the_future_does_not_count_even_if_a_clock_is_fast() {
    // The controller ignores this floor.
    let future = SERVER + 1800;
    for now in clocks() {
        let annotations = json!({LOWEST_VALID_GENERATION_ANNOTATION: future.to_string()});
        let (identities, _) = with_annotations(annotations);

        let (floor, _) = identities.raise_floor(&cluster(), None, now).await.unwrap();

        assert!((SERVER..SERVER + LONGEST).contains(&floor), "{floor}");
    }
}

#[tokio::test]
async fn a_wrong_clock_neither_lowers_a_floor_nor_raises_it_to_the_future() {
    let before = SERVER - 60;
    let annotations = json!({LOWEST_VALID_GENERATION_ANNOTATION: before.to_string()});
    for now in clocks() {
        let (identities, written) = with_annotations(annotations.clone());

        let lower = identities
            .raise_floor(&cluster(), Some(before - 1), now)
            .await;
        let future = SERVER + 3600;
        let later = identities.raise_floor(&cluster(), Some(future), now).await;

        let is_lower = matches!(
            lower,
            Err(IdentitiesError::FloorFalls { before: found, .. }) if found == before
        );
        assert!(is_lower, "{lower:?}");
        let is_future = matches!(later, Err(IdentitiesError::FloorInFuture(_)));
        assert!(is_future, "{later:?}");
        assert_eq!(*written.lock(), Value::Null);
    }
}

#[tokio::test]
async fn the_time_of_a_revocation_does_not_come_from_a_wrong_clock() {
    // The controller ignores a time that is more than 10 minutes in the future.
    for now in clocks() {
        let (identities, written) = with_annotations(json!({}));

        identities.revoke(&record(), now).await.unwrap();

        let at = written.lock()["spec"]["revoked"]["at"].clone();
        let at: Timestamp = at.as_str().unwrap().parse().unwrap();
        let at = u64::try_from(at.as_second()).unwrap();
        assert!((SERVER..SERVER + LONGEST).contains(&at), "{at}");
    }
}

#[tokio::test]
async fn a_release_follows_a_revocation_on_machines_with_other_clocks() {
    let earlier = format!("metal:///m2@{}", SERVER - 60);
    let annotations = json!({RELEASED_MACHINES_ANNOTATION: earlier});
    for revoked_at in clocks() {
        let (revoking, patch) = with_annotations(json!({}));
        revoking.revoke(&record(), revoked_at).await.unwrap();
        let revoked = patch.lock()["spec"]["revoked"]["at"].clone();
        let revoked: Timestamp = revoked.as_str().unwrap().parse().unwrap();
        let revoked = u64::try_from(revoked.as_second()).unwrap();
        for now in clocks() {
            let (identities, written) = with_annotations(annotations.clone());

            let release = identities.release(&cluster(), machine(), None, now).await;

            release.unwrap();
            let (at, others) = released(&written);
            assert!((SERVER..SERVER + LONGEST).contains(&at), "{at}");
            assert!(revoked <= at, "{revoked} {at}");
            // A release by another operator remains, even if this machine's clock is slow.
            assert_eq!(others, earlier);
        }
    }
}

#[tokio::test]
async fn a_release_covers_a_revocation_by_a_fast_clock() {
    // The controller ignores the second time, because no command writes it.
    for (revoked_at, of, covers) in [
        (SERVER + 300, "metal:///m1", true),
        (SERVER + 300, "metal:///m2", false),
        (SERVER + 3600, "metal:///m1", false),
    ] {
        for now in clocks() {
            let (identities, written) = with_annotations(json!({}));
            let (cluster, mut identity) = (cluster(), revoked(second(revoked_at)));
            of.clone_into(&mut identity.spec.provider_id);

            let release = identities.release(&cluster, machine(), Some(&identity), now);

            release.await.unwrap();
            let (at, _) = released(&written);
            assert_eq!(at >= revoked_at, covers, "{revoked_at} {at}");
            assert!(at >= SERVER, "{revoked_at} {at}");
            assert!(second(at) <= second(SERVER) + MAX_CLOCK_DIFFERENCE, "{at}");
        }
    }
}

#[tokio::test]
async fn a_release_remains_if_it_is_in_the_future_on_only_one_clock() {
    let future = format!("metal:///m2@{}", SERVER + 1800);
    for (now, expected) in clocks().into_iter().zip(["", "", future.as_str()]) {
        let annotations = json!({RELEASED_MACHINES_ANNOTATION: future});
        let (identities, written) = with_annotations(annotations);

        let release = identities.release(&cluster(), machine(), None, now).await;

        release.unwrap();
        assert_eq!(released(&written).1, expected);
    }
}
