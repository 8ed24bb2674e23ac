//! A controller for the rubber-stamp provider `null`. This controller is also an example of an infrastructure provider
//! that embeds the libraries.
//!
//! An infrastructure provider adds only a verifier. The libraries provide the checks, the node identities, the signing
//! and the answers. In addition, tests can make this program crash, panic, and issue certificates that expire within
//! seconds.
//!
//! With `--kubeconfig`, this program serves a management cluster. Every cluster accepts the rubber stamp, in addition
//! to its authorized attestors.

mod crash;
mod management;
mod verifier;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::NodeName;
use node_attestation_core::verifier::Verifier;
use node_attestation_runtime::file_inventory::ClusterInventory;
use node_attestation_runtime::metrics::Metrics;
use node_attestation_runtime::settings_file;
use node_attestation_runtime::standalone::{CaKey, Settings, Standalone};
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;

use crash::{CrashPoint, CrashingRecords, CrashingStore};
use verifier::RubberStamp;

/// Checks, approves and signs the requests of kubelets that come with a rubber stamp.
#[derive(Debug, Parser)]
#[command(name = "null-attestation-controller")]
enum Cli {
    /// Serve one workload cluster, or the workload clusters of a management cluster
    Run(Box<Run>),
}

#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    management: management::Management,
    #[arg(long, requires_all = ["ca_cert", "ca_key", "inventory", "settings"])]
    #[arg(required_unless_present = "kubeconfig")]
    workload_kubeconfig: Option<PathBuf>,
    #[arg(long)]
    ca_cert: Option<PathBuf>,
    #[arg(long)]
    ca_key: Option<PathBuf>,
    #[arg(long)]
    inventory: Option<PathBuf>,
    #[arg(long)]
    settings: Option<PathBuf>,
    /// Lifetime of certificates, instead of the lifetime in the settings. Can be shorter than 600 s, the minimum of
    /// Kubernetes signers
    #[arg(long, value_parser = humantime::parse_duration)]
    certificate_duration: Option<Duration>,
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[arg(short, long)]
    verbose: bool,
    /// Kill the program, as with kill -9, immediately after this step
    #[arg(long, value_enum)]
    crash_after: Option<CrashPoint>,
    /// Panic while the evidence of this node is appraised
    #[arg(long, value_parser = NodeName::parse)]
    panic_for: Option<NodeName>,
    /// Deny the evidence of this node, for a reason of this provider
    #[arg(long, value_parser = NodeName::parse)]
    deny_for: Option<NodeName>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Cli::Run(run) = Cli::parse();
    let level = if run.verbose {
        Level::DEBUG
    } else {
        Level::INFO
    };
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false);
    // The log levels of other libraries are off: the tests only read log lines of the project.
    let filter = tracing_subscriber::filter::Targets::new()
        .with_target("node_attestation_core", level)
        .with_target("node_attestation_runtime", level)
        .with_target("null_attestation_controller", level);
    {
        use tracing_subscriber::layer::SubscriberExt as _;
        use tracing_subscriber::util::SubscriberInitExt as _;
        let log = log.with_max_level(level);
        match run.log_format {
            LogFormat::Text => log.finish().with(filter).init(),
            LogFormat::Json => log.json().finish().with(filter).init(),
        }
    }
    let mut terminate = signal(SignalKind::terminate()).expect("a handler for SIGTERM");
    let stop = async {
        terminate.recv().await;
        tracing::info!("stopping");
    };
    let stamp: Arc<dyn Verifier> = Arc::new(RubberStamp::new(
        run.panic_for.clone(),
        run.deny_for.clone(),
    ));
    let served = match &run.management.kubeconfig {
        Some(kubeconfig) => management::serve(kubeconfig, &run.management, stamp, stop)
            .await
            .map_err(|error| error_chain(&error)),
        None => serve(*run, stamp, stop)
            .await
            .map_err(|error| error_chain(&*error)),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}

async fn serve(
    run: Run,
    stamp: Arc<dyn Verifier>,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let mut authentication = settings_file::read(&run.settings.unwrap_or_default())?;
    if let Some(duration) = run.certificate_duration {
        let seconds = u32::try_from(duration.as_secs())?;
        authentication.spec.certificate.expiration_seconds = Some(seconds);
    }
    let settings = Settings {
        workload_kubeconfig: run.workload_kubeconfig.unwrap_or_default(),
        ca_cert: run.ca_cert.unwrap_or_default(),
        ca_key: CaKey::File(run.ca_key.unwrap_or_default()),
        inventory: ClusterInventory::open(&run.inventory.unwrap_or_default())?,
        authentication,
        metrics: Metrics::default(),
    };
    let mut controller = Standalone::load(settings, management::verifiers(stamp)).await?;
    if let Some(point) = run.crash_after {
        controller = controller
            .with_store(|store| Arc::new(CrashingStore::new(store, point)))
            .with_records(|records| Arc::new(CrashingRecords::new(records, point)));
    }
    controller.run(stop).await?;
    Ok(())
}
