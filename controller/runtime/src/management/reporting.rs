//! Writes the result of a reconciliation to the management cluster: the status of the `KubeletAuthentication`, the
//! signers in the `InfraCluster`, Events about conditions, and the replacement of a lowest valid generation that is far
//! in the future.
//!
//! A write waits for its turn and for the API server. A separate task waits, so the supervisor can react to changes
//! immediately. The latest report takes precedence: during a write, the supervisor skips reports, and creates another
//! report after the write.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;

use node_attestation_core::crd::KubeletAuthenticationStatus;
use node_attestation_core::crd::conditions::ConditionReport;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::condition_events::ConditionEvents;
use super::future_floor::FutureFloor;
use super::infra_cluster::InfraCluster;
use super::kept_authentications::KeptAuthentication;
use super::status_writer::StatusWriter;
use crate::capi::{ObjectKey, Reference};
use crate::clock::now;

/// The result of a reconciliation.
pub(super) struct Report {
    /// The object that was reconciled.
    pub(super) authentication: Arc<KeptAuthentication>,
    /// The new status of this object.
    pub(super) status: KubeletAuthenticationStatus,
    /// The `InfraCluster`, if the controller serves the cluster.
    pub(super) infra_cluster: Option<Reference>,
    /// The conditions that the verifiers report.
    pub(super) attestors: Vec<ConditionReport>,
    /// The lowest valid generation that is in effect. `None` if it is unknown.
    pub(super) floor: Option<u64>,
}

/// The reports about one cluster. Dropping this value ends a write in progress.
pub(super) struct Reporting {
    /// `None` during a write.
    writers: Option<Box<Writers>>,
    /// The write in progress.
    writing: Option<JoinSet<Written>>,
    /// Whether a report was skipped during the write.
    is_outdated: bool,
    /// The time at which the last report must be repeated.
    again: Option<Instant>,
}

/// The writers, and the time at which the report must be repeated.
type Written = (Box<Writers>, Option<Instant>);

struct Writers {
    shared: Arc<Shared>,
    status: StatusWriter,
    infra_cluster: InfraCluster,
    condition_events: ConditionEvents,
    future_floor: FutureFloor,
}

impl Reporting {
    pub(super) fn new(shared: &Arc<Shared>, key: &ObjectKey) -> Self {
        let writers = Writers {
            shared: shared.clone(),
            status: StatusWriter::new(shared, key),
            infra_cluster: InfraCluster::new(
                shared.controller.management.clone(),
                shared.objects.clone(),
                (shared.definitions.clone(), shared.status_writes.clone()),
                key.clone(),
            ),
            condition_events: ConditionEvents::default(),
            future_floor: FutureFloor::default(),
        };
        Self {
            writers: Some(Box::new(writers)),
            writing: None,
            is_outdated: false,
            again: None,
        }
    }

    /// Starts writing this report. If a write is in progress, skips the report.
    pub(super) fn report(&mut self, report: Report) {
        let Some(writers) = self.writers.take() else {
            self.is_outdated = true;
            return;
        };
        self.again = None;
        let mut writing = JoinSet::new();
        writing.spawn(writers.write(report));
        self.writing = Some(writing);
    }

    /// Waits until another report is necessary, because a report was skipped or a write must be repeated. If the wait
    /// is canceled, the next call continues it.
    pub(super) async fn due(&mut self) {
        if let Some(writing) = &mut self.writing {
            let ended = writing.join_next().await;
            self.writing = None;
            match ended {
                Some(Ok((writers, again))) => {
                    self.writers = Some(writers);
                    self.again = again;
                }
                // A panic ends the supervisor, as if the supervisor itself had written the report.
                Some(Err(error)) => {
                    if let Ok(panic) = error.try_into_panic() {
                        resume_unwind(panic);
                    }
                }
                None => {}
            }
            if std::mem::take(&mut self.is_outdated) {
                return;
            }
        }
        match self.again {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }
}

impl Writers {
    /// Writes a report. The order is the order of importance for nodes: without the signer names, Cluster API does not
    /// know the signers, while Events only repeat the status.
    async fn write(mut self: Box<Self>, report: Report) -> Written {
        let Report {
            authentication,
            status,
            infra_cluster,
            attestors,
            floor,
        } = report;
        if let Some(reference) = &infra_cluster {
            Box::pin(self.infra_cluster.write(reference, &status)).await;
        }
        let again = Box::pin(self.status.write(&authentication, status)).await;
        let Self {
            shared,
            condition_events,
            future_floor,
            ..
        } = &mut *self;
        let to = (&shared.controller.management, &shared.condition_events);
        Box::pin(condition_events.write(to, &authentication, &attestors)).await;
        let latest = shared.controller.server_time.later(now());
        let to = (
            &shared.controller.management,
            &*shared.status_writes,
            &shared.condition_events,
        );
        Box::pin(future_floor.replace(to, &authentication, floor, latest)).await;
        (self, again)
    }
}
