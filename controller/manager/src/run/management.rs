//! All clusters of a management cluster.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ArgAction;
use kubelet_attestation::names::Provider;
use node_attestation_controller::clusters::{ClusterAccess, Reach};
use node_attestation_controller::crd::KubeletAuthentication;
use node_attestation_controller::decide::Verifiers;
use node_attestation_controller::fleet::{Fleet, NoVerifiers, Settings};
use node_attestation_controller::verifier::{InsecureVerifier, Verifier};

use super::RunError;

/// Where Linux keeps a host's name; a Pod's is its own.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "A management cluster, with Cluster API")]
pub(super) struct ManagementArguments {
    /// Kubeconfig of the management cluster, where this does not run in it
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Look after the clusters of this namespace only
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Look after what has this value of the label cluster.x-k8s.io/watch-filter only
    #[arg(long, value_name = "VALUE")]
    watch_filter: Option<String>,
    /// Whether several replicas take turns, by a Lease
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    leader_elect: bool,
    /// Take a workload cluster's API server for another host's also where its address is ours
    #[arg(long, hide = true)]
    insecure_allow_loopback: bool,
}

/// Looks after them until `stop` is ready.
pub(super) async fn run(
    arguments: ManagementArguments,
    allow_insecure: bool,
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let access = match &arguments.kubeconfig {
        Some(file) => ClusterAccess::from_kubeconfig(file).await?,
        None => ClusterAccess::in_cluster().map_err(RunError::NoCluster)?,
    };
    let server = access.server();
    tracing::info!(server, "the management cluster");
    let mut settings = Settings::default();
    settings.namespace = arguments.namespace;
    settings.watch_filter = arguments.watch_filter;
    settings.candidate = arguments.leader_elect.then(host_name);
    settings.reach = Reach {
        insecure_allow_loopback: arguments.insecure_allow_loopback,
    };
    let verifiers =
        move |authentication: &KubeletAuthentication| verifiers(authentication, allow_insecure);
    let fleet = Fleet::new(&access, settings, Arc::new(verifiers));
    fleet.run(stop).await;
    tracing::info!("stopped");
    Ok(())
}

/// What this program verifies, of what is authorized.
pub(super) fn verifiers(
    authentication: &KubeletAuthentication,
    allow_insecure: bool,
) -> Result<Verifiers, NoVerifiers> {
    let mut verifiers = Vec::new();
    for attestor in &authentication.spec.authorized_attestors {
        if *attestor != Provider::INSECURE.as_str() {
            return Err(NoVerifiers::Unknown(attestor.clone()));
        }
        if !allow_insecure {
            return Err(NoVerifiers::InsecureNotAllowed);
        }
        let insecure: Arc<dyn Verifier> = Arc::new(InsecureVerifier::default());
        verifiers.push(insecure);
    }
    Ok(verifiers.into_iter().collect())
}

fn host_name() -> String {
    let name = fs::read_to_string(HOST_NAME).unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use node_attestation_controller::crd::KubeletAuthenticationSpec;

    use super::*;

    fn authorizing(attestor: &str) -> KubeletAuthentication {
        let spec = KubeletAuthenticationSpec::new("prod-1", &[attestor]);
        KubeletAuthentication::new("prod-1", spec)
    }

    #[test]
    fn insecure_is_admitted_only_where_both_say_so() {
        let admitted = verifiers(&authorizing("insecure"), true).unwrap();
        assert!(admitted.of(&Provider::INSECURE).is_some());

        let refused = verifiers(&authorizing("insecure"), false).unwrap_err();
        assert_eq!(refused, NoVerifiers::InsecureNotAllowed);
    }

    #[test]
    fn an_attestor_that_is_not_verified_here_is_named() {
        let refused = verifiers(&authorizing("tpm"), true).unwrap_err();

        assert_eq!(refused, NoVerifiers::Unknown("tpm".to_owned()));
    }
}
