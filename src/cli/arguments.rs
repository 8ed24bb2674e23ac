//! What may stand on the command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::attester::Attester;
use crate::kubelet;
use crate::log::{Format, Log};
use crate::settings::Key;
use crate::setup;

/// Keeps a kubelet's client certificate fresh.
///
/// client-go runs this program without arguments, as a kubeconfig's exec plugin; it then answers
/// with one exec credential. The commands are for people.
#[derive(Debug, Parser)]
#[command(version, disable_help_subcommand = true, max_term_width = 100)]
pub(super) struct Arguments {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
struct Flags {
    /// The settings file.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node's name.
    #[arg(long, global = true, value_name = "NAME")]
    node_name: Option<OsString>,
    /// What its infrastructure calls this machine.
    #[arg(long, global = true, value_name = "ID")]
    provider_id: Option<OsString>,
    /// The kubeconfig to enrol with.
    #[arg(long, global = true, value_name = "FILE")]
    bootstrap_kubeconfig: Option<OsString>,
    /// The kubeconfig that says which cluster, where nothing else does.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<OsString>,
    /// Where the credential is kept.
    #[arg(long, global = true, value_name = "DIR")]
    state_directory: Option<OsString>,
    /// Which cluster evidence is for.
    #[arg(long, global = true, value_name = "TEXT")]
    audience: Option<OsString>,
    /// Who is to sign.
    #[arg(long, global = true, value_name = "NAME")]
    signer_name: Option<OsString>,
    /// The lifetime to ask for.
    #[arg(long, global = true, value_name = "SECONDS")]
    expiration_seconds: Option<OsString>,
    /// How long a run may take without a valid credential.
    #[arg(long, global = true, value_name = "SECONDS")]
    timeout_seconds: Option<OsString>,
    /// As whom an AWS instance calls STS: instanceIdentityRole or instanceProfile.
    #[arg(long, global = true, value_name = "PRINCIPAL")]
    aws_principal: Option<OsString>,
    /// Which name of an AWS instance its node has: hostname, localHostname or instanceID.
    #[arg(long, global = true, value_name = "POLICY")]
    aws_node_name: Option<OsString>,
    /// The host of STS, where it is not the region's own.
    #[arg(long, global = true, value_name = "HOST")]
    aws_sts_endpoint: Option<OsString>,
    /// Where the instance metadata service is, where it is not at its usual addresses.
    #[arg(long, global = true, value_name = "URL")]
    aws_metadata_endpoint: Option<OsString>,
    /// The TPM.
    #[arg(long, global = true, value_name = "FILE")]
    tpm_device: Option<OsString>,
    /// The TPM where it is no device: swtpm:host=HOST,port=PORT.
    #[arg(long, global = true, value_name = "ADDRESS")]
    tpm_tcti: Option<OsString>,
    /// Which endorsement key says which TPM this is: auto, rsa-2048, ecc-p256 or ecc-p384.
    #[arg(long, global = true, value_name = "KEY")]
    tpm_endorsement_key: Option<OsString>,
    /// The registers of the TPM that are quoted, such as 0,2,4,7.
    #[arg(long, global = true, value_name = "NUMBERS")]
    tpm_pcrs: Option<OsString>,
    /// The program that speaks to the TPM, where it is not in its usual places.
    #[arg(long, global = true, value_name = "FILE")]
    tpm_device_program: Option<OsString>,
    /// How lines on standard error look.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        help_heading = "Output"
    )]
    log_format: LogFormat,
    /// Say what is done, step by step.
    #[arg(long, short, global = true, help_heading = "Output")]
    verbose: bool,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum LogFormat {
    #[default]
    Text,
    Json,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print one exec credential, as for client-go.
    Credential,
    /// Show the certificate, its next renewal, the pending request and the last failure.
    Status {
        /// How to show it.
        #[arg(long, short, value_enum, default_value_t)]
        output: Report,
    },
    /// Build the request and print it, without what is secret in it; nothing is sent or stored.
    Csr {
        /// Required: there is no other way yet.
        #[arg(long, required = true)]
        dry_run: bool,
        /// Print the request as it would be sent, with tokens and signatures.
        #[arg(long)]
        show_secrets: bool,
        /// How to print it.
        #[arg(long, short, value_enum, default_value_t)]
        output: Request,
    },
    /// Get a new certificate if one is due, whatever failure is remembered.
    Renew {
        /// Also if none is due.
        #[arg(long)]
        force: bool,
    },
    /// Forget the certificate, the pending request and the last failure.
    Reset,
    /// Have the kubelet run this plugin from its next start on, and enrol; for `ExecStartPre=` of its
    /// unit.
    ///
    /// Takes over from `kubeadm join`. Does nothing where there is nothing to take over.
    Setup(SetupOptions),
    /// Print a file that has a kubelet run this plugin.
    Render {
        /// The plugin on the node; this program's own path if not given.
        #[arg(long, value_name = "FILE")]
        command: Option<PathBuf>,
        #[command(subcommand)]
        file: Rendered,
    },
    /// Print the version.
    Version {
        /// How to print it.
        #[arg(long, short, value_enum, default_value_t)]
        output: Version,
    },
    /// Print the completion script of a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// The files of `setup`.
#[derive(Debug, Args)]
pub(super) struct SetupOptions {
    /// The kubeconfig whose credential is taken over; the kubelet's own for a node that has joined
    /// before.
    #[arg(long, value_name = "FILE", default_value = setup::BOOTSTRAP_KUBECONFIG)]
    pub(super) from: PathBuf,
    /// The kubelet's kubeconfig.
    #[arg(long, value_name = "FILE", default_value = setup::KUBELET_KUBECONFIG)]
    pub(super) kubelet_kubeconfig: PathBuf,
    /// The file that systemd reads the kubelet's arguments from.
    #[arg(long, value_name = "FILE", default_value = setup::ENVIRONMENT_FILE)]
    pub(super) environment_file: PathBuf,
    /// In the place of the file that kubeadm writes the kubelet's arguments to, for tests.
    #[arg(long, hide = true, default_value = kubelet::KUBEADM_FLAGS)]
    pub(super) kubeadm_flags: PathBuf,
    /// The kubelet's folder of certificates.
    #[arg(long, value_name = "DIR", default_value = setup::CERT_DIR)]
    pub(super) cert_dir: PathBuf,
    /// Restore a kubeconfig with the stored certificate, and kubeadm's arguments.
    #[arg(long, conflicts_with = "from")]
    pub(super) undo: bool,
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

/// The options of a `ClusterClass`.
#[derive(Debug, Args)]
pub(super) struct ClusterClassOptions {
    /// The API version of the class's `KubeadmConfigTemplate`s.
    #[arg(long, value_enum, default_value_t)]
    pub(super) api_version: BootstrapApi,
    /// The fields that these templates do not have, separated by commas: they are made. To the
    /// others, which must be there, something is added.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FIELDS")]
    pub(super) absent: Vec<Absent>,
    /// Also patch the templates of the class's machinePools, of which there must be some.
    #[arg(long)]
    pub(super) machine_pools: bool,
    #[command(flatten)]
    pub(super) templates: Templates,
}

/// The options of a `KubeadmConfigTemplate`.
#[derive(Debug, Args)]
pub(super) struct KubeadmConfigOptions {
    /// Its name.
    #[arg(long, default_value = "md-0")]
    pub(super) name: String,
    /// Its API version.
    #[arg(long, value_enum, default_value_t)]
    pub(super) api_version: BootstrapApi,
    /// The format of the bootstrap data.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: BootstrapFormat,
    #[command(flatten)]
    pub(super) templates: Templates,
}

/// The templates of cloud-init by which instance metadata name a machine and its node.
#[derive(Debug, Args)]
pub(super) struct Templates {
    /// The machines' provider IDs, as a template of cloud-init: `{{ ds.meta_data.provider_id }}`. For
    /// plugins that do not find it themselves; the kubelet gives it to the Node.
    #[arg(long, value_name = "TEMPLATE", value_parser = NonEmptyStringValueParser::new())]
    pub(super) provider_id_template: Option<String>,
    /// The nodes' names, as a template of cloud-init: `{{ ds.meta_data.local_hostname }}`. Without it
    /// a node has its host's name.
    #[arg(long, value_name = "TEMPLATE", value_parser = NonEmptyStringValueParser::new())]
    pub(super) node_name_template: Option<String>,
}

/// A field of a `KubeadmConfigTemplate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "camelCase")]
pub(super) enum Absent {
    Files,
    PreKubeadmCommands,
    KubeletExtraArgs,
    NodeRegistration,
    JoinConfiguration,
}

/// A version of `bootstrap.cluster.x-k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum BootstrapApi {
    V1beta1,
    #[default]
    V1beta2,
}

/// A format of bootstrap data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum BootstrapFormat {
    #[default]
    CloudConfig,
    Ignition,
}

/// How `status` answers.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum Report {
    #[default]
    Table,
    Json,
    Yaml,
}

/// How `csr` answers.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum Request {
    #[default]
    Pem,
    Yaml,
}

/// How `version` answers.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum Version {
    #[default]
    Text,
    Json,
}

impl Arguments {
    /// Reads the command line; where it asks for help or makes no sense, that is answered and the
    /// status returned.
    pub(super) fn parse(attester: &dyn Attester) -> Result<Self, ExitCode> {
        command(attester)
            .try_get_matches()
            .and_then(|mut matches| Self::from_arg_matches_mut(&mut matches))
            .map_err(|error| {
                // Where nobody listens there is nobody to help.
                drop(error.print());
                u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
            })
    }

    pub(super) fn log(&self) -> Log {
        let format = match self.flags.log_format {
            LogFormat::Text => Format::Text,
            LogFormat::Json => Format::Json,
        };
        Log::new(format, self.flags.verbose)
    }

    pub(super) fn config(&self) -> Option<&std::path::Path> {
        self.flags.config.as_deref()
    }

    /// The settings that have a flag.
    pub(super) fn settings(&self) -> impl Iterator<Item = (Key, &OsStr)> {
        Key::ALL.into_iter().filter_map(|key| {
            let value = match key {
                Key::NodeName => &self.flags.node_name,
                Key::ProviderId => &self.flags.provider_id,
                Key::BootstrapKubeconfig => &self.flags.bootstrap_kubeconfig,
                Key::Kubeconfig => &self.flags.kubeconfig,
                Key::StateDirectory => &self.flags.state_directory,
                Key::Audience => &self.flags.audience,
                Key::SignerName => &self.flags.signer_name,
                Key::ExpirationSeconds => &self.flags.expiration_seconds,
                Key::TimeoutSeconds => &self.flags.timeout_seconds,
                Key::AwsPrincipal => &self.flags.aws_principal,
                Key::AwsNodeName => &self.flags.aws_node_name,
                Key::AwsStsEndpoint => &self.flags.aws_sts_endpoint,
                Key::AwsMetadataEndpoint => &self.flags.aws_metadata_endpoint,
                Key::TpmDevice => &self.flags.tpm_device,
                Key::TpmTcti => &self.flags.tpm_tcti,
                Key::TpmEndorsementKey => &self.flags.tpm_endorsement_key,
                Key::TpmPcrs => &self.flags.tpm_pcrs,
                Key::TpmDeviceProgram => &self.flags.tpm_device_program,
            };
            value.as_deref().map(|value| (key, value))
        })
    }
}

/// The command line of the plugin with this provider.
pub(super) fn command(attester: &dyn Attester) -> clap::Command {
    Arguments::command().name(format!("kubelet-authenticator-{}", attester.provider()))
}
