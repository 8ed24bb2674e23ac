//! `run`: a fleet, by what a management cluster says; or one workload cluster, by hand.

mod attestors;
mod management;
mod standalone;
mod standalone_aws;
mod standalone_tpm;

use std::io;

use kubelet_attestation::errors::error_chain;
use node_attestation_aws::inventory::InvalidInventory;
use node_attestation_aws::sts::InvalidStsSettings;
use node_attestation_runtime::standalone::StandaloneError;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::attestors::Attestors;
use self::standalone_tpm::TpmSettingsError;
use crate::access::AccessError;
use crate::aws::{Aws, AwsArguments, AwsArgumentsError};
use crate::file::FileError;
use crate::tpm::{NoTpm, TpmArguments, TpmArgumentsError};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Admit machines that prove nothing: whoever holds a machine's bootstrap token is that machine
    #[arg(long)]
    allow_insecure: bool,
    #[command(flatten)]
    aws: AwsArguments,
    #[command(flatten)]
    tpm: TpmArguments,
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
    /// An option for AWS.
    #[error(transparent)]
    Aws(#[from] AwsArgumentsError),
    /// An option for TPMs.
    #[error(transparent)]
    Tpm(#[from] TpmArgumentsError),
    /// AWS cannot be asked.
    #[error("--attestor aws cannot be used: {0}")]
    NoAws(String),
    /// TPMs cannot be appraised.
    #[error("--attestor tpm cannot be used")]
    NoTpm(#[from] NoTpm),
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
    let Arguments {
        allow_insecure,
        aws,
        tpm,
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
    let attestors = Attestors {
        allow_insecure,
        aws: opened(aws)?,
        tpm: tpm.open()?,
        config_maps: None,
    };
    match standalone.choice() {
        Some(choice) => standalone::run(choice, attestors, stop).await,
        None => Box::pin(management::run(management, attestors, stop)).await,
    }
}

/// What is given must be right; what the system lacks, and a proxy in the environment that cannot be
/// used, matters only where AWS is.
fn opened(arguments: AwsArguments) -> Result<Result<Aws, String>, AwsArgumentsError> {
    match arguments.open() {
        Ok(aws) => Ok(Ok(aws)),
        Err(AwsArgumentsError::Sts(
            error @ (InvalidStsSettings::NoAuthorities | InvalidStsSettings::Proxy(_)),
        )) => Ok(Err(error_chain(&error))),
        Err(error) => Err(error),
    }
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    let signal = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal, "stopping");
}
