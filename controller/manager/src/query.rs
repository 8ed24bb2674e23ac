//! Questions of a person to a management cluster: its place, and the form of the answer.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use node_attestation_runtime::admin::IdentitiesError;
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::cluster_states::ClusterStatesError;

use crate::access::{AccessError, access, persons_kubeconfig};

/// Between two columns of a table.
const GAP: usize = 3;

/// The options of every command about a management cluster.
#[derive(Debug, Args)]
pub(crate) struct QueryOptions {
    /// Kubeconfig of the management cluster; without it that of KUBECONFIG or ~/.kube/config, or the
    /// cluster that this runs in
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// The namespace of the Cluster; for lists: of all, if none is given
    #[arg(short, long, value_name = "NAME", global = true)]
    pub(crate) namespace: Option<String>,
    /// The form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, global = true, default_value_t = Format::Table)]
    pub(crate) output: Format,
}

/// A form of what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// The objects.
    Json,
}

/// There is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// The management cluster.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The API server, of records.
    #[error(transparent)]
    Identities(#[from] IdentitiesError),
    /// The API server, of Clusters.
    #[error(transparent)]
    ClusterStates(#[from] ClusterStatesError),
    /// An object has no JSON.
    #[error("the objects cannot be printed")]
    Json(#[from] serde_json::Error),
}

impl QueryOptions {
    /// The management cluster.
    pub(crate) async fn access(&self) -> Result<ClusterAccess, QueryError> {
        let file = self.kubeconfig.clone().or_else(persons_kubeconfig);
        let missing = "--kubeconfig of the management cluster is not given, and neither KUBECONFIG nor \
                       ~/.kube/config has one";
        Ok(access(file.as_deref(), missing).await?)
    }
}

/// Columns as wide as what is in them.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0) + GAP
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a text does not fail.
            let _ = write!(line, "{cell:width$}");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
