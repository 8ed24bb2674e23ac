//! Writes the status of a `KubeletAuthentication` when it has changed.

use std::time::Duration;

use kube::api::{Api, PostParams};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::{KubeletAuthentication, KubeletAuthenticationStatus};
use node_attestation_core::refusal::Unavailable;
use tokio::time::Instant;

use super::Shared;
use crate::capi::ObjectKey;
use crate::client::in_time;
use crate::metrics::{Metrics, Written};

/// The deadline for one write.
const DEADLINE: Duration = Duration::from_secs(10);

/// The minimum interval between two writes, however fast the status changes.
const PAUSE: Duration = Duration::from_secs(2);

/// The longest wait after a failed write.
const LAST_RETRY: Duration = Duration::from_mins(1);

/// The writer of one `KubeletAuthentication`'s status.
#[derive(Debug)]
pub(super) struct StatusWriter {
    api: Api<KubeletAuthentication>,
    metrics: Metrics,
    not_before: Instant,
    failures: u32,
}

impl StatusWriter {
    pub(super) fn new(shared: &Shared, key: &ObjectKey) -> Self {
        Self {
            api: Api::namespaced(shared.controller.management.clone(), &key.namespace),
            metrics: shared.controller.settings.metrics.clone(),
            not_before: Instant::now(),
            failures: 0,
        }
    }

    /// Writes `status` if it differs from the object's. If it is not written, returns the time of the next attempt.
    pub(super) async fn write(
        &mut self,
        known: &KubeletAuthentication,
        status: KubeletAuthenticationStatus,
    ) -> Option<Instant> {
        if known.status.as_ref() == Some(&status) {
            return None;
        }
        if Instant::now() < self.not_before {
            return Some(self.not_before);
        }
        let name = known.metadata.name.as_deref().unwrap_or_default();
        let mut next = known.clone();
        next.status = Some(status);
        let options = PostParams::default();
        let write = self.api.replace_status(name, &options, &next);
        let (written, error) = match in_time(DEADLINE, write).await {
            Ok(_) => {
                self.metrics.status_written(Written::Ok);
                self.failures = 0;
                self.not_before = Instant::now() + PAUSE;
                return Some(self.not_before);
            }
            // The watch will deliver the other version.
            Err(error) if error.is_conflict() => {
                let error = "the object has changed since it was read".to_owned();
                (Written::Conflict, error)
            }
            Err(error) => (Written::Failed, error_chain(&Unavailable::from(error))),
        };
        self.metrics.status_written(written);
        tracing::debug!(cluster = name, error, "the status was not written");
        let wait = PAUSE.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Instant::now() + wait.min(LAST_RETRY);
        Some(self.not_before)
    }
}
