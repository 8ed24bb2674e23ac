//! Leader election among replicas, with a Lease (`coordination.k8s.io/v1`).
//!
//! # Guarantees
//!
//! - Correctness does not depend on a single leader: if two replicas both act as the leader, the precondition of every
//!   write stops one of them. The Lease only prevents duplicate work.
//! - Clocks on different hosts are not compared. A Lease has expired if this replica has not seen a change to the Lease
//!   for the Lease's duration.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kubelet_attestation::errors::error_chain;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::{CallError, in_time};
use crate::clock::now;
use crate::metrics::{Heartbeat, LeaseMetrics, Metrics};
use crate::watch::{created, readable_one_of, replaced};

/// The duration of the Lease, as in client-go's recommended defaults.
const LEASE_DURATION: Duration = Duration::from_secs(15);

/// The time without a renewal after which a leader stops. It is shorter than the Lease's duration, so that the leader
/// stops before another leader starts.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// The interval between two renewals of the Lease, and between failed attempts to acquire it.
const RETRY: Duration = Duration::from_secs(2);

/// The interval between two reads of a Lease that another replica holds. It is short, so that a released Lease has a
/// new holder within one second.
const POLL: Duration = Duration::from_millis(400);

/// The deadline for one call. Several calls fit into [`RENEW_DEADLINE`].
const CALL_DEADLINE: Duration = Duration::from_secs(3);

/// The maximum time without a heartbeat, which allows a few calls with their deadlines.
const SILENCE: Duration = Duration::from_mins(1);

/// The maximum duration that is accepted from another replica's Lease.
const MAX_LEASE_DURATION: Duration = Duration::from_mins(2);

/// A unique identity that contains the name of this replica.
pub(super) fn identity(name: &str) -> String {
    let mut random = [0; 8];
    // If no random bytes are available, the Pod name is sufficiently unique.
    let _ = aws_lc_rs::rand::fill(&mut random);
    format!("{name}_{}", data_encoding::HEXLOWER.encode(&random))
}

/// A candidate for one Lease, in the client's default namespace.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) api: Api<Lease>,
    /// The name of the Lease.
    pub(super) name: String,
    /// The identity of this replica, which must be unique.
    pub(super) identity: String,
    pub(super) metrics: Metrics,
}

/// A term: the time during which a candidate holds the Lease.
#[derive(Debug)]
pub(super) struct Term<'a> {
    candidate: &'a Candidate,
    lease: Lease,
    renewed: Instant,
    metrics: LeaseMetrics,
    heartbeat: Heartbeat,
}

/// The reason for the end of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TermEnd {
    /// This replica is stopping.
    Stopped,
    /// Another replica has the Lease, or the Lease was not renewed in time.
    Lost,
}

impl Candidate {
    /// Waits until this replica is the leader. Returns `None` if `stop` is ready first.
    ///
    /// A write in progress is always completed. Otherwise, a stopping replica could hold the Lease without a term, and
    /// other replicas would have to wait until the Lease expires.
    pub(super) async fn lead(&self, stop: impl Future<Output = ()>) -> Option<Term<'_>> {
        let mut stop = pin!(stop);
        let mut seen = Observed::default();
        let mut is_logged = false;
        let heartbeat = self.metrics.heartbeat("the election", SILENCE);
        // The metrics include the Lease even while another replica holds it.
        let _not_held = self.metrics.lease(&self.name);
        loop {
            heartbeat.beat();
            let read = tokio::select! {
                () = &mut stop => return None,
                read = self.get() => read,
            };
            let error = match self.attempt(read, &mut seen).await {
                Ok(Some(term)) => {
                    tracing::info!(lease = self.name, "leading");
                    return Some(term);
                }
                Ok(None) => None,
                Err(error) => Some(error_chain(&error)),
            };
            let pause = if error.is_some() { RETRY } else { POLL };
            if !is_logged {
                let lease = self.name.as_str();
                tracing::info!(lease, error, "waiting for the Lease");
            }
            is_logged = true;
            tokio::select! {
                () = &mut stop => return None,
                () = sleep(pause) => {}
            }
        }
    }

    /// Acquires the Lease, unless another replica holds it.
    async fn attempt(
        &self,
        read: Result<Option<Lease>, CallError>,
        seen: &mut Observed,
    ) -> Result<Option<Term<'_>>, CallError> {
        let current = read?;
        if let Some(lease) = &current
            && seen.is_held(lease, &self.identity)
        {
            return Ok(None);
        }
        // The time before the write, because the Lease is valid from a later time.
        let renewed = Instant::now();
        let lease = self.put(&self.taken(current)).await?;
        let metrics = self.metrics.lease(&self.name);
        metrics.taken(renewed);
        Ok(Some(Term {
            candidate: self,
            lease,
            renewed,
            metrics,
            heartbeat: self.metrics.heartbeat("the renewal of the Lease", SILENCE),
        }))
    }

    fn taken(&self, current: Option<Lease>) -> Lease {
        let mut lease = current.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder != self.identity {
            spec.acquire_time = micro_time();
            let transitions = spec.lease_transitions.unwrap_or_default();
            spec.lease_transitions = Some(transitions.saturating_add(1));
        }
        spec.holder_identity = Some(self.identity.clone());
        set_renew_time(spec);
        lease
    }

    async fn get(&self) -> Result<Option<Lease>, CallError> {
        in_time(CALL_DEADLINE, readable_one_of(&self.api, &self.name)).await
    }

    /// Writes the Lease with no holder.
    async fn release(&self, mut lease: Lease) -> Result<(), CallError> {
        let spec = lease.spec.get_or_insert_default();
        spec.lease_duration_seconds = Some(1);
        spec.holder_identity = Some(String::new());
        self.put(&lease).await.map(drop)
    }

    /// Creates the Lease, or replaces it if its `resourceVersion` has not changed.
    async fn put(&self, lease: &Lease) -> Result<Lease, CallError> {
        let options = PostParams::default();
        let written = if lease.metadata.resource_version.is_none() {
            in_time(CALL_DEADLINE, created(&self.api, &options, lease)).await?
        } else {
            let replaced = replaced(&self.api, &self.name, &options, lease);
            in_time(CALL_DEADLINE, replaced).await?
        };
        Ok(written.readable_or(lease))
    }
}

impl Term<'_> {
    /// Runs `work` while this replica is the leader and `stop` is not ready.
    ///
    /// `work` must end when the future that it receives is ready. This function waits until `work` ends, and renews the
    /// Lease until then.
    pub(super) async fn during<W: Future<Output = ()>>(
        &mut self,
        stop: impl Future<Output = ()>,
        work: impl FnOnce(BoxFuture<'static, ()>) -> W,
    ) -> TermEnd {
        let (quit, quitted) = oneshot::channel::<()>();
        let mut work = pin!(work(quitted.map(drop).boxed()));
        let end = tokio::select! {
            () = stop => TermEnd::Stopped,
            () = self.held() => TermEnd::Lost,
            () = &mut work => return TermEnd::Stopped,
        };
        if end == TermEnd::Lost {
            self.metrics.lost();
        }
        drop(quit);
        let renewed = async {
            self.held().await;
            pending::<()>().await;
        };
        tokio::select! {
            () = work => {}
            () = renewed => {}
        }
        end
    }

    /// Renews the Lease until it is lost.
    async fn held(&mut self) {
        loop {
            sleep(RETRY).await;
            self.heartbeat.beat();
            let deadline = self.renewed + RENEW_DEADLINE;
            let error = match timeout_at(deadline.max(Instant::now()), self.renew()).await {
                Ok(Ok(true)) => None,
                Ok(Ok(false)) => {
                    tracing::warn!(lease = self.candidate.name, "another replica leads");
                    return;
                }
                Ok(Err(error)) => Some(error_chain(&error)),
                Err(_) => Some("not renewed in time".to_owned()),
            };
            let lease = self.candidate.name.as_str();
            if error.is_some() && self.renewed.elapsed() >= RENEW_DEADLINE {
                // After this point, another replica can become the leader.
                tracing::warn!(lease, error, "no longer leading");
                return;
            }
            if error.is_some() {
                tracing::debug!(lease, error, "not renewed");
            }
        }
    }

    /// Renews the Lease. Returns whether this replica still holds the Lease.
    async fn renew(&mut self) -> Result<bool, CallError> {
        let renewed = Instant::now();
        let mut next = self.lease.clone();
        set_renew_time(next.spec.get_or_insert_default());
        let error = match self.candidate.put(&next).await {
            Ok(lease) => {
                self.lease = lease;
                self.renewed = renewed;
                self.metrics.renewed(renewed);
                return Ok(true);
            }
            Err(error) => error,
        };
        // Either another replica wrote the Lease, or the response to this replica's write was lost.
        if let Some(lease) = self.candidate.get().await?
            && holder(&lease) == self.candidate.identity
        {
            self.lease = lease;
            return Err(error);
        }
        Ok(false)
    }

    /// Releases the Lease, so that the next leader does not need to wait until it expires.
    pub(super) async fn release(self) {
        let Self {
            candidate, lease, ..
        } = self;
        let mut released = candidate.release(lease).await;
        // A renewal that was in progress when the term ended might have changed the Lease.
        if released.as_ref().is_err_and(CallError::is_conflict)
            && let Ok(Some(lease)) = candidate.get().await
            && holder(&lease) == candidate.identity
        {
            released = candidate.release(lease).await;
        }
        if let Err(error) = released {
            let error = error_chain(&error);
            tracing::warn!(lease = candidate.name, error, "not released");
        }
    }
}

/// The last observed spec of another replica's Lease, and the time at which a change to it was last observed.
#[derive(Debug, Default)]
struct Observed(Option<(Option<LeaseSpec>, Instant)>);

impl Observed {
    /// Whether another replica holds the Lease.
    fn is_held(&mut self, lease: &Lease, identity: &str) -> bool {
        let now = Instant::now();
        let since = match &self.0 {
            Some((spec, since)) if *spec == lease.spec => *since,
            Some(_) | None => now,
        };
        self.0 = Some((lease.spec.clone(), since));
        let holder = holder(lease);
        !holder.is_empty() && holder != identity && now - since < duration(lease)
    }
}

fn set_renew_time(spec: &mut LeaseSpec) {
    spec.renew_time = micro_time();
    spec.lease_duration_seconds = i32::try_from(LEASE_DURATION.as_secs()).ok();
}

fn micro_time() -> Option<MicroTime> {
    Timestamp::try_from(now()).ok().map(MicroTime)
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref())
        .unwrap_or_default()
}

fn duration(lease: &Lease) -> Duration {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.lease_duration_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(LEASE_DURATION, Duration::from_secs)
        .min(MAX_LEASE_DURATION)
}

#[cfg(test)]
mod tests;
