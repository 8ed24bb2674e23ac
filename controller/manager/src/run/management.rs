//! All clusters of a management cluster.

use std::fs;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, value_parser};
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_runtime::client::EgressPolicy;
use node_attestation_runtime::external_signer::ExternalSigner;
use node_attestation_runtime::management::{Controller, MAX_SHARDS, Settings};
use node_attestation_runtime::metrics::Metrics;
use tokio::task::JoinSet;

use crate::access::for_controller;
use crate::error::BoxError;
use crate::providers::OpenedProviders;

/// The file of a host's name; in a Pod, of the Pod's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "A management cluster, with Cluster API")]
pub(super) struct ManagementArguments {
    /// Kubeconfig of the management cluster, where this does not run in it
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig, in the place of the current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// Look after the clusters of this namespace only
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Look after what has this value of the label cluster.x-k8s.io/watch-filter only
    #[arg(long, value_name = "VALUE")]
    watch_filter: Option<String>,
    /// Whether there may be several replicas, of which one leads, by a Lease
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    leader_elect: bool,
    /// Divide the clusters into so many shards, each with a Lease, so that replicas share the work; the same
    /// number for all replicas, and at least as many as there are replicas
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=i64::from(MAX_SHARDS)), default_value_t = 1)]
    shards: u32,
    /// The time for which a Machine has to be missing, in two rounds at least, until its record is retired, its
    /// certificates are revoked and its Node is deleted
    #[arg(
        long, value_name = "DURATION", value_parser = humantime::parse_duration,
        default_value = "10m"
    )]
    missing_machine_timeout: Duration,
    /// Time between two inspections of a workload cluster that is in order: of its version, our
    /// rights, revoked certificates, and bindings that approve requests; a second at least
    #[arg(long, value_name = "DURATION", value_parser = sync_period, default_value = "30m")]
    sync_period: Duration,
    /// Take a workload cluster's API server for another host's also where its address is ours
    #[arg(long, hide = true)]
    insecure_allow_loopback: bool,
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
    tracing::info!(server, "the management cluster");
    let (providers, work) = providers.with_management(&access, arguments.namespace.as_deref())?;
    let mut beside = JoinSet::new();
    beside.spawn(work);
    let mut settings = Settings::default();
    settings.selection.namespace = arguments.namespace;
    settings.selection.watch_filter = arguments.watch_filter;
    settings.candidate = arguments.leader_elect.then(host_name);
    settings.shards = NonZeroU32::new(arguments.shards);
    settings.missing_machine_timeout = Some(arguments.missing_machine_timeout);
    settings.sync_period = Some(arguments.sync_period);
    settings.metrics = metrics;
    settings.external_signer = external;
    settings.reach = EgressPolicy {
        insecure_allow_loopback: arguments.insecure_allow_loopback,
    };
    let verifiers = move |authentication: &KubeletAuthentication, cluster_uid: &str| {
        providers.verifiers(authentication, cluster_uid)
    };
    let controller = Controller::new(&access, settings, Arc::new(verifiers));
    tokio::select! {
        () = controller.run(stop) => {}
        // It ends by a panic alone; without it no change of an identity would count.
        Some(_) = beside.join_next() => return Err("the watch of AWS identities ended".into()),
    }
    tracing::info!("stopped");
    Ok(())
}

/// At least a second.
fn sync_period(text: &str) -> Result<Duration, String> {
    let period = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if period < Duration::from_secs(1) {
        return Err("it is less than a second".to_owned());
    }
    Ok(period)
}

fn host_name() -> String {
    let name = fs::read_to_string(HOST_NAME).unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_period_is_a_duration_of_a_second_at_least() {
        assert_eq!(sync_period("1s"), Ok(Duration::from_secs(1)));
        let less = Err("it is less than a second".to_owned());
        assert_eq!(
            [sync_period("999ms"), sync_period("0s")],
            [less.clone(), less]
        );
        assert!(sync_period("soon").is_err());
    }
}
