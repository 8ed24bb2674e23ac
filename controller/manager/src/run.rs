//! `run`: one workload cluster, from files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::{Audience, InvalidName};
use node_attestation_controller::decide::{Lifetimes, Verifiers};
use node_attestation_controller::duties::{BuiltIn, Duties};
use node_attestation_controller::serving::AddressRange;
use node_attestation_controller::standalone::{
    ServingSettings, Settings, Standalone, StandaloneError,
};
use node_attestation_controller::verifier::{InsecureVerifier, Verifier};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The shortest lifetime that a Kubernetes signer may be asked for (`spec.expirationSeconds` of at
/// least 600).
const MIN_DURATION: Duration = Duration::from_mins(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Kubeconfig of the workload cluster
    #[arg(long, value_name = "FILE")]
    workload_kubeconfig: PathBuf,
    /// Certificate of the CA that the cluster's API server accepts client certificates of, as PEM
    #[arg(long, value_name = "FILE")]
    ca_cert: PathBuf,
    /// Key of that CA, as PEM: PKCS#8, PKCS#1 or SEC1
    #[arg(long, value_name = "FILE", required_unless_present = "approve_only")]
    ca_key: Option<PathBuf>,
    /// Approve only, and leave the signing to kube-controller-manager: nodes ask the built-in client
    /// signer, with their evidence
    #[arg(long, conflicts_with = "ca_key")]
    approve_only: bool,
    /// List of the cluster's machines, read again when it changes
    #[arg(long, value_name = "FILE")]
    inventory: PathBuf,
    /// Admit machines that prove nothing: whoever holds a machine's bootstrap token is that machine
    #[arg(long)]
    allow_insecure: bool,
    /// The longest validity that is granted to a machine that proved what it is
    #[arg(long, value_name = "DURATION", default_value = "168h", value_parser = duration)]
    certificate_duration: Duration,
    /// The longest validity that is granted to a machine that proved nothing; it is never renewed
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = duration)]
    insecure_certificate_duration: Duration,
    /// Accept evidence for this audience, beside the digests of the cluster's CA certificates
    #[arg(long = "audience", value_name = "AUDIENCE", value_parser = audience)]
    audiences: Vec<Audience>,
    /// Answer requests for serving certificates; a machine without evidence gets none
    #[arg(long)]
    serving: bool,
    /// Addresses of Services, which no serving certificate is for
    #[arg(long = "service-range", value_name = "CIDR", requires = "serving")]
    service_ranges: Vec<AddressRange>,
    /// Host of the control plane's endpoint, beside the kubeconfig's, which no serving certificate is
    /// for
    #[arg(long = "endpoint-host", value_name = "HOST", requires = "serving")]
    endpoint_hosts: Vec<String>,
    /// Take the addresses that nodes report of themselves for theirs
    #[arg(long, requires = "serving")]
    guest_reported_addresses: bool,
    /// Deny requests to kubernetes.io/kube-apiserver-client-kubelet that have no evidence; implied by
    /// --approve-only
    #[arg(long)]
    deny_built_in: bool,
    /// Approve such requests of control-plane machines that renew kubeadm's certificate
    #[arg(long)]
    control_plane_renewal: bool,
}

impl Arguments {
    fn duties(&self) -> Duties {
        let built_in = if self.approve_only {
            BuiltIn::ApproveOnly
        } else if self.deny_built_in {
            BuiltIn::Deny
        } else {
            BuiltIn::Ignore
        };
        Duties {
            serving: self.serving,
            built_in,
            control_plane_renewal: self.control_plane_renewal,
        }
    }
}

/// Why nothing runs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// There is nobody whose requests could be answered.
    #[error(
        "no attestation provider is admitted: this release verifies no evidence, \
         so give --allow-insecure to admit machines that prove nothing"
    )]
    NothingAdmitted,
    /// A file.
    #[error(transparent)]
    Standalone(#[from] StandaloneError),
    /// Signals.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}

/// Serves the cluster until SIGTERM or SIGINT.
pub(crate) async fn run(arguments: Arguments) -> Result<(), RunError> {
    if !arguments.allow_insecure {
        return Err(RunError::NothingAdmitted);
    }
    tracing::warn!(
        "machines that prove nothing are admitted: a bootstrap token is all that one needs"
    );
    let insecure: Arc<dyn Verifier> = Arc::new(InsecureVerifier::default());
    let settings = Settings {
        duties: arguments.duties(),
        serving: ServingSettings {
            endpoint_hosts: arguments.endpoint_hosts,
            service_ranges: arguments.service_ranges,
            guest_reported_addresses: arguments.guest_reported_addresses,
        },
        workload_kubeconfig: arguments.workload_kubeconfig,
        ca_cert: arguments.ca_cert,
        ca_key: arguments.ca_key,
        inventory: arguments.inventory,
        audiences: arguments.audiences,
        lifetimes: Lifetimes {
            attested: arguments.certificate_duration,
            insecure: arguments.insecure_certificate_duration,
        },
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    let controller = Standalone::load(settings, Verifiers::from_iter([insecure])).await?;
    controller.run(either(&mut terminate, &mut interrupt)).await;
    Ok(())
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    let signal = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal, "stopping");
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration < MIN_DURATION {
        return Err("a certificate is valid for at least 10m".to_owned());
    }
    Ok(duration)
}

fn audience(text: &str) -> Result<Audience, InvalidName> {
    Audience::parse(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_and_not_too_short() {
        assert_eq!(duration("168h"), Ok(Duration::from_hours(168)));
        assert_eq!(duration("10m"), Ok(MIN_DURATION));
        for text in ["9m", "0s", "168", "-1h", "", "h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
