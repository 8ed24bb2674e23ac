//! `run`: a fleet, by what a management cluster says; or one workload cluster, by hand.

mod management;
mod standalone;

use std::io;

use node_attestation_controller::clusters::{ClusterAccessError, InClusterAccessError};
use node_attestation_controller::standalone::StandaloneError;
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Admit machines that prove nothing: whoever holds a machine's bootstrap token is that machine
    #[arg(long)]
    allow_insecure: bool,
    #[command(flatten)]
    management: management::ManagementArguments,
    #[command(flatten)]
    standalone: standalone::StandaloneArguments,
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
    /// The management cluster's kubeconfig.
    #[error(transparent)]
    Management(#[from] ClusterAccessError),
    /// There is no kubeconfig either.
    #[error(
        "neither --kubeconfig (of a management cluster) nor --workload-kubeconfig (of one cluster) is given"
    )]
    NoCluster(#[source] InClusterAccessError),
    /// Signals.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}

/// Answers requests until SIGTERM or SIGINT.
pub(crate) async fn run(arguments: Arguments) -> Result<(), RunError> {
    let Arguments {
        allow_insecure,
        management,
        standalone,
    } = arguments;
    if allow_insecure {
        tracing::warn!(
            "machines that prove nothing are admitted: a bootstrap token is all that one needs"
        );
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    let stop = either(&mut terminate, &mut interrupt);
    match standalone.choice() {
        Some(choice) => standalone::run(choice, allow_insecure, stop).await,
        None => Box::pin(management::run(management, allow_insecure, stop)).await,
    }
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    let signal = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal, "stopping");
}
