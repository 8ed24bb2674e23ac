//! `render`: prints example files.

use clap::{Args, Subcommand};
use node_attestation_runtime::settings_file;

use crate::error::{BoxError, explain};
use crate::providers::attestors;

#[derive(Debug, Args)]
pub(crate) struct RenderCommand {
    #[command(subcommand)]
    file: File,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::doc_markdown, reason = "the comments are the help")]
enum File {
    /// Print a KubeletAuthentication for `run --settings`, with every default
    Settings {
        /// The name of the cluster
        #[arg(long, value_name = "NAME")]
        cluster_name: String,
        /// The attestation provider
        #[arg(long, value_name = "PROVIDER", value_parser = attestors())]
        attestor: String,
    },
}

/// The first lines of the settings.
const ABOUT: &str = "\
# The settings of one cluster, for `node-attestation-controller run --settings`. Each field of spec but the first two has
# its default, and can be removed.
";

/// Runs the command, and returns its output.
pub(crate) fn run(command: RenderCommand) -> Result<String, BoxError> {
    let File::Settings {
        cluster_name,
        attestor,
    } = command.file;
    let settings = settings_file::example(&cluster_name, &attestor);
    let settings = settings.map_err(explain("these settings would be invalid"))?;
    Ok(format!("{ABOUT}{settings}"))
}
