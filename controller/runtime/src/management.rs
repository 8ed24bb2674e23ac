//! Many clusters: for each [`KubeletAuthentication`] of a management cluster the requests of its Cluster are
//! answered.
//!
//! An infrastructure provider embeds it with verifiers of its own:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use node_attestation_runtime::client::ClusterAccess;
//! # use node_attestation_core::crd::KubeletAuthentication;
//! # use node_attestation_runtime::management::{Controller, Settings};
//! # use node_attestation_core::verifier::{Verifier, Verifiers};
//! # async fn embed(management: ClusterAccess, verifier: Arc<dyn Verifier>) {
//! let verifiers = move |_: &KubeletAuthentication, _: &str| Verifiers::from_iter([verifier.clone()]);
//! let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
//! controller.run(std::future::pending()).await;
//! # }
//! ```
//!
//! # Guarantees
//!
//! - Each cluster has tasks, a queue and budgets of its own: one that is down, hostile or
//!   misconfigured delays no other, and neither does a panic.
//! - The reason for which a cluster is not served is in a condition, without secrets.
//! - A replaced kubeconfig or CA takes effect at once, and no request is lost.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt as _;
use kube::Client;
use kube::api::Api;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::verifier::Verifiers;
use tokio::task::{JoinError, JoinSet};

use crate::capi::{ClusterObserver, ObjectKey, Objects, Selection};
use crate::client::{ClusterAccess, EgressPolicy, ServerTime};
use crate::external_signer::ExternalSigner;
use crate::logs::LineBudget;
use crate::metrics::Metrics;
use crate::queue;
use crate::records::RecordsWatch;
use crate::turns::{FairRate, FairTurns};

mod ca_key_registry;
mod cluster_registry;
mod cluster_status;
mod cluster_tasks;
mod condition_events;
mod conditions;
mod desired_state;
mod enablement;
mod infra_cluster;
mod leader;
mod machine_conditions;
mod periodic;
mod places;
mod single_object;
pub(crate) mod spec_mapping;
mod status_writer;
mod supervisor;
mod sweep_events;

use ca_key_registry::CaKeys;
use leader::{Candidate, TermEnd};
use places::Places;

/// The kinds of the management cluster that a replica knows before it is ready. It lists those that only a leader needs
/// when it leads.
const LISTS: [&str; 4] = ["Cluster", "Machine", "MachinePool", "NodeIdentity"];

/// The default of [`Settings::sync_period`].
pub const SYNC_PERIOD: Duration = Duration::from_mins(30);

/// The default of [`Settings::max_clusters_per_namespace`].
pub const MAX_CLUSTERS_PER_NAMESPACE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(999);

/// The part of a management cluster that the controller serves, and how.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The objects that it serves.
    pub selection: Selection,
    /// The name of this replica. One replica leads, with a Lease; its holder is this name, with a random suffix.
    pub candidate: String,
    /// The addresses that workload clusters' API servers may have.
    pub reach: EgressPolicy,
    /// For how long a Machine has to be missing before its record is retired, its certificates are
    /// revoked and its Node is deleted. `None`:
    /// [`MISSING_MACHINE_TIMEOUT`](node_attestation_core::ledger::MISSING_MACHINE_TIMEOUT).
    pub missing_machine_timeout: Option<Duration>,
    /// The time between two inspections of a workload cluster that is in order: its version, its Nodes, the list
    /// of what is revoked, the admission policies, the bindings that approve requests, and, every other time,
    /// our rights. A cluster with which something is wrong is inspected each minute, and one whose watches fail
    /// or come back at once. `None`: [`SYNC_PERIOD`].
    pub sync_period: Option<Duration>,
    /// The limit of served clusters in one namespace; the oldest are served. `None`:
    /// [`MAX_CLUSTERS_PER_NAMESPACE`].
    pub max_clusters_per_namespace: Option<NonZeroUsize>,
    /// Its metrics and its health.
    pub metrics: Metrics,
    /// Signs for clusters whose CA has no key in its Secret. `None`: requests of such a cluster are approved, for
    /// kube-controller-manager to sign.
    pub external_signer: Option<ExternalSigner>,
    /// Follows the watch of Clusters.
    pub cluster_observer: Option<Arc<dyn ClusterObserver>>,
}

/// Finds the verifiers of the authorized attestors of a cluster. The text is the UID of the Cluster, which a move
/// changes.
pub type VerifierFactory = dyn Fn(&KubeletAuthentication, &str) -> Verifiers + Send + Sync;

/// A controller of all clusters of a management cluster, or of a part of them.
#[derive(derive_more::Debug, Clone)]
#[debug("Controller({settings:?})")]
pub struct Controller {
    settings: Settings,
    management: Client,
    server_time: ServerTime,
    leases: Client,
    verifiers: Arc<VerifierFactory>,
    connect: Option<Connect>,
}

/// Gives access to the API server of a workload cluster, instead of its kubeconfig.
pub type Connect = Arc<dyn Fn(&ObjectKey) -> ClusterAccess + Send + Sync>;

/// The parts that all clusters share.
struct Shared {
    controller: Controller,
    objects: Objects,
    records: RecordsWatch,
    ca_keys: CaKeys,
    /// The rate of Events about conditions.
    condition_events: FairRate,
    /// The rate of conditions of Machines.
    machine_conditions: Arc<FairRate>,
    /// The turns of requests.
    requests: FairTurns,
    /// The log lines about refused requests.
    lines: Arc<LineBudget>,
    places: Places,
}

impl Controller {
    /// A controller of this management cluster. It makes no call before [`run`](Self::run).
    pub fn new(
        management: &ClusterAccess,
        settings: Settings,
        verifiers: Arc<VerifierFactory>,
    ) -> Self {
        Self {
            settings,
            management: management.client().clone(),
            server_time: management.server_time().clone(),
            leases: management.lease_client().clone(),
            verifiers,
            connect: None,
        }
    }

    /// Uses `connect` to reach the API servers of workload clusters.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn connecting_by(mut self, connect: Connect) -> Self {
        self.connect = Some(connect);
        self
    }

    /// Answers requests while this replica leads, until `stop` is ready. Then it gives the Lease up.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        // A replica that does not lead watches too: it knows all objects when it becomes the leader.
        let (shared, mut watching) = self.watching();
        tokio::select! {
            () = self.lead(&shared, stop) => {}
            // A watch ends only by a panic. Without it nothing would change, and this replica would go on holding
            // the Lease: the process ends, and another replica leads.
            Some(ended) = watching.join_next() => resume_panic(ended),
        }
    }

    async fn lead(&self, shared: &Arc<Shared>, stop: impl Future<Output = ()>) {
        let candidate = Candidate {
            api: Api::default_namespaced(self.leases.clone()),
            name: self.lease_name(),
            identity: leader::identity(&self.settings.candidate),
            metrics: self.settings.metrics.clone(),
        };
        let stop = stop.shared();
        loop {
            let mut term = tokio::select! {
                () = stop.clone() => return,
                term = candidate.lead() => term,
            };
            let work = |stop| work(shared.clone(), stop);
            match Box::pin(term.during(stop.clone(), work)).await {
                TermEnd::Stopped => return term.release().await,
                TermEnd::Lost => {}
            }
        }
    }

    /// The state that the clusters share, and the tasks of its watches.
    fn watching(&self) -> (Arc<Shared>, JoinSet<()>) {
        let Settings {
            selection,
            metrics,
            max_clusters_per_namespace: places,
            cluster_observer: observer,
            ..
        } = &self.settings;
        metrics.require_lists(&LISTS);
        let management = || self.management.clone();
        let (objects, watches) =
            Objects::observed(management(), selection.clone(), metrics, observer.clone());
        let namespace = selection.namespace.as_deref();
        let (records, records_watch) = RecordsWatch::new(management(), namespace, metrics);
        let mut watching = JoinSet::new();
        watching.spawn(watches);
        watching.spawn(records_watch);
        let shared = Arc::new(Shared {
            controller: self.clone(),
            objects,
            records,
            ca_keys: CaKeys::default(),
            condition_events: FairRate::new(condition_events::RATE),
            machine_conditions: Arc::new(FairRate::new(crate::machine_conditions::RATE)),
            requests: FairTurns::new(queue::TURNS),
            lines: Arc::default(),
            places: Places::new(places.unwrap_or(MAX_CLUSTERS_PER_NAMESPACE)),
        });
        (shared, watching)
    }

    /// The name of the Lease. Controllers of different namespaces or watch filters do not wait for each other.
    fn lease_name(&self) -> String {
        let Selection {
            namespace,
            watch_filter,
        } = &self.settings.selection;
        let mut name = "node-attestation-controller".to_owned();
        if namespace.is_some() || watch_filter.is_some() {
            let part = format!("{namespace:?}{watch_filter:?}");
            let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, part.as_bytes());
            let digest = data_encoding::HEXLOWER.encode(digest.as_ref());
            name.push('-');
            name.extend(digest.chars().take(8));
        }
        name
    }
}

/// Serves the clusters on a separate task, so that the renewal of the Lease does not wait for it.
async fn work(shared: Arc<Shared>, stop: impl Future<Output = ()> + Send + 'static) {
    let mut work = JoinSet::new();
    work.spawn(async move { cluster_registry::supervise_all(&shared, stop).await });
    if let Some(ended) = work.join_next().await {
        resume_panic(ended);
    }
}

fn resume_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}
