//! `cluster check`: checks a management cluster and its Clusters, or one cluster without a management cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::{ClusterAccess, EgressPolicy};
use node_attestation_runtime::cluster_check::{self, Checked, State};
use serde_json::json;

use crate::error::BoxError;
use crate::query::{QueryOptions, wrapped};

/// The width of a state, including the space after it.
const MARGIN: usize = 6;

#[derive(Debug, Args)]
pub(crate) struct ClusterCommand {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Check the management cluster and its Clusters: definitions, permissions, CA, kubeconfig, auto-approval paths,
    /// Nodes and node identities, pending requests, versions, the controller's Lease. The exit code is 20 if a
    /// check fails
    Check(Box<Check>),
}

#[derive(Debug, Args)]
struct Check {
    /// The Cluster, as NAME or NAMESPACE/NAME. Default: all Clusters
    #[arg(value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Check these settings of a controller without a management cluster, as for `run`, instead of a management
    /// cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster", "kubeconfig", "context", "namespace"])]
    settings: Option<PathBuf>,
    /// Kubeconfig of the workload cluster for these settings: check it too
    #[arg(long, value_name = "FILE", requires = "settings")]
    workload_kubeconfig: Option<PathBuf>,
    /// Count warnings as failures
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    options: QueryOptions,
    /// Accept workload clusters whose API server has a loopback address
    #[arg(long, hide = true)]
    insecure_allow_loopback: bool,
}

/// Runs the command. Returns its output, and whether every check passed.
pub(crate) async fn run(command: ClusterCommand) -> Result<(String, bool), BoxError> {
    let Act::Check(check) = command.act;
    let Check {
        cluster,
        settings,
        workload_kubeconfig,
        strict,
        options,
        insecure_allow_loopback,
    } = *check;
    // The heading of checks that do not belong to a Cluster.
    let heading = match &settings {
        Some(_) => "A cluster without a management cluster",
        None => "The management cluster",
    };
    let checks = if let Some(settings) = settings {
        let workload = match workload_kubeconfig {
            Some(file) => Some(ClusterAccess::from_kubeconfig(&file).await?),
            None => None,
        };
        cluster_check::check_settings(&settings, workload).await
    } else {
        let access = options.access().await?;
        let only = cluster.map(|text| match text.parse::<ObjectKey>() {
            Ok(key) => key,
            Err(_) => ObjectKey::new(options.namespace_of(&access), text),
        });
        let reach = EgressPolicy {
            insecure_allow_loopback,
        };
        cluster_check::check(&access, only.as_ref(), reach).await
    };
    let is_bad = |check: &Checked| match check.state {
        State::Fail => true,
        State::Warn => strict,
        State::Pass | State::Skip => false,
    };
    let failing = checks.iter().filter(|check| is_bad(check)).count();
    let objects = json!({"failing": failing, "checks": checks});
    let text = options.output.print(&objects, || table(heading, &checks))?;
    Ok((text, failing == 0))
}

fn table(heading: &str, checks: &[Checked]) -> String {
    let mut text = String::new();
    let mut before = None;
    for check in checks {
        if before != Some(&check.cluster) {
            if before.is_some() {
                text.push('\n');
            }
            match &check.cluster {
                Some(cluster) => text.extend(["Cluster ", cluster, "\n"]),
                None => text.extend([heading, "\n"]),
            }
            before = Some(&check.cluster);
        }
        let words = format!("{}: {}", check.name, check.finding);
        wrapped(check.state.as_str(), MARGIN, &words, &mut text);
        if !check.cure.is_empty() {
            wrapped("", MARGIN, &format!("cure: {}", check.cure), &mut text);
        }
        if matches!(check.state, State::Warn | State::Fail) {
            // A URL can be longer than a line, and is not wrapped.
            text.extend([&" ".repeat(MARGIN), "see: ", &check.link, "\n"]);
        }
    }
    let counts = [State::Pass, State::Warn, State::Fail, State::Skip].map(|state| {
        let count = checks.iter().filter(|check| check.state == state).count();
        format!("{count} {}", state.as_str())
    });
    let count = checks.len().to_string();
    text.extend(["\n", &count, " checks: ", &counts.join(", "), "\n"]);
    text
}
