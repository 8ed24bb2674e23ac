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

use super::answer;
use crate::log::{Log, show};
use crate::settings::{Entry, ProviderSchema, Removed};
use crate::setup::{KUBELET_KUBECONFIG, Setup};

const SETTINGS: &str = "Settings";

/// Keeps a kubelet's client certificate fresh.
///
/// client-go runs this program without arguments, as a kubeconfig's exec plugin; it then answers
/// with one exec credential. The commands are for people.
#[derive(Debug, Parser)]
#[command(version, disable_help_subcommand = true, max_term_width = 100)]
pub(super) struct Arguments {
    /// The settings file.
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
    /// Print one exec credential, as for client-go.
    Credential(Kubelet),
    /// Show the certificate, its next renewal, the pending request and the last failure.
    Status {
        #[command(flatten)]
        kubelet: Kubelet,
        /// The format of the output.
        #[arg(long, short, value_enum, default_value_t)]
        output: Report,
    },
    /// Check everything that a node needs to join, and say what is wrong and what to do. Changes
    /// nothing.
    Doctor {
        #[command(flatten)]
        kubelet: Kubelet,
        /// The format of the output.
        #[arg(long, short, value_enum, default_value_t)]
        output: Report,
    },
    /// Show which machine and node this is, as a request would claim it. Asks no API server.
    Identify {
        /// The format of the output.
        #[arg(long, short, value_enum, default_value_t)]
        output: Report,
    },
    /// Decode a request, evidence or the state directory. Offline; changes nothing, and shows no secret.
    Inspect {
        #[command(subcommand)]
        object: Inspected,
    },
    /// Build the request and print it, without what is secret in it; nothing is sent or stored.
    Csr {
        /// Required: there is no other way yet.
        #[arg(long, required = true)]
        dry_run: bool,
        /// Print the request as it would be sent, with tokens and signatures.
        #[arg(long)]
        show_secrets: bool,
        #[command(flatten)]
        kubelet: Kubelet,
        /// The format of the output.
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
        /// Replace this file in the place of printing.
        #[arg(long, value_name = "FILE")]
        textfile: Option<PathBuf>,
    },
    /// Write an archive for a support ticket, without secrets.
    SupportBundle {
        /// The archive, a tar file; one in the current folder if not given.
        file: Option<PathBuf>,
        #[command(flatten)]
        kubelet: Kubelet,
    },
    /// Get a new certificate if one is due, whatever failure is remembered.
    Renew {
        /// Also if none is due.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        kubelet: Kubelet,
    },
    /// Forget the certificate, the pending request and the last failure.
    Reset,
    /// Have the kubelet run this plugin from its next start on, and enrol; for `ExecStartPre=` of its
    /// unit.
    ///
    /// Takes over from `kubeadm join`. Does nothing where there is nothing to take over.
    Setup(Setup),
    /// Print a file that has a kubelet run this plugin.
    Render {
        /// The path of the plugin on the node. The default is that of the packages,
        /// `/usr/bin/kubelet-authenticator-PROVIDER`.
        #[arg(long, global = true, value_name = "FILE")]
        command: Option<PathBuf>,
        #[command(subcommand)]
        file: Rendered,
    },
    /// Print the version.
    Version {
        /// The format of the output.
        #[arg(long, short, value_enum, default_value_t)]
        output: Version,
    },
    /// Print the completion script of a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page, for `man`.
    Man,
}

/// The kubelet of a command.
#[derive(Debug, Args)]
pub(super) struct Kubelet {
    /// The kubelet's kubeconfig, which names the cluster.
    #[arg(long, value_name = "FILE", default_value = KUBELET_KUBECONFIG)]
    pub(super) kubelet_kubeconfig: PathBuf,
}

/// A file that `render` prints.
#[derive(Debug, Subcommand)]
pub(super) enum Rendered {
    /// The kubelet's kubeconfig, for the cluster of the bootstrap kubeconfig.
    Kubeconfig,
    /// The drop-in of the kubelet's unit that runs `setup`.
    KubeletDropIn,
    /// A `KubeadmConfigTemplate` of Cluster API with the drop-in.
    KubeadmConfig(KubeadmConfigOptions),
    /// The `variables` and `patches` of a `ClusterClass` whose workers get the drop-in in Clusters that
    /// say so.
    ClusterClass(ClusterClassOptions),
}

/// The actions of `config`.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigAction {
    /// Read the settings as a run does, and show each with its source.
    Check {
        /// The settings file; that of `--config` or the default one if not given.
        file: Option<PathBuf>,
        /// The format of the output.
        #[arg(long, short, value_enum, default_value_t)]
        output: Report,
    },
}

/// An object that `inspect` decodes.
#[derive(Debug, Subcommand)]
pub(super) enum Inspected {
    /// A request in PEM, or as `kubectl get csr -o yaml` prints one or several.
    Request(Input),
    /// The evidence of a request: its JSON, or the request in PEM.
    Evidence(Input),
    /// The state directory.
    Store {
        /// The directory; that of the settings if not given.
        directory: Option<PathBuf>,
        /// The format of the output.
        #[arg(long, short, value_enum, default_value_t)]
        output: Report,
    },
}

/// The input of `inspect`, and the format of its output.
#[derive(Debug, Args)]
pub(super) struct Input {
    /// The file; `-` or nothing for standard input.
    pub(super) file: Option<PathBuf>,
    /// The format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    pub(super) output: Report,
}

/// The options of a `ClusterClass`.
#[derive(Debug, Clone, Args)]
pub(super) struct ClusterClassOptions {
    /// The API version of the class's `KubeadmConfigTemplate`s.
    #[arg(long, value_enum, default_value_t)]
    pub(super) api_version: BootstrapApi,
    /// The fields that these templates do not have, separated by commas: they are made. To the
    /// others, which must be there, something is added.
    #[arg(long, value_delimiter = ',', value_name = "FIELDS", value_parser = [
        "files",
        "preKubeadmCommands",
        "kubeletExtraArgs",
        "nodeRegistration",
        "joinConfiguration",
    ])]
    pub(super) absent: Vec<String>,
    /// Also patch the templates of the class's machinePools, of which there must be some.
    #[arg(long)]
    pub(super) machine_pools: bool,
    #[command(flatten)]
    pub(super) templates: Templates,
}

/// The options of a `KubeadmConfigTemplate`.
#[derive(Debug, Clone, Args)]
pub(super) struct KubeadmConfigOptions {
    /// Its name.
    #[arg(long, default_value = "md-0")]
    pub(super) name: String,
    /// Its API version.
    #[arg(long, value_enum, default_value_t)]
    pub(super) api_version: BootstrapApi,
    /// The format of the bootstrap data.
    #[arg(long, default_value = "cloud-config", value_parser = ["cloud-config", "ignition"])]
    pub(super) format: String,
    /// Print a `KubeadmControlPlaneTemplate` instead: kubeadm then waits ten minutes for the machine's Node.
    #[arg(long)]
    pub(super) control_plane: bool,
    #[command(flatten)]
    pub(super) templates: Templates,
}

/// The templates of cloud-init by which instance metadata name a machine and its node.
#[derive(Debug, Clone, Args)]
pub(super) struct Templates {
    /// The machines' provider IDs, as a template of cloud-init: `{{ ds.meta_data.provider_id }}`. For
    /// plugins that do not find it themselves; the kubelet gives it to the Node.
    #[arg(long, value_name = "TEMPLATE", value_parser = NonEmptyStringValueParser::new())]
    pub(super) provider_id_template: Option<String>,
    /// The nodes' names, as a template of cloud-init: `{{ ds.meta_data.local_hostname }}`. Without it,
    /// a node of aws has its instance's private DNS name, and any other its host's name.
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
pub(super) enum Report {
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
                    // If standard output is closed, the error cannot be shown anywhere.
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
/// client-go calls the plugin every hour on every node, and the parser would cost more than the rest of such a run.
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
    // Removed settings have a separate error, which names their replacement.
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
    fn only_arguments_that_are_all_settings_skip_the_parser() {
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
