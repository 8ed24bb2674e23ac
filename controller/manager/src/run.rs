//! `run`: all clusters of a management cluster; or one workload cluster, by hand.

mod diagnostics;
mod management;
mod standalone;
mod standalone_aws;
mod standalone_tpm;

use tokio::signal::unix::{SignalKind, signal};

use crate::error::{BoxError, explain};
use crate::providers::ProviderArguments;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    providers: ProviderArguments,
    #[command(flatten)]
    management: management::ManagementArguments,
    #[command(flatten)]
    diagnostics: diagnostics::DiagnosticsArguments,
    #[command(flatten)]
    standalone: standalone::StandaloneArguments,
}

/// Answers requests until SIGTERM or SIGINT.
pub(crate) async fn run(arguments: Arguments) -> Result<(), BoxError> {
    let on = |kind| signal(kind).map_err(explain("cannot wait for signals"));
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let stop = async {
        let signal = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal, "stopping");
    };
    let (metrics, _servers) = arguments.diagnostics.open().await?;
    let providers = arguments.providers.open(&metrics)?;
    if arguments.standalone.workload_kubeconfig.is_some() {
        Box::pin(standalone::run(
            arguments.standalone,
            providers,
            metrics,
            stop,
        ))
        .await
    } else {
        Box::pin(management::run(
            arguments.management,
            providers,
            metrics,
            stop,
        ))
        .await
    }
}
