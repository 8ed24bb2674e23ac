//! `cluster check`: checks a management cluster and its Clusters, or one cluster without a management cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::{ClusterAccess, EgressPolicy};
use node_attestation_runtime::cluster_check::{self, Checked, State};
use node_attestation_runtime::explain::NodePrediction;
use serde_json::json;

use crate::access::NAMESPACE;
use crate::aws::ec2_endpoint;
use crate::error::BoxError;
use crate::providers::Providers;
use crate::query::{QueryOptions, aligned, wrapped};

/// The maximum number of predictions in the table.
const MAX_ROWS: usize = 500;

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
    /// Check a controller without a management cluster. FILE contains its settings, as for `run`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster", "kubeconfig", "context", "namespace"])]
    settings: Option<PathBuf>,
    /// Also check the workload cluster of this controller, with this kubeconfig
    #[arg(long, value_name = "FILE", requires = "settings")]
    workload_kubeconfig: Option<PathBuf>,
    /// The namespace of the controller, with its own kubeconfigs
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    controller_namespace: String,
    #[command(flatten)]
    predictions: Predictions,
    /// Count warnings as failures
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    options: QueryOptions,
    /// Accept workload clusters whose API server has a loopback address
    #[arg(long, hide = true)]
    insecure_allow_loopback: bool,
}

/// The options of predictions.
#[derive(Debug, Args)]
struct Predictions {
    /// Predict the answer to the first request from each existing Node, before the plugin is installed: its machine,
    /// its name, and the reason for a refusal. Requires the permissions of `explain`
    #[arg(long, conflicts_with = "settings")]
    nodes: bool,
    /// For the predictions, read the state, the tags and the name of each instance from EC2, with your AWS credentials
    #[arg(long, requires = "nodes")]
    ec2: bool,
    /// EC2 URL for a region, instead of its public endpoint
    #[arg(
        long = "aws-ec2-endpoint",
        value_name = "REGION=URL",
        value_parser = ec2_endpoint,
        requires = "ec2"
    )]
    aws_ec2_endpoints: Vec<(String, String)>,
}

/// Runs the command, and returns its output and whether all checks passed.
pub(crate) async fn run(command: ClusterCommand) -> Result<(String, bool), BoxError> {
    let Act::Check(check) = command.act;
    let Check {
        cluster,
        settings,
        workload_kubeconfig,
        controller_namespace,
        predictions: asked,
        strict,
        options,
        insecure_allow_loopback,
    } = *check;
    // The heading for checks that do not belong to a Cluster.
    let heading = match &settings {
        Some(_) => "A cluster without a management cluster",
        None => "The management cluster",
    };
    let mut predictions = Vec::new();
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
        let egress = EgressPolicy {
            insecure_allow_loopback,
        };
        let namespace = &controller_namespace;
        let mut checks = cluster_check::check(&access, only.as_ref(), egress, namespace).await;
        if asked.nodes {
            let ec2 = asked.ec2.then_some(asked.aws_ec2_endpoints);
            let providers = Providers::foreseeing(&access, ec2)?;
            let verifiers = |authentication: &KubeletAuthentication, cluster_uid: &str| {
                providers.verifiers(authentication, cluster_uid)
            };
            let predicted = cluster_check::predict(&access, &mut checks, egress, verifiers);
            predictions = Box::pin(predicted).await;
        }
        checks
    };
    let is_bad = |check: &Checked| match check.state {
        State::Fail => true,
        State::Warn => strict,
        State::Pass | State::Skip => false,
    };
    let failing = checks.iter().filter(|check| is_bad(check)).count();
    let mut objects = json!({"failing": failing, "checks": checks});
    if asked.nodes
        && let Some(fields) = objects.as_object_mut()
    {
        fields.insert("nodes".to_owned(), json!(predictions));
    }
    let text = options.output.print(&objects, || {
        table(heading, &checks) + &of_nodes(&predictions)
    })?;
    Ok((text, failing == 0))
}

/// Formats the predictions as a table. Long lists are truncated, because JSON is the format for long lists.
fn of_nodes(predictions: &[NodePrediction]) -> String {
    if predictions.is_empty() {
        return String::new();
    }
    let titles = [
        "CLUSTER", "NODE", "ATTESTOR", "OUTCOME", "REASON", "NAME", "MACHINE", "IDENTITY",
        "EXPIRES",
    ];
    let text = |value: Option<&String>| value.map_or("-", String::as_str).to_owned();
    let rows = predictions.iter().take(MAX_ROWS).map(|one| {
        let evidence = [&one.endorsement_key, &one.instance, &one.provider_id];
        let reason = Some(one.reason).filter(|reason| !reason.is_empty());
        [
            text(one.cluster.as_ref()),
            one.node.clone(),
            text(one.attestor.as_ref()),
            one.outcome.to_owned(),
            reason.unwrap_or("-").to_owned(),
            text(one.node_name.as_ref()),
            text(one.machine.as_ref()),
            text(evidence.into_iter().flatten().next()),
            one.certificate_expiry
                .clone()
                .unwrap_or_else(|| "unknown".to_owned()),
        ]
    });
    let rows: Vec<_> = [titles.map(str::to_owned)]
        .into_iter()
        .chain(rows)
        .collect();
    let mut table = String::from("\n") + &aligned(&rows);
    let more = predictions.len().saturating_sub(MAX_ROWS);
    if more > 0 {
        let more = format!("{more} more rows; to list all rows, use -o json\n");
        table.push_str(&more);
    }
    table
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
            // A URL can be longer than a line, so it is not wrapped.
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
