//! Writes the status of a `KubeletAuthentication` after it has changed.
//!
//! A tenant can change the status of each of its clusters at any time, because its objects and its API server determine
//! the status. Therefore writes for all clusters take turns: first by namespace, then by cluster. A write that waits
//! contains the latest status.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, PostParams};
use kubelet_attestation::backoff::Backoff;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::{KubeletAuthentication, KubeletAuthenticationStatus, conditions};
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::refusal::Unavailable;
use tokio::time::Instant;

use super::Shared;
use super::condition_events::in_turn;
use super::kept_authentications::KeptAuthentication;
use crate::capi::ObjectKey;
use crate::client::in_time;
use crate::metrics::{Metrics, Written};
use crate::turns::FairRate;
use crate::watch::{readable_one_of, replaced_part_metadata};

/// The deadline for one write.
const DEADLINE: Duration = Duration::from_secs(10);

/// The minimum interval between two writes, even if the status changes faster.
const PAUSE: Duration = Duration::from_secs(2);

/// The shared rate of status writes to `KubeletAuthentication`s and `InfraClusters` for all clusters: enough for 1,000
/// clusters that write both at the same time.
pub(super) const RATE: Rate = Rate {
    burst: 2000,
    every: Duration::from_millis(20),
};

/// The delays after failed writes.
const RETRY: Backoff = Backoff {
    first: PAUSE,
    longest: Duration::from_mins(1),
};

/// Writes the status of one `KubeletAuthentication`.
#[derive(Debug)]
pub(super) struct StatusWriter {
    api: Api<KubeletAuthentication>,
    metrics: Metrics,
    /// The shared rate for all clusters.
    rate: Arc<FairRate>,
    cluster: ObjectKey,
    not_before: Instant,
    failures: u32,
}

impl StatusWriter {
    pub(super) fn new(shared: &Shared, key: &ObjectKey) -> Self {
        Self {
            rate: shared.status_writes.clone(),
            cluster: key.clone(),
            api: Api::namespaced(shared.controller.management.clone(), &key.namespace),
            metrics: shared.controller.settings.metrics.clone(),
            not_before: Instant::now(),
            failures: 0,
        }
    }

    /// Writes `status` if it differs from the object's status. If the write fails or must wait, returns the time of the
    /// next attempt.
    pub(super) async fn write(
        &mut self,
        known: &KeptAuthentication,
        status: KubeletAuthenticationStatus,
    ) -> Option<Instant> {
        if known.status.as_ref() == Some(&status) {
            return None;
        }
        if Instant::now() < self.not_before {
            return Some(self.not_before);
        }
        if !in_turn(&self.rate, &self.cluster).await {
            return Some(Instant::now());
        }
        let name = known.metadata.name.as_deref().unwrap_or_default();
        let mut next = KubeletAuthentication::clone(known);
        next.status = Some(status);
        let write = self.replace(name, next, known.has_other_conditions);
        let (written, error) = match in_time(DEADLINE, write).await {
            Ok(()) => {
                self.metrics.status_written(Written::Ok);
                self.failures = 0;
                self.not_before = Instant::now() + PAUSE;
                return Some(self.not_before);
            }
            // The watch will receive the newer version.
            Err(error) if error.is_conflict() => {
                let error = "the object has changed since it was read".to_owned();
                (Written::Conflict, error)
            }
            Err(error) => (Written::Failed, error_chain(&Unavailable::from(error))),
        };
        self.metrics.status_written(written);
        tracing::debug!(cluster = name, error, "cannot write the status");
        self.not_before = Instant::now() + RETRY.after(self.failures);
        self.failures = self.failures.saturating_add(1);
        Some(self.not_before)
    }

    /// Replaces the status. Conditions from other controllers, which are not kept in memory, remain in the object. If
    /// they have changed since the read, the write fails with a conflict.
    async fn replace(
        &self,
        name: &str,
        mut next: KubeletAuthentication,
        has_other_conditions: bool,
    ) -> kube::Result<()> {
        if has_other_conditions
            && let Some(status) = &mut next.status
            && let Some(stored) = readable_one_of(&self.api, name).await?
        {
            let stored = stored.status.map(|status| status.conditions);
            let stored = stored.into_iter().flatten();
            let others = stored.filter(|one| !conditions::is_own(&one.type_));
            status.conditions.extend(others);
        }
        let options = PostParams::default();
        replaced_part_metadata(&self.api, ("status", name), &options, &next).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use hyper::{Method, Request, Response};
    use serde_json::{Value, json};

    use super::*;
    use crate::client::ClusterAccess;

    fn condition(of: &str, message: &str) -> Value {
        json!({
            "type": of, "status": "True", "reason": "Known", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    /// An object with these conditions.
    fn stored(conditions: &[Value]) -> Value {
        json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "KubeletAuthentication",
            "metadata": {"name": "prod-1", "namespace": "default", "resourceVersion": "7"},
            "spec": {"clusterName": "prod-1", "authorizedAttestors": ["aws"]},
            "status": {"conditions": conditions},
        })
    }

    fn writer(access: &ClusterAccess, rate: &Arc<FairRate>, cluster: ObjectKey) -> StatusWriter {
        StatusWriter {
            api: Api::namespaced(access.client().clone(), &cluster.namespace),
            metrics: Metrics::default(),
            rate: rate.clone(),
            cluster,
            not_before: Instant::now(),
            failures: 0,
        }
    }

    /// Writes another status of this object.
    async fn write(writer: &mut StatusWriter, stored: Value) -> Option<Instant> {
        let known = KeptAuthentication::new(serde_json::from_value(stored).unwrap());
        let mut status = known.status.clone().unwrap();
        status.observed_generation = Some(1);
        Box::pin(writer.write(&known, status)).await
    }

    /// The methods of the calls, and the conditions in the written status, for an object with these conditions.
    async fn written(conditions: &[Value]) -> (Vec<Method>, Value) {
        let stored = stored(conditions);
        let calls: Arc<Mutex<(Vec<Method>, Value)>> = Arc::default();
        let (noted, answer) = (calls.clone(), stored.clone());
        let access = ClusterAccess::in_memory(move |request: Request<kube::client::Body>| {
            let (noted, answer) = (noted.clone(), answer.clone());
            async move {
                let method = request.method().clone();
                if method == Method::PUT {
                    let object = request.into_body().collect().await.unwrap().to_bytes();
                    let object: Value = serde_json::from_slice(&object).unwrap();
                    assert_eq!(object["metadata"]["resourceVersion"], "7");
                    noted.lock().unwrap().1 = object["status"]["conditions"].clone();
                }
                noted.lock().unwrap().0.push(method);
                Response::new(Full::new(Bytes::from(answer.to_string())))
            }
        });
        let rate = Arc::new(FairRate::new(RATE));
        let mut writer = writer(&access, &rate, ObjectKey::new("default", "prod-1"));
        write(&mut writer, stored).await;
        assert_eq!(writer.failures, 0);
        calls.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn status_writes_of_100_clusters_delay_other_namespaces_by_two_writes() {
        let answer = Bytes::from(stored(&[]).to_string());
        let access = ClusterAccess::in_memory(move |_: Request<kube::client::Body>| {
            let answer = Response::new(Full::new(answer.clone()));
            async move { answer }
        });
        let rate = Arc::new(FairRate::new(RATE));
        let flood = |number: u32| ObjectKey::new("flood", number.to_string());
        for number in 0..RATE.burst {
            rate.take(&flood(number)).await;
        }
        for number in 0..100 {
            let mut writer = writer(&access, &rate, flood(number));
            tokio::spawn(async move { write(&mut writer, stored(&[])).await });
        }
        tokio::task::yield_now().await;
        let mut victim = writer(&access, &rate, ObjectKey::new("other", "victim"));
        let begun = Instant::now();

        write(&mut victim, stored(&[])).await;

        assert!(victim.not_before > begun, "it is written");
        let waited = begun.elapsed();
        assert!(waited <= 3 * RATE.every, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_without_a_turn_is_written_at_the_next_attempt() {
        let answer = Bytes::from(stored(&[]).to_string());
        let access = ClusterAccess::in_memory(move |_: Request<kube::client::Body>| {
            let answer = Response::new(Full::new(answer.clone()));
            async move { answer }
        });
        let slow = Rate {
            burst: 1,
            every: Duration::from_mins(1),
        };
        let rate = Arc::new(FairRate::new(slow));
        let mut writer = writer(&access, &rate, ObjectKey::new("a", "prod-1"));
        rate.take(&ObjectKey::new("a", "another")).await;
        let begun = Instant::now();

        let again = write(&mut writer, stored(&[])).await;
        assert_eq!(again, Some(Instant::now()));
        assert_eq!(writer.not_before, begun);

        tokio::time::sleep_until(begun + slow.every).await;
        let again = write(&mut writer, stored(&[])).await;
        assert_eq!(again, Some(Instant::now() + PAUSE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_write_keeps_the_conditions_of_other_controllers() {
        let own = condition("Ready", "own");
        let other = condition("Approved", &"a".repeat(32 * 1024));

        let (calls, conditions) = written(std::slice::from_ref(&own)).await;
        assert_eq!(calls, [Method::PUT]);
        assert_eq!(conditions, json!([own]));

        let (calls, conditions) = written(&[other.clone(), own.clone()]).await;
        assert_eq!(calls, [Method::GET, Method::PUT]);
        assert_eq!(conditions, json!([own, other]));
    }
}
