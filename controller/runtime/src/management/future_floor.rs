//! Replaces a lowest valid generation that is far in the future.
//!
//! Such a value has no effect. However, admission policies have no clock, and permit a responder only to raise the
//! value. Therefore no responder could set a lowest valid generation until the time in the future. The value that was
//! in effect before replaces it.

use std::time::{Duration, SystemTime};

use kube::api::{Api, Patch};
use kube::{Client, Resource as _};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::{KubeletAuthentication, LOWEST_VALID_GENERATION_ANNOTATION};
use node_attestation_core::ledger::RevocationDecisions;
use node_attestation_core::time::unix_seconds;
use serde_json::json;
use tokio::time::Instant;

use super::condition_events::in_turn;
use crate::client::{CONTROLLER, call, merge};
use crate::events;
use crate::object_key::ObjectKey;
use crate::turns::FairRate;
use crate::watch::patched_metadata;

/// The minimum distance into the future of a value that is replaced. A value with a smaller distance takes effect
/// within this time. Such a value could also be the correct time of a command, if the controller's clock is slow.
const FAR: Duration = Duration::from_hours(24);

/// The minimum interval between two replacements for one cluster, because a tenant or a tool can write the value again
/// after each replacement.
const PAUSE: Duration = Duration::from_mins(1);

/// The replacements for one cluster.
#[derive(Debug, Default)]
pub(super) struct FutureFloor {
    /// The earliest time of the next replacement. `None` before the first replacement.
    not_before: Option<Instant>,
}

impl FutureFloor {
    /// Replaces the annotation with `floor`, the lowest valid generation in effect, if the annotation is far in the
    /// future. Reports the replacement in an Event. Does nothing while `floor` is unknown. A failed write is due again
    /// at the next check of the cluster.
    pub(super) async fn replace(
        &mut self,
        (management, writes, reports): (&Client, &FairRate, &FairRate),
        authentication: &KubeletAuthentication,
        floor: Option<u64>,
        now: SystemTime,
    ) {
        let metadata = &authentication.metadata;
        let found = RevocationDecisions::of_annotations(metadata.annotations.as_ref()).floor;
        let (Some(cluster), Some(floor)) = (ObjectKey::of(metadata), floor) else {
            return;
        };
        let is_paused = self.not_before.is_some_and(|at| Instant::now() < at);
        let latest = unix_seconds(now + FAR);
        if found <= latest || is_paused || !in_turn(writes, &cluster).await {
            return;
        }
        let value = (floor > 0).then(|| floor.to_string());
        let patch = json!({
            "metadata": {
                "resourceVersion": metadata.resource_version,
                "annotations": {LOWEST_VALID_GENERATION_ANNOTATION: value},
            },
        });
        let api: Api<KubeletAuthentication> =
            Api::namespaced(management.clone(), &cluster.namespace);
        let (parameters, patch) = (merge(CONTROLLER), Patch::Merge(&patch));
        let written = call(patched_metadata(&api, &cluster.name, &parameters, &patch)).await;
        if let Err(error) = written {
            let (cluster, error) = (cluster.name, error_chain(&error));
            tracing::debug!(
                cluster,
                error,
                "cannot replace the lowest valid generation, which is in the future"
            );
            return;
        }
        self.not_before = Some(Instant::now() + PAUSE);
        if in_turn(reports, &cluster).await {
            let note = format!(
                "the lowest valid generation {found} is far in the future and had no effect. It was replaced by \
                 {floor}, the value in effect (0: none)"
            );
            let words = ("Warning", "Replace", "FloorInFuture", note);
            let regarding = authentication.object_ref(&());
            events::write_one(management.clone(), regarding, words, now).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;

    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use node_attestation_core::crd::KubeletAuthenticationSpec;
    use parking_lot::Mutex;
    use serde_json::Value;
    use tokio::time::advance;

    use super::super::{condition_events, status_writer};
    use super::*;
    use crate::client::ClusterAccess;

    /// The current time in these tests, in seconds since 1970.
    const NOW: u64 = 1_795_849_200;

    /// The methods and the objects of calls.
    type Calls = Vec<(Method, Value)>;

    /// The writes for an object with this annotation, if `floor` is in effect.
    async fn written(annotation: Option<String>, floor: Option<u64>) -> Calls {
        let mut replacements = FutureFloor::default();
        written_by(&mut replacements, annotation, floor).await
    }

    async fn written_by(
        replacements: &mut FutureFloor,
        annotation: Option<String>,
        floor: Option<u64>,
    ) -> Calls {
        let calls: Arc<Mutex<Calls>> = Arc::default();
        let writes = calls.clone();
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let writes = writes.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let object = serde_json::from_slice(&body).unwrap();
                writes.lock().push((parts.method, object));
                Response::new(Full::new(Bytes::from("{}")))
            }
        });
        let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        let mut object = KubeletAuthentication::new("prod-1", spec);
        object.metadata.namespace = Some("default".to_owned());
        object.metadata.resource_version = Some("7".to_owned());
        object.metadata.annotations = annotation.map(|value| {
            let key = LOWEST_VALID_GENERATION_ANNOTATION.to_owned();
            [(key, value)].into()
        });
        let rates = [status_writer::RATE, condition_events::RATE].map(FairRate::new);
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let to = (access.client(), &rates[0], &rates[1]);
        Box::pin(replacements.replace(to, &object, floor, now)).await;
        let calls = calls.lock();
        calls.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_generation_floor_far_in_the_future_is_replaced_by_the_known_floor() {
        let far = NOW + FAR.as_secs() + 1;
        for (floor, value) in [(0, Value::Null), (30, json!("30"))] {
            for annotation in [far, 9_999_999_999] {
                let written = written(Some(annotation.to_string()), Some(floor)).await;

                let [(method, patch), (event_method, event)] = &*written else {
                    panic!("{written:?}");
                };
                let expected = json!({
                    "metadata": {
                        "resourceVersion": "7",
                        "annotations": {LOWEST_VALID_GENERATION_ANNOTATION: value},
                    },
                });
                assert_eq!((method, patch), (&Method::PATCH, &expected));
                assert_eq!(*event_method, Method::POST);
                assert_eq!(event["reason"], "FloorInFuture");
                let note = event["note"].as_str().unwrap();
                let told = format!("generation {annotation} is far in the future");
                assert!(note.contains(&told), "{note}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_generation_floor_within_one_day_stays() {
        let within = (NOW + FAR.as_secs()).to_string();
        for annotation in [None, Some("0"), Some("a"), Some(&*within)] {
            let written = written(annotation.map(str::to_owned), Some(30)).await;
            assert!(written.is_empty(), "{annotation:?}: {written:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_generation_floor_in_the_future_stays_until_the_list_was_read() {
        let annotation = (NOW + FAR.as_secs() + 1).to_string();

        assert!(written(Some(annotation.clone()), None).await.is_empty());

        assert_eq!(written(Some(annotation), Some(30)).await.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_that_is_written_again_is_replaced_once_a_minute() {
        let mut replacements = FutureFloor::default();
        let mut methods: Vec<Vec<Method>> = Vec::new();
        // A GitOps tool writes the value again every 25 seconds.
        for _ in 0..4 {
            let annotation = Some("9999999999".to_owned());
            let calls = written_by(&mut replacements, annotation, Some(30)).await;
            methods.push(calls.into_iter().map(|(method, _)| method).collect());
            advance(Duration::from_secs(25)).await;
        }

        let both = vec![Method::PATCH, Method::POST];
        assert_eq!(methods, [both.clone(), Vec::new(), Vec::new(), both]);
    }
}
