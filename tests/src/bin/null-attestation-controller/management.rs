//! Serves all clusters of a management cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use kubelet_attestation::names::Provider;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::verifier::{InsecureVerifier, Verifier, Verifiers};
use node_attestation_runtime::client::{ClusterAccess, ClusterAccessError, EgressPolicy};
use node_attestation_runtime::diagnostics::{self, ServedPaths};
use node_attestation_runtime::management::{Controller, Settings, WorkloadAccess};
use node_attestation_runtime::metrics::Metrics;
use node_attestation_runtime::shared::testing::longest_held;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

#[derive(Debug, Args)]
pub(crate) struct Management {
    /// The management cluster
    #[arg(long, conflicts_with = "workload_kubeconfig")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[arg(long)]
    namespace: Option<String>,
    #[arg(long)]
    watch_filter: Option<String>,
    #[arg(long, value_parser = humantime::parse_duration)]
    missing_machine_timeout: Option<Duration>,
    #[arg(long, value_parser = humantime::parse_duration)]
    sync_period: Option<Duration>,
    #[arg(long, value_enum)]
    workload_access: Option<AccessOption>,
    #[arg(long)]
    insecure_allow_loopback: bool,
    #[arg(long)]
    metrics_bind_address: Option<SocketAddr>,
    #[arg(long)]
    health_addr: Option<SocketAddr>,
    /// File to which the program writes, twice per second, the longest time for which each lock was held, in
    /// milliseconds
    #[arg(long)]
    lock_times: Option<PathBuf>,
}

/// A value of `--workload-access`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum AccessOption {
    /// Only the controller's own kubeconfigs
    Own,
}

/// Serves all clusters, with the rubber stamp and the authorized attestors.
pub(crate) async fn serve(
    kubeconfig: &Path,
    management: &Management,
    stamp: Arc<dyn Verifier>,
    stop: impl Future<Output = ()>,
) -> Result<(), ClusterAccessError> {
    let access = ClusterAccess::from_kubeconfig(kubeconfig).await?;
    let mut settings = Settings::default();
    settings
        .selection
        .namespace
        .clone_from(&management.namespace);
    settings
        .selection
        .watch_filter
        .clone_from(&management.watch_filter);
    "null".clone_into(&mut settings.candidate);
    settings.missing_machine_timeout = management.missing_machine_timeout;
    settings.sync_period = management.sync_period;
    if let Some(AccessOption::Own) = management.workload_access {
        settings.workload_access = WorkloadAccess::Own;
    }
    settings.egress = EgressPolicy {
        insecure_allow_loopback: management.insecure_allow_loopback,
    };
    settings.metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let mut servers = JoinSet::new();
    for (pages, address) in [
        (ServedPaths::Metrics, management.metrics_bind_address),
        (ServedPaths::Health, management.health_addr),
    ] {
        let Some(address) = address else { continue };
        let listener = TcpListener::bind(address).await.expect("a free port");
        servers.spawn(diagnostics::serve(
            listener,
            pages,
            settings.metrics.clone(),
        ));
    }
    if let Some(file) = management.lock_times.clone() {
        tokio::spawn(write_lock_times(file));
    }
    let verifiers = verifiers(stamp);
    Controller::new(&access, settings, Arc::new(verifiers))
        .run(stop)
        .await;
    Ok(())
}

/// Writes the file twice per second, in real time. The benchmark reads the most recent file.
async fn write_lock_times(file: PathBuf) {
    let new = file.with_extension("new");
    loop {
        let times = longest_held().into_iter();
        // The file also contains the locks that were never held, with the time 0.
        let times =
            times.map(|(lock, held)| (lock.name(), held.unwrap_or_default().as_secs_f64() * 1e3));
        let times: BTreeMap<&str, f64> = times.collect();
        let text = serde_json::to_string(&times).expect("times by lock");
        std::fs::write(&new, text).expect("a file that can be written");
        std::fs::rename(&new, &file).expect("a file that can be renamed");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The verifier for rubber stamps, and the verifier for `insecure` if it is authorized.
pub(crate) fn verifiers(
    stamp: Arc<dyn Verifier>,
) -> impl Fn(&KubeletAuthentication, &str) -> Verifiers + Send + Sync {
    move |authentication: &KubeletAuthentication, _: &str| {
        let authorized = &authentication.spec.authorized_attestors;
        let insecure = authorized
            .iter()
            .any(|attestor| attestor == Provider::INSECURE.as_str());
        let insecure = insecure.then(|| Arc::new(InsecureVerifier) as Arc<dyn Verifier>);
        insecure.into_iter().chain([stamp.clone()]).collect()
    }
}
