//! Serves many clusters: the requests in each Cluster that has a [`KubeletAuthentication`] in the management cluster.
//!
//! An infrastructure provider can embed the controller with its own verifiers:
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
//! - Each cluster has separate tasks, a separate queue and separate budgets. Therefore an unavailable, hostile or
//!   misconfigured cluster does not delay other clusters. A panic in one cluster does not delay other clusters either.
//! - If a cluster is not served, a condition states the reason, without secrets.
//! - A replaced kubeconfig or CA takes effect immediately, and no request is lost.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt as _;
use k8s_openapi::NamespaceResourceScope;
use kube::api::Api;
use kube::{Client, Resource};
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::verifier::Verifiers;
use tokio::task::{JoinError, JoinSet};

use crate::capi::{ClusterObserver, ObjectKey, Objects, Selection};
use crate::client::{ClusterAccess, EgressPolicy, ServerTime, client_on_behalf_of};
use crate::events;
use crate::external_signer::ExternalSigner;
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
pub(crate) mod configuration;
mod desired_state;
mod enablement;
#[cfg(test)]
mod flood;
mod future_floor;
mod infra_cluster;
mod kept_authentications;
mod leader;
mod machine_conditions;
pub(crate) mod not_served;
mod periodic;
mod places;
mod reporting;
mod reports;
#[cfg(test)]
mod served_kind;
mod single_object;
pub(crate) mod spec_mapping;
mod status_writer;
mod supervisor;
mod sweep_events;
mod token_renewal;
#[cfg(test)]
pub(crate) use infra_cluster::each_read_alone;

use ca_key_registry::CaKeys;
use infra_cluster::Definitions;
use leader::{Candidate, TermEnd};
use places::Places;
use single_object::Observed;

/// The kinds in the management cluster that a replica must list before it is ready. The leader lists the other kinds
/// after it becomes the leader.
const LISTS: [&str; 4] = ["Cluster", "Machine", "MachinePool", "NodeIdentity"];

/// The default of [`Settings::sync_period`].
pub const SYNC_PERIOD: Duration = Duration::from_mins(30);

/// The default of [`Settings::max_clusters_per_namespace`].
pub const MAX_CLUSTERS_PER_NAMESPACE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(999);

/// The options of the controller, including the part of the management cluster that it serves.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The objects to serve.
    pub selection: Selection,
    /// The name of this replica. One replica is the leader and holds a Lease. The Lease's holder identity is this name
    /// with a random suffix.
    pub candidate: String,
    /// The addresses that API servers of workload clusters are allowed to have.
    pub egress: EgressPolicy,
    /// The kubeconfigs that the controller uses for workload clusters.
    pub workload_access: WorkloadAccess,
    /// The time for which a Machine must be missing before its record is retired, its certificates are revoked and its
    /// Node is deleted. If `None`, [`MISSING_MACHINE_TIMEOUT`](node_attestation_core::ledger::MISSING_MACHINE_TIMEOUT)
    /// applies.
    pub missing_machine_timeout: Option<Duration>,
    /// The interval between inspections of a workload cluster without problems. An inspection checks the version, the
    /// Nodes, the revocation list, the admission policies, and the bindings that approve requests. Every second
    /// inspection also checks the controller's permissions. A cluster with a problem is inspected every minute, and a
    /// cluster whose watches fail or recover is inspected immediately. If `None`, [`SYNC_PERIOD`] applies.
    pub sync_period: Option<Duration>,
    /// The maximum number of served clusters in one namespace. The oldest clusters are served. If `None`,
    /// [`MAX_CLUSTERS_PER_NAMESPACE`] applies.
    pub max_clusters_per_namespace: Option<NonZeroUsize>,
    /// The metrics and the health of the controller.
    pub metrics: Metrics,
    /// The signer for clusters whose CA Secret has no key. If `None`, these clusters are not served.
    pub external_signer: Option<ExternalSigner>,
    /// An observer of the Cluster watch.
    pub cluster_observer: Option<Arc<dyn ClusterObserver>>,
}

/// The kubeconfigs that the controller uses for workload clusters.
///
/// The controller's own kubeconfig is in the Secret [`access_secret_name`](crate::capi::access_secret_name) in the
/// controller's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorkloadAccess {
    /// Cluster API's `<cluster>-kubeconfig`, which contains an administrator's credential.
    #[default]
    ClusterApi,
    /// The controller's own kubeconfig, if it exists. Otherwise, `<cluster>-kubeconfig`.
    PreferOwn,
    /// Only the controller's own kubeconfig. The controller does not read `<cluster>-kubeconfig`.
    Own,
}

impl WorkloadAccess {
    /// Whether the controller watches the Secrets that contain its own kubeconfigs.
    fn has_own(self) -> bool {
        self != Self::ClusterApi
    }

    /// Whether the controller uses its own kubeconfig if the Secret that contains it is in this state.
    fn is_own<K>(self, own: &Observed<K>) -> bool {
        match self {
            Self::ClusterApi => false,
            Self::PreferOwn => !matches!(own, Observed::Absent),
            Self::Own => true,
        }
    }
}

/// The Secrets that contain the controller's own kubeconfigs, in the controller's namespace. The calls count against
/// the turns of `namespace`, which is the namespace of the Cluster. Otherwise, all tenants would share one queue.
fn own_secrets<K>(management: &Client, namespace: &str) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
{
    let place = management.default_namespace();
    Api::namespaced(client_on_behalf_of(management, namespace), place)
}

/// Creates the verifiers for a cluster's authorized attestation providers. The string argument is the Cluster's UID,
/// which changes when the Cluster is moved.
pub type VerifierFactory = dyn Fn(&KubeletAuthentication, &str) -> Verifiers + Send + Sync;

/// A controller for all clusters in a management cluster, or for some of them.
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

/// Returns access to the API server of a workload cluster. Used instead of the kubeconfig.
pub type Connect = Arc<dyn Fn(&ObjectKey) -> ClusterAccess + Send + Sync>;

/// The state that all clusters share.
struct Shared {
    controller: Controller,
    objects: Objects,
    records: RecordsWatch,
    ca_keys: CaKeys,
    /// The rate of Events about conditions.
    condition_events: FairRate,
    /// The rate of Events about Machines and records.
    machine_events: Arc<FairRate>,
    /// The rate of condition writes to Machines.
    machine_conditions: Arc<FairRate>,
    /// The rate of status writes.
    status_writes: Arc<FairRate>,
    /// The definitions of infrastructure provider kinds.
    definitions: Arc<Definitions>,
    /// The turns of requests.
    requests: FairTurns,
    /// The turns for parsing a cluster's objects.
    parsing: FairTurns,
    places: Places,
}

impl Controller {
    /// Creates a controller for this management cluster. The controller makes no calls before [`run`](Self::run).
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

    /// Serves requests while this replica is the leader, until `stop` is ready. Then releases the Lease.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        // All replicas watch, so that a new leader already has all objects.
        let (shared, mut watching) = self.watching();
        tokio::select! {
            () = self.lead(&shared, stop) => {}
            // A watch ends only if it panics. Without the watch, this replica would miss all changes but keep the
            // Lease. Therefore the process stops, so that another replica becomes the leader.
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
            let Some(mut term) = Box::pin(candidate.lead(stop.clone())).await else {
                return;
            };
            let work = |stop| work(shared.clone(), stop);
            match Box::pin(term.during(stop.clone(), work)).await {
                TermEnd::Stopped => return term.release().await,
                TermEnd::Lost => {}
            }
        }
    }

    /// Creates the shared state, and the tasks that run its watches.
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
            machine_events: Arc::new(FairRate::new(events::RATE)),
            machine_conditions: Arc::new(FairRate::new(crate::machine_conditions::RATE)),
            status_writes: Arc::new(FairRate::new(status_writer::RATE)),
            definitions: Arc::new(infra_cluster::definitions()),
            requests: FairTurns::new(queue::TURNS),
            parsing: FairTurns::new(supervisor::PARSED),
            places: Places::new(places.unwrap_or(MAX_CLUSTERS_PER_NAMESPACE)),
        });
        (shared, watching)
    }

    /// The name of the Lease. Controllers with different namespaces or watch filters use different Leases.
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

/// Serves the clusters in a separate task, so that renewing the Lease never waits for a cluster.
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
