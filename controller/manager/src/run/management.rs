//! Runs the controller for all clusters in a management cluster.

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_runtime::client::EgressPolicy;
use node_attestation_runtime::external_signer::ExternalSigner;
use node_attestation_runtime::management::{
    Controller, MAX_CLUSTERS_PER_NAMESPACE, Settings, WorkloadAccess,
};
use node_attestation_runtime::metrics::Metrics;
use tokio::task::JoinSet;

use crate::access::for_controller;
use crate::error::BoxError;
use crate::providers::OpenedProviders;

/// The file that contains the host name. In a Pod, the host name is the Pod's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Management cluster with Cluster API")]
pub(super) struct ManagementArguments {
    /// Kubeconfig of the management cluster, if the controller does not run in it
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig, instead of the current context
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// Serve only the Clusters in this namespace
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Serve only the Clusters with this value of the label cluster.x-k8s.io/watch-filter
    #[arg(long, value_name = "VALUE")]
    watch_filter: Option<String>,
    /// Maximum number of Clusters that the controller serves in each namespace. It serves the oldest Clusters
    #[arg(long, value_name = "NUMBER", default_value_t = MAX_CLUSTERS_PER_NAMESPACE)]
    max_clusters_per_namespace: NonZeroUsize,
    /// Kubeconfigs for workload clusters. The controller's own kubeconfig is in the Secret
    /// workload-access.NAMESPACE.CLUSTER, in the namespace of the controller
    #[arg(long, value_name = "WAY", value_enum, default_value_t = AccessOption::ClusterApi)]
    workload_access: AccessOption,
    /// The time for which a Machine must be missing, in at least two rounds, before the controller retires its node
    /// identity
    #[arg(long, hide = true, value_name = "DURATION", value_parser = humantime::parse_duration)]
    missing_machine_timeout: Option<Duration>,
    /// Time between two inspections of a workload cluster without problems
    #[arg(long, hide = true, value_name = "DURATION", value_parser = humantime::parse_duration)]
    sync_period: Option<Duration>,
    /// Accept workload clusters whose API server has a loopback address
    #[arg(long, hide = true)]
    insecure_allow_loopback: bool,
}

/// The values of `--workload-access`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum AccessOption {
    /// Cluster API's kubeconfigs, which have an administrator's permissions
    ClusterApi,
    /// The controller's own kubeconfigs, or Cluster API's kubeconfig for a Cluster that does not have one
    PreferOwn,
    /// Only the controller's own kubeconfigs
    Own,
}

impl From<AccessOption> for WorkloadAccess {
    fn from(option: AccessOption) -> Self {
        match option {
            AccessOption::ClusterApi => Self::ClusterApi,
            AccessOption::PreferOwn => Self::PreferOwn,
            AccessOption::Own => Self::Own,
        }
    }
}

/// Serves all clusters until `stop` is ready.
pub(super) async fn run(
    arguments: ManagementArguments,
    providers: OpenedProviders,
    external: Option<ExternalSigner>,
    metrics: Metrics,
    stop: impl Future<Output = ()>,
) -> Result<(), BoxError> {
    let access = for_controller(arguments.kubeconfig, arguments.context.as_deref()).await?;
    let server = access.server();
    tracing::info!(server, "using the management cluster");
    let (providers, work) = providers.with_management(&access, arguments.namespace.as_deref())?;
    let mut beside = JoinSet::new();
    beside.spawn(work);
    let mut settings = Settings::default();
    settings.selection.namespace = arguments.namespace;
    settings.selection.watch_filter = arguments.watch_filter;
    settings.candidate = host_name();
    settings.missing_machine_timeout = arguments.missing_machine_timeout;
    settings.sync_period = arguments.sync_period;
    settings.max_clusters_per_namespace = Some(arguments.max_clusters_per_namespace);
    settings.workload_access = arguments.workload_access.into();
    settings.metrics = metrics;
    settings.external_signer = external;
    settings.cluster_observer = providers.cluster_observer();
    settings.egress = EgressPolicy {
        insecure_allow_loopback: arguments.insecure_allow_loopback,
    };
    let verifiers = move |authentication: &KubeletAuthentication, cluster_uid: &str| {
        providers.verifiers(authentication, cluster_uid)
    };
    let controller = Controller::new(&access, settings, Arc::new(verifiers));
    tokio::select! {
        () = controller.run(stop) => {}
        // The watch ends only if it panics. Without the watch, changes to identities would have no effect.
        Some(_) = beside.join_next() => return Err("the watch of AWS identities stopped".into()),
    }
    tracing::info!("stopped");
    Ok(())
}

fn host_name() -> String {
    let name = fs::read_to_string(HOST_NAME).unwrap_or_default();
    name.trim().to_owned()
}
