//! node-attestation-controller checks, approves and signs certificate signing requests from kubelets.
//!
//! ```text
//! node-attestation-controller run [--kubeconfig F] [--namespace N] [--watch-filter V]
//!     [--max-clusters-per-namespace N] [--allow-insecure]
//! node-attestation-controller run --workload-kubeconfig F --settings F --inventory F --ca-cert F --ca-key F
//!     [--allow-insecure] [--tpm-challenge-keys DIR]
//! node-attestation-controller run .. --signer-endpoint unix://PATH
//! node-attestation-controller identities list|show [--kubeconfig F] [-n NS] [-o json]
//! node-attestation-controller identities reset|revoke CLUSTER NODE [--yes] [--kubeconfig F] [-n NS] [-o json]
//! node-attestation-controller tokens recreate CLUSTER MACHINE..|--all [--ttl D] [--kubeconfig F] [-n NS] [-o json]
//! node-attestation-controller clusters [--unmanaged] [--kubeconfig F] [-n NS] [-o json]
//! node-attestation-controller tenancy explain CLUSTER [--kubeconfig F] [-n NS] [-o json]
//! node-attestation-controller explain NAME|-f FILE --cluster CLUSTER [--kubeconfig F] [-n NS] [-o json]
//! node-attestation-controller explain NAME|-f FILE --settings F --inventory F [--workload-kubeconfig F] [-o json]
//! node-attestation-controller cluster check [CLUSTER] [--strict] [--kubeconfig F] [-n NS] [-o json]
//! node-attestation-controller cluster check --settings F [--workload-kubeconfig F] [--strict] [-o json]
//! node-attestation-controller render settings --cluster-name NAME --attestor PROVIDER
//! node-attestation-controller render floor [--attestor PROVIDER].. [--controller SUBJECT] [--responder SUBJECT]..
//!     [--exempt SUBJECT]..
//! node-attestation-controller render workload-rights [--without-bootstrap-tokens]
//! node-attestation-controller render workload-secret NAMESPACE/CLUSTER --workload-kubeconfig F
//!     [--controller-namespace NS]
//! node-attestation-controller render secret-roles NAMESPACE/CLUSTER.. [--controller SUBJECT]
//!     [--controller-namespace NS]
//! node-attestation-controller crds
//! node-attestation-controller completion SHELL
//! node-attestation-controller man [COMMAND ..]
//! node-attestation-controller version
//! ```
//!
//! The first form serves all clusters of a management cluster with Cluster API. The management cluster is the cluster
//! in which the controller runs, or the cluster of the kubeconfig. The second form serves one cluster from files,
//! without a management cluster. With `--signer-endpoint` instead of `--ca-key`, an external program signs.
//!
//! # Contract
//!
//! - Environment: `https_proxy` and `no_proxy`, as in kubectl, if the kubeconfig has no proxy. These variables also
//!   apply to STS and EC2. The AWS SDK reads its credentials from its usual variables.
//! - Standard input: only `explain -f -`, `render workload-secret` and the confirmation of `identities reset` and
//!   `identities revoke` read it.
//! - Standard output: only the output of commands and of `--help`. `run` has no output.
//! - Standard error: the log, one event per line, as text or JSON. The log never contains keys, tokens or the bytes of
//!   a request. Each decision is one line, `decided`, with the fields `csr`, `node` (as the request claims it),
//!   `provider`, `outcome` (`issued`, `denied`, `failed`, `deferred`, `ignored`), `reason`, `check` (the check that
//!   decided), `millis`, `requester` and `detail`. With `-v`, each check logs a line `checked` with `csr`, `check` and
//!   `millis` before the line `decided`.
//! - SIGTERM and SIGINT stop the program. The program first completes the requests in progress and writes their Events,
//!   within 5 seconds with a management cluster, and within 22 seconds without one.
//!
//! - `--help` lists the exit codes. On failure, standard error contains the file, option or object, and the cause.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `removed`: options in earlier builds, and their replacements
//! - `error`: errors in options, files and commands
//! - `access`: access to the management cluster
//! - `file`: files from the command line
//! - `files`: the limit on open files
//! - `logging`: the log
//! - `query`: options and output formats of the commands that read from a management cluster
//! - `clusters`: the command `clusters`
//! - `identities`: the command `identities`
//! - `tokens`: the command `tokens`
//! - `aws`: the options of the provider `aws`, and the state that its verifiers share
//! - `tenancy`: the command `tenancy`
//! - `tpm`: the options of the provider `tpm`, and the state that its verifiers share
//! - `providers`: the registry of the providers in this program
//! - `explain`: the command `explain`
//! - `cluster_check`: the command `cluster check`
//! - `render`: the command `render`
//! - `run`: the command `run`: its options, and the start of the controller
//! - `manual`: the command `man`, and the exit codes in `--help`

#![cfg_attr(
    test,
    expect(clippy::disallowed_types, reason = "no tenant shares a lock of a test")
)]

mod access;
mod aws;
mod cluster_check;
mod clusters;
mod error;
mod explain;
mod file;
mod files;
mod identities;
mod logging;
mod manual;
mod providers;
mod query;
mod removed;
mod render;
mod run;
mod tenancy;
mod tokens;
mod tpm;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::text::visible;

use error::{BoxError, Hinted};
use logging::LogFormat;
use node_attestation_core::crd;
use node_attestation_runtime::client::is_fips;
use query::Format;
use serde_json::json;
use tokio::runtime::Runtime;

/// Replaces musl's allocator, which returns memory to the kernel and immediately requests it again.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Checks, approves and signs the certificate requests of kubelets.
#[derive(Debug, Parser)]
#[command(name = "node-attestation-controller", disable_help_subcommand = true)]
#[command(after_long_help = manual::exit_codes_of_help())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controller: for all Clusters of a management cluster, or for one cluster without Cluster API.
    ///
    /// `node-attestation-controller run --kubeconfig ~/.kube/config` serves the Clusters of a management cluster.
    /// `node-attestation-controller run --workload-kubeconfig admin.conf --settings settings.yaml --inventory
    /// machines.yaml --ca-cert ca.crt --ca-key ca.key` serves one cluster
    Run(Box<RunCommand>),
    /// Print the custom resource definitions as YAML
    Crds,
    /// List, show, reset and revoke node identities
    Identities(Box<identities::IdentitiesCommand>),
    /// Recreate the bootstrap tokens of Machines
    Tokens(tokens::TokensCommand),
    /// List Clusters with their attestation status
    Clusters(Box<clusters::ClustersCommand>),
    /// Explain the AWS identity of a Cluster
    Tenancy(Box<tenancy::TenancyCommand>),
    /// Explain a certificate signing request: the controller's checks with their input, up to the check that
    /// decides, and the answer. The command uses your permissions, does not write, and does not call a cloud
    Explain(Box<explain::ExplainCommand>),
    /// Check a management cluster and its Clusters, or the settings of a controller without one
    Cluster(Box<cluster_check::ClusterCommand>),
    /// Print an example file, admission policies, or permissions
    Render(render::RenderCommand),
    /// Print the completion script for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program or of a command, for `man`
    Man {
        /// Name of the command, such as `cluster check`
        command: Vec<String>,
    },
    /// Print the version
    Version {
        /// Output format
        #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
        output: Format,
    },
}

#[derive(Debug, clap::Args)]
struct RunCommand {
    /// Log format
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Log every check in addition to every decision
    #[arg(short, long, action = ArgAction::SetTrue)]
    verbose: bool,
    #[command(flatten)]
    settings: run::Arguments,
}

/// The program's name.
const NAME: &str = "node-attestation-controller";

/// The file name of the program that kubectl runs for its command `node-attestation`.
const KUBECTL_PLUGIN: &str = "kubectl-node_attestation";

/// The exit code for invalid usage.
const USAGE: u8 = 2;

/// A file or an option cannot be used.
const CONFIGURATION: u8 = 3;

/// A check fails.
const CHECK_FAILED: u8 = 20;

fn main() -> anyhow::Result<ExitCode> {
    let command = match arguments() {
        Ok(cli) => cli.command,
        Err(error) => return wrong_usage(&error),
    };
    let command = match command {
        Command::Run(command) => command,
        Command::Crds => {
            for definition in crd::manifests() {
                print(&crd::yaml(&definition)?)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        Command::Identities(command) => return answer(identities::run(*command)),
        Command::Tokens(command) => return answer(tokens::run(command)),
        Command::Clusters(command) => return answer(clusters::run(*command)),
        Command::Tenancy(command) => return answer(tenancy::run(*command)),
        Command::Cluster(command) => {
            return answer(async {
                let (text, passes) = cluster_check::run(*command).await?;
                let code = if passes { 0 } else { CHECK_FAILED };
                Ok((text, code))
            });
        }
        Command::Explain(command) => return answer(explain::run(*command)),
        Command::Render(command) => return answer(render::run(command)),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
            print(&String::from_utf8_lossy(&script))?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Man { command } => {
            return answer(async { manual::page(Cli::command(), &command) });
        }
        Command::Version { output } => {
            let version = env!("CARGO_PKG_VERSION");
            let object = json!({"name": NAME, "version": version, "fips": is_fips()});
            let fips = if is_fips() { " (AWS-LC-FIPS)" } else { "" };
            let text = output.print(&object, || format!("{NAME} {version}{fips}\n"));
            return answer(async { text });
        }
    };
    logging::start(command.log_format, command.verbose);
    files::raise_limit();
    match Runtime::new()?.block_on(run::run(command.settings)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            let hint = error.downcast_ref::<Hinted>();
            let hint = hint.map(|hinted| hinted.hint.as_str());
            let error = error_chain(&*error);
            tracing::error!(error, hint, "the controller cannot run");
            Ok(ExitCode::from(CONFIGURATION))
        }
    }
}

/// Parses the arguments. If kubectl runs the program, help texts contain the kubectl command.
fn arguments() -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let program = env::args_os().next().unwrap_or_default();
    if Path::new(&program).file_name() == Some(OsStr::new(KUBECTL_PLUGIN)) {
        command = command.bin_name("kubectl node-attestation");
    }
    let mut matches = command.try_get_matches_from_mut(env::args_os())?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Exits with the message about a removed option. Otherwise, exits as clap does: with code 2, or with code 0 for
/// `--help`.
fn wrong_usage(error: &clap::Error) -> anyhow::Result<ExitCode> {
    let command: OsString = env::args_os().nth(1).unwrap_or_default();
    match removed::message(&command.to_string_lossy(), error) {
        Some(message) => {
            write!(io::stderr(), "{message}")?;
            Ok(ExitCode::from(USAGE))
        }
        None => error.exit(),
    }
}

/// Prints the output of a command. Exits with code 0, or with the code that the command returned.
fn answer<T: Into<Answer>>(
    asked: impl Future<Output = Result<T, BoxError>>,
) -> anyhow::Result<ExitCode> {
    match Runtime::new()?.block_on(asked).map(Into::into) {
        Ok(Answer { text, errors, code }) => {
            print(&shown(&text))?;
            for error in errors {
                writeln!(io::stderr(), "error: {}", visible(&error))?;
            }
            Ok(ExitCode::from(code))
        }
        Err(error) => {
            let hinted = error.downcast_ref::<Hinted>();
            let hint = hinted.map(|hinted| format!("hint: {}\n", visible(&hinted.hint)));
            let text = visible(&error_chain(&*error));
            write!(io::stderr(), "error: {text}\n{}", hint.unwrap_or_default())?;
            let code = if hinted.is_some_and(Hinted::is_usage) {
                USAGE
            } else {
                CONFIGURATION
            };
            Ok(ExitCode::from(code))
        }
    }
}

/// The output of a command, and its exit code.
struct Answer {
    text: String,
    /// The errors about the parts that the command could not complete.
    errors: Vec<String>,
    code: u8,
}

impl From<String> for Answer {
    fn from(text: String) -> Self {
        Self::from((text, 0_u8))
    }
}

impl From<(String, u8)> for Answer {
    fn from((text, code): (String, u8)) -> Self {
        let errors = Vec::new();
        Self { text, errors, code }
    }
}

impl From<(String, Vec<String>)> for Answer {
    fn from((text, errors): (String, Vec<String>)) -> Self {
        let code = if errors.is_empty() { 0 } else { CONFIGURATION };
        Self { text, errors, code }
    }
}

/// Escapes invisible characters, which could control a terminal, because the text can contain data from tenants.
fn shown(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines
        .map(|line| match line.strip_suffix('\n') {
            Some(line) => visible(line) + "\n",
            None => visible(line),
        })
        .collect()
}

/// Prints a string. A pipe that the reader has closed is not an error.
fn print(text: &str) -> io::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_in_any_output_become_spaces() {
        let text = "node \u{202e}n1\u{1b}[2J\nis\u{2028}revoked\n";

        assert_eq!(shown(text), "node  n1 [2J\nis revoked\n");
        for text in ["", "\n", "a", "a\n\nb"] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn removed_options_are_not_accepted_by_their_commands() {
        let cli = Cli::command();
        for (commands, option, _) in removed::REMOVED {
            for command in *commands {
                let command = cli.find_subcommand(command).unwrap();
                for command in [command].into_iter().chain(command.get_subcommands()) {
                    let mut arguments = command.get_arguments();
                    let name = option.strip_prefix("--");
                    let is_there = arguments.any(|argument| argument.get_long() == name);
                    assert!(!is_there, "{option}");
                }
            }
        }
    }
}
