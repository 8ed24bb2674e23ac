//! The tasks of a served cluster.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use node_attestation_core::ledger::{Absences, Revocations};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::cluster_status::Health;
use super::configuration::Dependencies;
use super::desired_state::{Fingerprint, Service};
use super::machine_conditions::MachineConditions;
use super::periodic::{OfCluster, PeriodicTasks};
use super::sweep_events::SweepEvents;
use super::{Controller, Shared};
use crate::capi::{CapiInventory, ClusterCa, KubeconfigRefused, ObjectKey};
use crate::client::ClusterAccess;
use crate::clock::{jittered, now};
use crate::csr_writer::KubeStore;
use crate::events::{EventLimits, Events};
use crate::hardening::bindings::report_returns;
use crate::hardening::exempt_overlaps::ExemptOverlaps;
use crate::log_lines::{ClusterLines, Served};
use crate::metrics::ClusterMetrics;
use crate::nodes::KubeNodes;
use crate::pipeline::Pipeline;
use crate::records::KubeRecords;
use crate::worker;

/// The interval for checking whether certificates were revoked. These checks make no calls.
const REVOCATIONS: Duration = Duration::from_secs(3);

/// The interval between rounds. A round makes no calls if there was no change.
const ROUND: Duration = Duration::from_mins(1);

/// A cluster whose requests are served.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) fingerprint: Fingerprint,
    pub(super) ca: Arc<ClusterCa>,
    pub(super) access: ClusterAccess,
    /// The health of the cluster.
    pub(super) health: watch::Receiver<Health>,
    tasks: JoinSet<()>,
    /// Dropping this value ends the tasks.
    quit: oneshot::Sender<()>,
    _served: Served,
}

impl Running {
    /// Starts the tasks.
    ///
    /// # Errors
    ///
    /// Returns an error if no client can be created from the kubeconfig.
    pub(super) fn start(
        shared: &Shared,
        key: &ObjectKey,
        service: &Service,
        records: Arc<KubeRecords>,
        (absences, revocations, overlaps): (Absences, Revocations, ExemptOverlaps),
        metrics: ClusterMetrics,
    ) -> Result<Self, KubeconfigRefused> {
        let Controller {
            settings,
            management,
            server_time,
            connect,
            ..
        } = &shared.controller;
        let access = match connect {
            Some(connect) => connect(key),
            None => service.kubeconfig.access(key)?,
        };
        let (quit, quitted) = oneshot::channel();
        let quitted = quitted.map(drop).shared();
        let (reported, health) = watch::channel(Health::default());
        let mut tasks = JoinSet::new();
        let lines = ClusterLines::of(key);
        let limits = EventLimits {
            rate: shared.machine_events.clone(),
            cluster: key.clone(),
            lines: lines.clone(),
        };
        let (events, writer) =
            Events::start_within(access.client().clone(), Some(management.clone()), limits);
        let store = Arc::new(KubeStore::all(access.client().clone()));
        let inventory = CapiInventory::new(shared.objects.clone(), key.clone());
        // A cluster might differ from the previous cluster with the same name.
        revocations.forget();
        let configuration = &service.configuration;
        let context = configuration.context(Dependencies {
            nodes: KubeNodes::new(access.client().clone()).with_time(server_time.clone()),
            endpoint_hosts: access.server_host().into_iter().collect(),
            inventory: Arc::new(inventory.clone()),
            records: records.clone(),
            absences,
            revocations,
            lines: Arc::new(lines.clone()),
        });
        let conditions = MachineConditions::new(
            management.clone(),
            shared.machine_conditions.clone(),
            key.clone(),
        );
        let outcomes = conditions.outcomes();
        let known = OfCluster {
            management: management.clone(),
            key: key.clone(),
            records,
            uid: configuration.cluster.uid.clone(),
            overlaps,
        };
        let periodic = PeriodicTasks::new(
            access.clone(),
            configuration.spec.clone(),
            context.clone(),
            inventory,
            SweepEvents::new(events.clone(), management, key),
            conditions,
            settings,
        )
        .of_cluster(&configuration.cluster, known)
        .with_server_time(server_time.clone());
        // Boxed, because a task reserves space for every place to which it moves a value.
        let periodic = Box::new(periodic);
        let returns = report_returns(
            access.client().clone(),
            context.enforcement.clone(),
            periodic.urgent.clone(),
            lines.clone(),
        );
        let pipeline = Pipeline::new(context, store, events, now)
            .measured_by(metrics)
            .with_server_time(server_time.clone())
            .with_outcomes(outcomes)
            .in_turn(shared.requests.line(key), lines.clone());
        let client = access.client().clone();
        let observed = (
            periodic.urgent.clone(),
            periodic.unreadable_requests.clone(),
        );
        let worker = worker::run(client, pipeline, observed, quitted.clone());
        let worker = worker.boxed();
        tasks.spawn(async move {
            worker.await;
            writer.finish().await;
        });
        tasks.spawn(until(quitted.clone(), returns.boxed()));
        for background in configuration.verifiers.background() {
            tasks.spawn(until(quitted.clone(), background));
        }
        tasks.spawn(until(quitted, run_periodic(periodic, reported).boxed()));
        Ok(Self {
            fingerprint: service.fingerprint,
            ca: service.ca.clone(),
            access,
            health,
            tasks,
            quit,
            _served: lines.served(),
        })
    }

    /// Waits until the cluster's health changes. Returns whether a task panicked instead.
    pub(super) async fn panicked(&mut self) -> bool {
        tokio::select! {
            changed = self.health.changed() => changed.is_err(),
            _ = self.tasks.join_next() => true,
        }
    }

    /// Stops the tasks after they have answered the requests in progress.
    pub(super) async fn stop(mut self) {
        drop(self.quit);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Runs a task until another future ends.
async fn until(end: impl Future<Output = ()>, task: BoxFuture<'static, ()>) {
    tokio::select! {
        () = end => {}
        () = task => {}
    }
}

/// Runs the periodic work. Never returns.
async fn run_periodic(mut periodic: Box<PeriodicTasks>, reported: watch::Sender<Health>) {
    let period = periodic.sync_period.min(ROUND);
    loop {
        let health = periodic.round().boxed().await;
        reported.send_if_modified(|known| {
            let changed = *known != health;
            *known = health;
            changed
        });
        // The random delay separates the rounds of clusters that started together.
        let next = Instant::now() + jittered(period);
        while Instant::now() < next && !periodic.is_inspection_urgent() {
            sleep(REVOCATIONS).await;
            periodic.revoke_what_is_new().boxed().await;
            periodic.tell_machines().boxed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::footprint::{any, assert_limits, size};

    #[test]
    fn the_futures_of_periodic_work_have_limits() {
        assert_limits(&[
            ("run_periodic", size(|| run_periodic(any(), any())), 250),
            ("periodic", size_of::<PeriodicTasks>(), 3000),
            (
                "report_returns",
                size(|| report_returns(any(), any(), any(), any())),
                650,
            ),
            ("running", size_of::<Running>(), 450),
            ("health", size_of::<Health>(), 500),
        ]);
    }
}
