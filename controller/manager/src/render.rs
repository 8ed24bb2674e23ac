//! `render`: prints example files and admission policies.

use clap::{Args, Subcommand};
use node_attestation_runtime::hardening::floor::{self, Floor};
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
    /// Print admission policies for the management cluster that tenants cannot go below. They apply in namespaces with
    /// the label attestation.cluster.x-k8s.io/floor=enforced
    Floor(Parameters),
}

#[derive(Debug, Args)]
#[expect(clippy::doc_markdown, reason = "the comments are the help")]
struct Parameters {
    /// An attestation provider that tenants can authorize. Repeat the option for each
    #[arg(
        long = "attestor",
        value_name = "PROVIDER",
        value_parser = attestors(),
        default_values = ["aws", "tpm"]
    )]
    attestors: Vec<String>,
    /// The controller, as user:NAME or group:NAME. Only it writes NodeIdentities. Repeat the option for each part of a
    /// split fleet
    #[arg(
        long = "controller",
        value_name = "SUBJECT",
        value_parser = subject,
        default_value = "user:system:serviceaccount:node-attestation-system:node-attestation-controller"
    )]
    controllers: Vec<String>,
    /// A subject that revokes and resets node identities. Repeat the option for each
    #[arg(long = "responder", value_name = "SUBJECT", value_parser = subject)]
    responders: Vec<String>,
    /// A subject to which no policy applies, such as the user of clusterctl move. Repeat the option for each
    #[arg(long, value_name = "SUBJECT", value_parser = subject)]
    exempt: Vec<String>,
}

/// The first lines in the rendered settings.
const ABOUT: &str = "\
# The settings of one cluster, for `node-attestation-controller run --settings`. Each field of spec but the first two has
# its default, and can be removed.
";

/// Runs the command, and returns its output.
pub(crate) fn run(command: RenderCommand) -> Result<String, BoxError> {
    match command.file {
        File::Settings {
            cluster_name,
            attestor,
        } => {
            let settings = settings_file::example(&cluster_name, &attestor);
            let settings = settings.map_err(explain("these settings would be invalid"))?;
            Ok(format!("{ABOUT}{settings}"))
        }
        File::Floor(parameters) => {
            let Parameters {
                attestors,
                controllers,
                responders,
                exempt,
            } = parameters;
            let floor = Floor {
                attestors,
                controllers,
                responders,
                exempt,
            };
            Ok(floor::yaml(&floor)?)
        }
    }
}

/// Parses a user or a group. The result contains its kind, so that a user and a group with the same name differ.
fn subject(text: &str) -> Result<String, String> {
    let kinds = ["user:", "group:"];
    let mut names = kinds.iter().filter_map(|kind| text.strip_prefix(kind));
    match names.next() {
        Some(name) if !name.is_empty() => Ok(text.to_owned()),
        Some(_) | None => Err("want user:NAME or group:NAME".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_a_user_or_a_group_with_a_name() {
        for text in ["user:a", "group:system:masters"] {
            assert_eq!(subject(text), Ok(text.to_owned()));
        }
        for text in ["", "a", "user:", "group:", "User:a", "serviceaccount:a"] {
            let error = "want user:NAME or group:NAME".to_owned();
            assert_eq!(subject(text), Err(error), "{text}");
        }
    }
}
