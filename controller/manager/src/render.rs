//! `render`: prints example files, admission policies and permissions.

use std::io::{self, Read as _};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use kubelet_attestation::ensure;
use kubelet_attestation::secret::Secret;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::{ClusterAccess, EgressPolicy};
use node_attestation_runtime::hardening::floor::{self, Floor};
use node_attestation_runtime::{settings_file, workload_access};

use crate::access::NAMESPACE;
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
    /// Print a KubeletAuthentication for `run --settings`, with all defaults
    Settings {
        /// The name of the cluster
        #[arg(long, value_name = "NAME")]
        cluster_name: String,
        /// The attestation provider
        #[arg(long, value_name = "PROVIDER", value_parser = attestors())]
        attestor: String,
    },
    /// Print admission policies for the management cluster, with minimum requirements for the settings of tenants. They
    /// apply in namespaces with the label attestation.cluster.x-k8s.io/floor=enforced
    Floor(Parameters),
    /// Print the controller's permissions in a workload cluster, for a service account in that cluster
    WorkloadRights {
        /// Omit the permission for Secrets in kube-system, which `bootstrapTokens: Manage` needs
        #[arg(long)]
        without_bootstrap_tokens: bool,
    },
    /// Print the Secret with the controller's own kubeconfig for a Cluster, for `run --workload-access`. Standard input
    /// must contain a token of the service account
    WorkloadSecret(SecretParameters),
    /// Print the controller's permissions for the Secrets of single Clusters, instead of all Secrets
    SecretRoles(RolesParameters),
    /// Print the definition of NodeIdentity, and the controller's permissions for NodeIdentities in a workload cluster,
    /// for `run --workload-kubeconfig`
    WorkloadIdentities {
        /// The controller in the workload cluster, as user:NAME or group:NAME
        #[arg(long, value_name = "SUBJECT", value_parser = subject, default_value = USER)]
        controller: String,
    },
}

#[derive(Debug, Args)]
struct SecretParameters {
    /// The Cluster
    #[arg(value_name = "NAMESPACE/NAME")]
    cluster: ObjectKey,
    /// Kubeconfig of the workload cluster, from which the command takes the API server and its CA
    #[arg(long, value_name = "FILE")]
    workload_kubeconfig: PathBuf,
    /// The namespace of the controller
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    controller_namespace: String,
    /// Accept a kubeconfig whose API server has a loopback address
    #[arg(long, hide = true)]
    insecure_allow_loopback: bool,
}

#[derive(Debug, Args)]
struct RolesParameters {
    /// The Clusters
    #[arg(value_name = "NAMESPACE/NAME", required = true)]
    clusters: Vec<ObjectKey>,
    /// The controller, as user:NAME or group:NAME
    #[arg(long, value_name = "SUBJECT", value_parser = subject, default_value = CONTROLLER)]
    controller: String,
    /// The namespace of the controller
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    controller_namespace: String,
}

#[derive(Debug, Args)]
#[expect(clippy::doc_markdown, reason = "the comments are the help")]
struct Parameters {
    /// An attestation provider that tenants can authorize. Repeat the option for each provider
    #[arg(
        long = "attestor",
        value_name = "PROVIDER",
        value_parser = attestors(),
        default_values = ["aws", "tpm"]
    )]
    attestors: Vec<String>,
    /// The controller, as user:NAME or group:NAME. Only this subject can create NodeIdentities. Repeat the option for
    /// each part of a split fleet
    #[arg(
        long = "controller",
        value_name = "SUBJECT",
        value_parser = subject,
        default_value = CONTROLLER
    )]
    controllers: Vec<String>,
    /// A subject that is only allowed to revoke and reset node identities. Repeat the option for each subject
    #[arg(long = "responder", value_name = "SUBJECT", value_parser = subject)]
    responders: Vec<String>,
    /// A subject to which the policies do not apply, such as the user of clusterctl move. Repeat the option for each
    /// subject
    #[arg(long, value_name = "SUBJECT", value_parser = subject)]
    exempt: Vec<String>,
}

/// The service account of the controller in the manifests, as a subject.
const CONTROLLER: &str =
    "user:system:serviceaccount:node-attestation-system:node-attestation-controller";

/// The user of the controller in `packaging/rbac/workload-cluster.yaml`, as a subject.
const USER: &str = "user:node-attestation-controller";

/// The maximum length of the standard input with a token.
const MAX_INPUT_LEN: u64 = 64 * 1024;

/// The first lines in the rendered settings.
const ABOUT: &str = "\
# The settings of one cluster, for `node-attestation-controller run --settings`. Each field of spec except the first two
# has its default, and can be removed.
";

/// Runs the command, and returns its output.
pub(crate) async fn run(command: RenderCommand) -> Result<String, BoxError> {
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
        File::WorkloadRights {
            without_bootstrap_tokens,
        } => Ok(workload_access::rights(!without_bootstrap_tokens)),
        File::WorkloadSecret(parameters) => secret(parameters).await,
        File::SecretRoles(parameters) => {
            let RolesParameters {
                clusters,
                controller,
                controller_namespace,
            } = parameters;
            let roles = workload_access::roles(&clusters, &controller_namespace, &controller);
            Ok(roles?)
        }
        File::WorkloadIdentities { controller } => Ok(workload_access::identities(&controller)?),
    }
}

async fn secret(parameters: SecretParameters) -> Result<String, BoxError> {
    let SecretParameters {
        cluster,
        workload_kubeconfig,
        controller_namespace,
        insecure_allow_loopback,
    } = parameters;
    let workload = ClusterAccess::from_kubeconfig(&workload_kubeconfig).await?;
    let mut token = String::new();
    let mut input = io::stdin().take(MAX_INPUT_LEN + 1);
    let length = input.read_to_string(&mut token);
    let length = length.map_err(explain("cannot read the token from standard input"))?;
    let token = Secret::new(token);
    let is_short = u64::try_from(length).is_ok_and(|length| length <= MAX_INPUT_LEN);
    ensure!(is_short, "standard input is too long for a token".into());
    let egress = EgressPolicy {
        insecure_allow_loopback,
    };
    let server = (workload.server(), workload.ca_certificates());
    let token = token.expose().trim();
    let secret = workload_access::secret(&cluster, &controller_namespace, server, token, egress);
    Ok(secret?)
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
