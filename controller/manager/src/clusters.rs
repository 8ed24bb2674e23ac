//! `clusters`: lists the Clusters of a management cluster, with their attestors and conditions.

use clap::Args;
use node_attestation_core::crd::conditions::{AUTO_APPROVE_PATHS_CLOSED, READY};
use node_attestation_runtime::cluster_states::{self, ClusterState};

use crate::error::BoxError;
use crate::query::{QueryOptions, aligned};

#[derive(Debug, Args)]
#[expect(clippy::doc_markdown, reason = "the comments are the help")]
pub(crate) struct ClustersCommand {
    /// List only Clusters without a KubeletAuthentication
    #[arg(long)]
    unmanaged: bool,
    #[command(flatten)]
    options: QueryOptions,
}

/// Runs the command, and returns its output.
pub(crate) async fn run(command: ClustersCommand) -> Result<String, BoxError> {
    let ClustersCommand { unmanaged, options } = command;
    let access = options.access().await?;
    let mut states = cluster_states::list(&access, options.namespace.as_deref()).await?;
    let is_unmanaged =
        |state: &ClusterState| state.kubelet_authentication.is_none() && state.unreadable.is_none();
    states.retain(|state| !unmanaged || is_unmanaged(state));
    options.output.print(&states, || table(&states))
}

fn table(states: &[ClusterState]) -> String {
    let header = [
        "NAMESPACE",
        "CLUSTER",
        "ATTESTORS",
        "READY",
        "READY-REASON",
        "PATHS-CLOSED",
        "PATHS-REASON",
        "NODES",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(states.iter().map(row));
    aligned(&rows)
}

fn row(state: &ClusterState) -> [String; 8] {
    let authentication = state.kubelet_authentication.as_ref();
    let status = authentication.and_then(|one| one.status.as_ref());
    let attestors = authentication.map_or_else(
        || match state.unreadable {
            Some(_) => "<unreadable>".to_owned(),
            None => "<none>".to_owned(),
        },
        |one| one.spec.authorized_attestors.join(","),
    );
    let of = |kind: &str| {
        let mut all = status.iter().flat_map(|status| &status.conditions);
        let found = all.find(|one| one.type_ == kind);
        let texts = found.map_or(["-", "-"], |one| [&*one.status, &*one.reason]);
        texts.map(str::to_owned)
    };
    let [ready, why] = of(READY);
    let [closed, why_not] = of(AUTO_APPROVE_PATHS_CLOSED);
    let nodes = status.and_then(|status| status.identities);
    [
        state.namespace.clone(),
        state.name.clone(),
        attestors,
        ready,
        why,
        closed,
        why_not,
        nodes.map_or_else(|| "-".to_owned(), |nodes| nodes.live.to_string()),
    ]
}
