//! `run`: a fleet, by what a management cluster says; or one workload cluster, by hand.

mod management;
mod standalone;
mod standalone_aws;
mod standalone_tpm;

use std::io;

use node_attestation_aws::inventory::InvalidInventory;
use node_attestation_runtime::standalone::StandaloneError;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::standalone_tpm::TpmSettingsError;
use crate::access::AccessError;
use crate::file::FileError;
use crate::providers::{ProviderArguments, ProviderArgumentsError, Unusable};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    providers: ProviderArguments,
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
        "nobody's requests are answered: give --attestor to admit machines that prove what they are, \
         or --allow-insecure to admit machines that prove nothing"
    )]
    NothingAdmitted,
    /// An option of a provider.
    #[error(transparent)]
    Providers(#[from] ProviderArgumentsError),
    /// The evidence of a provider cannot be appraised.
    #[error("--attestor {attestor} cannot be used")]
    Unusable {
        attestor: &'static str,
        source: Unusable,
    },
    /// The TPM settings.
    #[error(transparent)]
    TpmSettings(#[from] TpmSettingsError),
    /// An option that would be passed over.
    #[error("{option} says nothing with --attestor {attestor}: leave it out")]
    NotOfAttestor {
        option: &'static str,
        attestor: &'static str,
    },
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The cluster's instances cannot be listed.
    #[error("--aws-inventory")]
    AwsInventory(#[from] InvalidInventory),
    /// A file, or what is in it.
    #[error(transparent)]
    Standalone(#[from] StandaloneError),
    /// The management cluster.
    #[error(transparent)]
    Management(#[from] AccessError),
    /// Signals.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}

/// Answers requests until SIGTERM or SIGINT.
pub(crate) async fn run(arguments: Arguments) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    let stop = either(&mut terminate, &mut interrupt);
    let providers = arguments.providers.open()?;
    match arguments.standalone.choice() {
        Some(choice) => standalone::run(choice, providers, stop).await,
        None => Box::pin(management::run(arguments.management, providers, stop)).await,
    }
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    let signal = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal, "stopping");
}
