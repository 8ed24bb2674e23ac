//! The arguments of the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{
    Arg, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
    value_parser,
};
use clap_complete::Shell;

use super::{answer, exit_codes};
use crate::log::{Log, show};
use crate::settings::{Entry, ProviderSchema, Removed};
use crate::setup::{KUBELET_KUBECONFIG, Setup};

const SETTINGS: &str = "Settings";

/// Kubelet exec credential plugin: obtains and renews the kubelet's client certificate with attestation.
///
/// The kubelet runs this program without arguments and receives a credential. Run a subcommand to
/// inspect or set up this node.
#[derive(Debug, Parser)]
#[command(version, disable_help_subcommand = true, max_term_width = 100)]
#[command(after_long_help = exit_codes::of_help())]
pub(super) struct Arguments {
    /// Settings file.
    #[arg(long, global = true, value_name = "FILE", help_heading = SETTINGS)]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) log: Log,
    /// The settings that have a flag, each with the text given to it.
    #[arg(skip)]
    pub(super) settings: Vec<(Entry, OsString)>,
    /// The options of removed settings that are given.
    #[arg(skip)]
    pub(super) removed: Vec<Removed>,
    /// The time limit of every run, for tests.
    #[arg(long, global = true, hide = true, value_name = "SECONDS")]
    pub(super) time_limit: Option<u64>,
    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print one exec credential, as the kubelet receives it.
    Credential(Kubelet),
    /// Show the certificate, its next renewal, the pending request and the last failure.
    Status {
        #[command(flatten)]
        kubelet: Kubelet,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Check everything that the node needs to join and renew, and list causes and remedies. Read-only.
    Doctor {
        #[command(flatten)]
        kubelet: Kubelet,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Show the provider ID and the node name that a request would claim. Works offline.
    Identify {
        /// Output format.
        #[arg(long, short, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Decode a request, evidence or the state directory. Offline, read-only, without secrets.
    Inspect {
        #[command(subcommand)]
        object: Inspected,
    },
    /// Explain a reason that the controller reported: its meaning and its remedy. Works offline.
    ExplainReason {
        /// Name of the reason, such as `NameTaken`.
        name: String,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Print the certificate signing request without its secrets. Does not send or store it.
    Csr {
        /// Print the request without sending it (required).
        #[arg(long, required = true)]
        dry_run: bool,
        /// Print the complete request, with tokens and signatures.
        #[arg(long)]
        show_secrets: bool,
        #[command(flatten)]
        kubelet: Kubelet,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t)]
        output: Request,
    },
    /// Check the settings.
    Config {
        #[command(subcommand)]
        action: ConfigAction,
    },
    /// Print metrics for the textfile collector of `node_exporter`.
    Metrics {
        /// Write to this file instead of standard output.
        #[arg(long, value_name = "FILE")]
        textfile: Option<PathBuf>,
    },
    /// Write an archive without secrets for a support ticket.
    SupportBundle {
        /// Path of the archive, a tar file (default: a new file in the current directory).
        file: Option<PathBuf>,
        #[command(flatten)]
        kubelet: Kubelet,
    },
    /// Renew the certificate now if renewal is due. Ignores the back-off.
    Renew {
        /// Renew even if renewal is not due.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        kubelet: Kubelet,
    },
    /// Delete the certificate, the pending request, the last failure and set-aside files.
    ///
    /// Lists the files and asks for a confirmation. Without a terminal, `--yes` is required. The node
    /// then needs its bootstrap credential to enroll again.
    Reset {
        /// Do not ask for a confirmation.
        #[arg(long, short)]
        yes: bool,
    },
    /// Configure the kubelet to use this plugin, and enroll the node. For `ExecStartPre=` of the kubelet's unit.
    ///
    /// Uses the bootstrap credential of `kubeadm join`, and takes effect when the kubelet starts.
    /// Does not change anything if no bootstrap credential exists.
    Setup(Setup),
    /// Print configuration for the kubelet, kubeadm or Cluster API.
    Render {
        /// Path of the plugin on the node (default: the path in the packages,
        /// `/usr/bin/kubelet-authenticator-PROVIDER`).
        #[arg(long, global = true, value_name = "FILE")]
        command: Option<PathBuf>,
        #[command(subcommand)]
        file: Rendered,
    },
    /// Print the version.
    Version {
        /// Output format.
        #[arg(long, short, value_enum, default_value_t)]
        output: Version,
    },
    /// Print a shell completion script.
    Completion {
        /// Name of the shell.
        shell: Shell,
    },
    /// Print the manual page of the program or of a command.
    Man {
        /// Command, such as `config check` (default: the program).
        command: Vec<String>,
    },
}

/// The kubelet of a command.
#[derive(Debug, Args)]
pub(super) struct Kubelet {
    /// Kubeconfig of the kubelet, which identifies the cluster.
    #[arg(long, value_name = "FILE", default_value = KUBELET_KUBECONFIG)]
    pub(super) kubelet_kubeconfig: PathBuf,
}

/// A file that `render` prints.
#[derive(Debug, Subcommand)]
pub(super) enum Rendered {
    /// A kubeconfig for the kubelet, for the cluster in the bootstrap kubeconfig.
    Kubeconfig,
    /// A drop-in for the kubelet's systemd unit that runs `setup`.
    KubeletDropIn,
    /// A `KubeadmConfigTemplate` of Cluster API with the drop-in.
    KubeadmConfig(KubeadmConfigOptions),
    /// The `variables` and `patches` of a `ClusterClass` whose Clusters can enable the drop-in for their
    /// workers.
    ClusterClass(ClusterClassOptions),
}

/// The actions of `config`.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigAction {
    /// Validate the settings, and show each with its source.
    Check {
        /// Settings file (default: the file in `--config`, or the default file).
        file: Option<PathBuf>,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t)]
        output: OutputFormat,
    },
}

/// An object that `inspect` decodes.
#[derive(Debug, Subcommand)]
pub(super) enum Inspected {
    /// Requests in PEM, or in the output of `kubectl get csr -o yaml`.
    Request(Input),
    /// The evidence in a request: its JSON, or the request in PEM.
    Evidence(Input),
    /// The state directory.
    Store {
        /// Path of the directory (default: the directory in the settings).
        directory: Option<PathBuf>,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t)]
        output: OutputFormat,
    },
}

/// The input of `inspect`, and the format of its output.
#[derive(Debug, Args)]
pub(super) struct Input {
    /// Input file (default: `-`, standard input).
    pub(super) file: Option<PathBuf>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    pub(super) output: OutputFormat,
}

/// The options of a `ClusterClass`.
#[derive(Debug, Clone, Args)]
pub(super) struct ClusterClassOptions {
    /// API version of the `KubeadmConfigTemplate`s and the `KubeadmControlPlaneTemplate` in the class.
    #[arg(long, value_enum, default_value_t)]
    pub(super) api_version: BootstrapApi,
    /// Fields that the templates do not set, separated by commas. The patch creates these fields, and appends to all
    /// others.
    #[arg(long, value_delimiter = ',', value_name = "FIELDS", value_parser = [
        "files",
        "preKubeadmCommands",
        "kubeletExtraArgs",
        "nodeRegistration",
        "joinConfiguration",
    ])]
    pub(super) absent: Vec<String>,
    /// Also patch the machinePool templates (the class must have at least one).
    #[arg(long)]
    pub(super) machine_pools: bool,
    /// Also patch the `KubeadmControlPlaneTemplate` of the class. kubeadm then waits 10 minutes for the
    /// Node.
    #[arg(long)]
    pub(super) control_plane: bool,
    /// Fields that the `KubeadmControlPlaneTemplate` does not set. `--absent` is for the templates of the workers.
    #[arg(long, requires = "control_plane", value_delimiter = ',', value_name = "FIELDS", value_parser = [
        "files",
        "preKubeadmCommands",
        "kubeletExtraArgs",
        "nodeRegistration",
        "timeouts",
        "joinConfiguration",
        "initConfiguration",
    ])]
    pub(super) control_plane_absent: Vec<String>,
    #[command(flatten)]
    pub(super) templates: Templates,
}

/// The options of a `KubeadmConfigTemplate`.
#[derive(Debug, Clone, Args)]
pub(super) struct KubeadmConfigOptions {
    /// Name of the object.
    #[arg(long, default_value = "md-0")]
    pub(super) name: String,
    /// API version of the object.
    #[arg(long, value_enum, default_value_t)]
    pub(super) api_version: BootstrapApi,
    /// Format of the bootstrap data.
    #[arg(long, default_value = "cloud-config", value_parser = ["cloud-config", "ignition"])]
    pub(super) format: String,
    /// Print a `KubeadmControlPlaneTemplate` instead. kubeadm then waits 10 minutes for the Node.
    #[arg(long)]
    pub(super) control_plane: bool,
    #[command(flatten)]
    pub(super) templates: Templates,
}

/// The cloud-init templates that derive the names of a machine and its node from instance metadata.
#[derive(Debug, Clone, Args)]
pub(super) struct Templates {
    /// cloud-init template for the provider ID of a machine: `{{ ds.meta_data.provider_id }}`. Required if the plugin
    /// cannot determine the provider ID. The kubelet writes the provider ID to the Node.
    #[arg(long, value_name = "TEMPLATE", value_parser = NonEmptyStringValueParser::new())]
    pub(super) provider_id_template: Option<String>,
    /// cloud-init template for the node name: `{{ ds.meta_data.local_hostname }}` (default: the private
    /// DNS name of the instance for aws, otherwise the host name).
    #[arg(long, value_name = "TEMPLATE", value_parser = NonEmptyStringValueParser::new())]
    pub(super) node_name_template: Option<String>,
}

/// A version of `bootstrap.cluster.x-k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum BootstrapApi {
    V1beta1,
    #[default]
    V1beta2,
}

/// The output formats of most commands.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum OutputFormat {
    #[default]
    Table,
    Json,
    Yaml,
}

/// The output formats of `csr`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum Request {
    #[default]
    Pem,
    Json,
    Yaml,
}

/// The output formats of `version`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum Version {
    #[default]
    Text,
    Json,
    Yaml,
}

impl Arguments {
    /// Parses the command line. For a help request or an error, it prints the answer and returns the exit code.
    pub(super) fn parse(schema: &ProviderSchema) -> Result<Self, ExitCode> {
        command(schema)
            .try_get_matches()
            .and_then(|mut matches| {
                let given = schema.entries().filter_map(|entry| {
                    let value = matches.remove_one(entry.flag)?;
                    Some((entry, value))
                });
                let settings = given.collect();
                let removed = schema.removed();
                let removed = removed.filter(|it| matches.contains_id(it.flag)).collect();
                let arguments = Self::from_arg_matches_mut(&mut matches)?;
                Ok(Self {
                    settings,
                    removed,
                    ..arguments
                })
            })
            .map_err(|error| {
                let text = error.render().to_string();
                if error.use_stderr() {
                    show(&text);
                } else {
                    // If standard output is closed, no output remains for the error.
                    drop(answer::print(&text));
                }
                u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
            })
    }
}

/// The settings file, and the texts of settings.
pub(super) type GivenSettings = (Option<PathBuf>, Vec<(Entry, OsString)>);

/// The settings file and the settings, if all arguments have the form `--option=value`; `None` leaves the arguments to
/// the parser.
///
/// client-go calls the plugin every hour on every node, and the parser would take more time than the rest of the run.
pub(super) fn settings_alone(
    schema: &ProviderSchema,
    arguments: impl Iterator<Item = OsString>,
) -> Option<GivenSettings> {
    let (mut config, mut settings) = (None, Vec::<(Entry, OsString)>::new());
    for argument in arguments {
        let (name, value) = argument.to_str()?.strip_prefix("--")?.split_once('=')?;
        if name == "config" {
            if value.is_empty() || config.replace(value.into()).is_some() {
                return None;
            }
            continue;
        }
        let entry = schema.entries().find(|entry| entry.flag == name)?;
        if settings.iter().any(|(given, _)| given.name == entry.name) {
            return None;
        }
        settings.push((entry, value.into()));
    }
    Some((config, settings))
}

/// The command line of the plugin with these settings.
pub(super) fn command(schema: &ProviderSchema) -> clap::Command {
    let flags = schema.entries().map(|entry| {
        Arg::new(entry.flag)
            .long(entry.flag)
            .global(true)
            .value_name(entry.value_name)
            .value_parser(value_parser!(OsString))
            .help(entry.help)
            .help_heading(SETTINGS)
    });
    // Removed settings have a separate error, which contains their replacement.
    let removed = schema.removed().map(|removed| {
        Arg::new(removed.flag)
            .long(removed.flag)
            .global(true)
            .hide(true)
            .value_parser(value_parser!(OsString))
    });
    Arguments::command()
        .name(format!("kubelet-authenticator-{}", schema.provider))
        .args(flags)
        .args(removed)
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::names::Provider;

    use super::*;

    #[test]
    fn the_argument_parser_is_skipped_only_if_all_arguments_are_settings() {
        let schema = ProviderSchema {
            provider: Provider::NULL,
            settings: &[],
            expiration_seconds: 3600,
        };
        let of = |arguments: &[&str]| {
            let arguments = arguments.iter().map(OsString::from);
            let (config, settings) = settings_alone(&schema, arguments)?;
            let settings = settings
                .into_iter()
                .map(|(entry, value)| (entry.name, value));
            Some((config, settings.collect::<Vec<_>>()))
        };

        assert_eq!(of(&[]), Some((None, Vec::new())));
        let both = of(&["--config=/c", "--node-name=a=b"]);
        let settings = vec![("nodeName", OsString::from("a=b"))];
        assert_eq!(both, Some((Some("/c".into()), settings)));
        for arguments in [
            &["status"][..],
            &["--node-name", "a"],
            &["--node-name=a", "--node-name=b"],
            &["--config=/c", "--config=/d"],
            &["--config="],
            &["--node-name=a", "-v"],
            &["--timeout-seconds=5"],
            &["--nodename=a"],
        ] {
            assert_eq!(of(arguments), None, "{arguments:?}");
        }
    }
}
