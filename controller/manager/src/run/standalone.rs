//! Runs the controller for one workload cluster, without a management cluster.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args as _, Command, Id};
use kubelet_attestation::ensure;
use kubelet_attestation::names::Provider;
use node_attestation_aws::inventory::{InventorySettings, Place, TaggedInstances};
use node_attestation_core::crd::{KubeletAuthentication, KubeletAuthenticationSpec};
use node_attestation_core::inventory::Inventory;
use node_attestation_runtime::external_signer::ExternalSigner;
use node_attestation_runtime::file_inventory::ClusterInventory;
use node_attestation_runtime::metrics::Metrics;
use node_attestation_runtime::settings_file;
use node_attestation_runtime::standalone::{CaKey, Settings, Standalone};

use super::management::ManagementArguments;
use crate::aws::{AwsUnavailable, TenancyArguments};
use crate::error::{BoxError, Hinted, explain};
use crate::providers::{OpenedProviders, Providers};

#[derive(Debug, clap::Args)]
#[expect(clippy::doc_markdown, reason = "the comments are the help")]
#[command(next_help_heading = "One workload cluster, without a management cluster")]
pub(super) struct StandaloneArguments {
    /// Kubeconfig of the workload cluster
    #[arg(
        long, value_name = "FILE", conflicts_with_all = of_management(),
        requires_all = ["settings", "inventory", "ca_cert", "signing_key"]
    )]
    pub(super) workload_kubeconfig: Option<PathBuf>,
    /// Settings: one KubeletAuthentication, as YAML or JSON. `render settings` prints an example
    #[arg(long, value_name = "FILE", requires = "workload_kubeconfig")]
    settings: Option<PathBuf>,
    /// List of the cluster's machines. The controller reads the list again when the file changes
    #[arg(long, value_name = "FILE", requires = "workload_kubeconfig")]
    inventory: Option<PathBuf>,
    /// PEM certificate of the CA for client certificates (kube-apiserver --client-ca-file)
    #[arg(long, value_name = "FILE", requires = "workload_kubeconfig")]
    ca_cert: Option<PathBuf>,
    /// Key of that CA, as PEM in PKCS#8, PKCS#1 or SEC1 form
    #[arg(
        long,
        value_name = "FILE",
        group = "signing_key",
        requires = "workload_kubeconfig"
    )]
    ca_key: Option<PathBuf>,
}

/// The options that apply only with a management cluster.
fn of_management() -> Vec<Id> {
    let command = ManagementArguments::augment_args(Command::new("run"));
    let command = TenancyArguments::augment_args(command);
    let arguments = command.get_arguments();
    arguments
        .map(|argument| argument.get_id().clone())
        .collect()
}

/// Serves the cluster until `stop` is ready.
pub(super) async fn run(
    arguments: StandaloneArguments,
    providers: OpenedProviders,
    external: Option<ExternalSigner>,
    metrics: Metrics,
    stop: impl Future<Output = ()>,
) -> Result<(), BoxError> {
    // clap ensures that all required options are set.
    let file = arguments.settings.unwrap_or_default();
    let authentication = settings_file::read(&file).map_err(explain("--settings"))?;
    let providers = providers.standalone();
    let spec = &authentication.spec;
    ensure!(
        !providers.allow_insecure || is_authorized(spec, &Provider::INSECURE),
        "--allow-insecure has no effect, because spec.authorizedAttestors in the --settings file does not contain \
         insecure: remove the option"
            .into()
    );
    let file = arguments.inventory.unwrap_or_default();
    let mut inventory = ClusterInventory::open(&file).map_err(explain("--inventory"))?;
    if inventory.machines.is_none() {
        let instances = instances(spec, &providers);
        inventory.machines = Some(instances.map_err(explain("--inventory: awsInstances"))?);
    }
    let settings = Settings {
        workload_kubeconfig: arguments.workload_kubeconfig.unwrap_or_default(),
        ca_cert: arguments.ca_cert.unwrap_or_default(),
        ca_key: external.map_or_else(
            || CaKey::File(arguments.ca_key.unwrap_or_default()),
            CaKey::External,
        ),
        inventory,
        authentication,
        metrics,
    };
    let verifiers = |authentication: &KubeletAuthentication, cluster: &str| {
        providers.verifiers(authentication, cluster)
    };
    let controller = Standalone::load(settings, verifiers).await?;
    Box::pin(controller.run(stop)).await.map_err(|refused| {
        let cure = refused.cure().to_owned();
        Hinted::new(refused, cure).into()
    })
}

fn is_authorized(spec: &KubeletAuthenticationSpec, provider: &Provider) -> bool {
    let attestors = spec.authorized_attestors.iter();
    attestors.into_iter().any(|name| name == provider.as_str())
}

/// Returns the inventory of the instances that `spec.aws` selects.
fn instances(
    spec: &KubeletAuthenticationSpec,
    providers: &Providers,
) -> Result<Arc<dyn Inventory>, BoxError> {
    let aws = spec.aws.clone().unwrap_or_default();
    for (field, is_empty) in [
        ("accounts", aws.accounts.is_empty()),
        ("regions", aws.regions.is_empty()),
        ("requiredTags", aws.required_tags.is_empty()),
    ] {
        ensure!(
            !is_empty,
            format!("spec.aws.{field} in the --settings file requires at least one entry").into()
        );
    }
    let regions = |account: &String| {
        let place = |region: &String| Place {
            account: account.clone(),
            region: region.clone(),
        };
        aws.regions.iter().map(place).collect::<Vec<_>>()
    };
    let settings = InventorySettings {
        places: aws.accounts.iter().flat_map(regions).collect(),
        tags: aws.required_tags.clone(),
        node_name: aws.node_name,
    };
    let clients = providers.aws.as_ref().map_err(AwsUnavailable::clone)?;
    let instances = clients.instances.clone();
    Ok(Arc::new(TaggedInstances::new(instances, settings)?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{ArgAction, Parser};

    use super::*;

    /// The options of `run` that apply both with and without a management cluster. Every other option applies to only
    /// one of the two modes, and is rejected together with the options of the other mode.
    const OF_BOTH: [&str; 10] = [
        "allow-insecure",
        "aws-allow-instance-profile",
        "aws-ec2-endpoint",
        "aws-endpoint-ca",
        "aws-extra-document-version",
        "aws-extra-signers",
        "aws-sts-endpoint",
        "health-addr",
        "metrics-bind-address",
        "tpm-challenge-keys",
    ];

    /// The options of a standalone controller, except `--workload-kubeconfig`.
    const OF_STANDALONE: [&str; 4] = ["ca-cert", "ca-key", "inventory", "settings"];

    /// The signer holds the CA keys in both modes, and replaces `--ca-key`.
    const SIGNER: &str = "signer-endpoint";

    const VALID: [&str; 6] = [
        "run",
        "--workload-kubeconfig=a",
        "--settings=b",
        "--inventory=c",
        "--ca-cert=d",
        "--ca-key=e",
    ];

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        _arguments: super::super::Arguments,
    }

    /// All options, each as an argument with a valid value.
    fn options() -> Vec<(String, String)> {
        let command = super::super::Arguments::augment_args(Command::new("run"));
        let options = command.get_arguments().map(|option| {
            let name = option.get_long().unwrap();
            let values = option.get_possible_values();
            let value = values.first().map(|value| value.get_name().to_owned());
            let value = value.unwrap_or_else(|| {
                match name {
                    "aws-sts-endpoint" => "eu-west-1=sts.example.com",
                    "aws-ec2-endpoint" => "eu-west-1=https://ec2.example.com",
                    "aws-sts-region" => "eu-west-1",
                    "metrics-bind-address" | "health-addr" => ":1",
                    "signer-endpoint" => "unix:///s",
                    name if name.ends_with("period") || name.ends_with("timeout") => "1m",
                    _ => "1",
                }
                .to_owned()
            });
            let argument = if matches!(option.get_action(), ArgAction::SetTrue) {
                format!("--{name}")
            } else {
                format!("--{name}={value}")
            };
            (name.to_owned(), argument)
        });
        options.collect()
    }

    #[test]
    fn an_option_of_a_management_cluster_is_refused_without_one() {
        Line::try_parse_from(VALID).unwrap();
        let mut accepted = BTreeSet::new();
        for (name, argument) in options() {
            if VALID
                .iter()
                .any(|valid| valid.starts_with(&format!("--{name}=")))
            {
                continue;
            }
            let parsed = Line::try_parse_from(VALID.into_iter().chain([argument.as_str()]));
            match parsed {
                Ok(_) => {
                    accepted.insert(name);
                }
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("cannot be used with"), "{argument}: {error}");
                }
            }
        }
        assert_eq!(accepted, OF_BOTH.map(String::from).into());
    }

    #[test]
    fn an_option_of_a_standalone_controller_is_refused_without_its_kubeconfig() {
        let mut refused = BTreeSet::new();
        for (name, argument) in options() {
            if name == "workload-kubeconfig" {
                continue;
            }
            // If the option requires other options, those options must also be for a management cluster.
            let parsed = Line::try_parse_from(["run", &argument]);
            let error = parsed.map_or_else(|error| error.to_string(), |_| String::new());
            if error.contains("--workload-kubeconfig <FILE>") {
                refused.insert(name);
            }
        }
        assert_eq!(refused, OF_STANDALONE.map(String::from).into());
    }

    #[test]
    fn a_standalone_controller_requires_each_of_its_options() {
        for missing in 2..VALID.len() {
            let mut line = VALID.to_vec();
            let option = line.remove(missing);
            let (option, _) = option.split_once('=').unwrap();

            let error = Line::try_parse_from(line).unwrap_err().to_string();

            assert!(error.contains(option), "{error}");
        }
        let signed = [&VALID[..5], &["--signer-endpoint=unix:///s"]].concat();
        Line::try_parse_from(signed).unwrap();
        let both = [&VALID[..], &["--signer-endpoint=unix:///s"]].concat();
        let error = Line::try_parse_from(both).unwrap_err().to_string();
        assert!(error.contains(SIGNER), "{error}");
    }
}
