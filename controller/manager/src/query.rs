//! Commands that read a management cluster: their options, and the form of their output.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use node_attestation_runtime::client::ClusterAccess;

use crate::access::{access, persons_kubeconfig};
use crate::error::BoxError;

/// The spaces between two columns.
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

/// A form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// The objects.
    Json,
}

impl QueryOptions {
    /// The management cluster.
    pub(crate) async fn access(&self) -> Result<ClusterAccess, BoxError> {
        let file = self.kubeconfig.clone().or_else(persons_kubeconfig);
        let missing = "--kubeconfig of the management cluster is not given, and neither KUBECONFIG nor \
                       ~/.kube/config has one";
        access(file.as_deref(), missing).await
    }
}

/// A table, with columns as wide as their contents.
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
