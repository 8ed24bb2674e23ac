//! `run`: serves all clusters of a management cluster, or one workload cluster without a management cluster.

mod diagnostics;
mod management;
mod standalone;

use node_attestation_runtime::external_signer::{ExternalSigner, SignerEndpoint};
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
    signer: SignerArguments,
    #[command(flatten)]
    standalone: standalone::StandaloneArguments,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "CA keys")]
struct SignerArguments {
    /// Unix socket of the external signer, which holds CA keys. It signs for Clusters whose Secret has no tls.key, or
    /// for --ca-cert instead of --ca-key. With ",kubelet-serving" at the end, the controller also signs the serving
    /// certificates of these Clusters, instead of kube-controller-manager
    #[arg(
        long,
        value_name = "unix://PATH[,kubelet-serving]",
        group = "signing_key"
    )]
    signer_endpoint: Option<SignerEndpoint>,
}

/// Serves requests until SIGTERM or SIGINT.
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
    let endpoint = arguments.signer.signer_endpoint;
    let external = endpoint.map(|endpoint| ExternalSigner::new(endpoint, metrics.clone()));
    if arguments.standalone.workload_kubeconfig.is_some() {
        Box::pin(standalone::run(
            arguments.standalone,
            providers,
            external,
            metrics,
            stop,
        ))
        .await
    } else {
        Box::pin(management::run(
            arguments.management,
            providers,
            external,
            metrics,
            stop,
        ))
        .await
    }
}
