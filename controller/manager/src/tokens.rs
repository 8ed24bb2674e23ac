//! `tokens recreate`: recreates the bootstrap tokens of Machines.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::{ClusterAccess, EgressPolicy};
use node_attestation_runtime::clock::now;
use node_attestation_runtime::machine_tokens::{MachineToken, MachineTokens};

use crate::error::BoxError;
use crate::query::{QueryOptions, aligned};

/// The limits of `--ttl`.
const SHORTEST: Duration = Duration::from_mins(1);
const LONGEST: Duration = Duration::from_hours(24);

#[derive(Debug, Args)]
pub(crate) struct TokensCommand {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Recreate the bootstrap tokens of Machines in the workload cluster, with the same ID and secret, which their
    /// nodes already have. Use this command if nodes without a valid certificate cannot rejoin because their tokens
    /// have expired
    Recreate(Box<Recreate>),
}

#[derive(Debug, Args)]
struct Recreate {
    /// The Cluster
    cluster: String,
    /// The Machines
    #[arg(value_name = "MACHINE", required_unless_present = "all")]
    machines: Vec<String>,
    /// All Machines of the Cluster
    #[arg(long, conflicts_with = "machines")]
    all: bool,
    /// Lifetime of the tokens, from 1m to 24h. A token that is valid for longer keeps its expiry time
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = lifetime)]
    ttl: Duration,
    /// Recreate tokens even if attestation is not enforced in the Cluster. Each token then permits a join as any
    /// node
    #[arg(long)]
    without_enforcement: bool,
    /// Kubeconfig of the workload cluster, instead of Cluster API's kubeconfig Secret
    #[arg(long, value_name = "FILE")]
    workload_kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    options: QueryOptions,
    /// Accept a kubeconfig whose API server has a loopback address
    #[arg(long, hide = true)]
    insecure_allow_loopback: bool,
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (SHORTEST..=LONGEST).contains(&duration) {
        Ok(duration)
    } else {
        Err("must be from 1m to 24h".to_owned())
    }
}

/// Runs the command, and returns its output and the Machines whose tokens could not be recreated.
pub(crate) async fn run(command: TokensCommand) -> Result<(String, Vec<String>), BoxError> {
    let Act::Recreate(recreate) = command.act;
    let Recreate {
        cluster,
        machines,
        all: _,
        ttl,
        without_enforcement,
        workload_kubeconfig,
        options,
        insecure_allow_loopback,
    } = *recreate;
    let management = options.access().await?;
    let cluster = ObjectKey::new(options.namespace_of(&management), cluster);
    let workload = match workload_kubeconfig {
        Some(file) => Some(ClusterAccess::from_kubeconfig(&file).await?),
        None => None,
    };
    let egress = EgressPolicy {
        insecure_allow_loopback,
    };
    let tokens = MachineTokens::of_cluster(&management, &cluster, workload, egress).await?;
    let machines = machines.into_iter().collect();
    let recreated = tokens.recreate(&machines, ttl, without_enforcement, now());
    let recreated = recreated.await?;
    let text = options.output.print(&recreated, || table(&recreated))?;
    Ok((text, errors(&recreated)))
}

/// The error messages, each with the name of its Machine.
fn errors(tokens: &[MachineToken]) -> Vec<String> {
    let failed = tokens.iter().filter_map(|token| {
        let error = token.error.as_ref()?;
        Some(format!("Machine {}: {error}", token.machine))
    });
    failed.collect()
}

fn table(tokens: &[MachineToken]) -> String {
    let mut rows = vec![["MACHINE", "TOKEN", "EXPIRES"].map(str::to_owned)];
    rows.extend(tokens.iter().map(|token| {
        let (id, expires) = match (&token.token_id, &token.expires) {
            _ if token.error.is_some() => ("error", "-"),
            (None, _) => ("none", "-"),
            (Some(id), None) => (id.as_str(), "never"),
            (Some(id), Some(expires)) => (id.as_str(), expires.as_str()),
        };
        [token.machine.clone(), id.to_owned(), expires.to_owned()]
    }));
    aligned(&rows)
}
