//! The command line.

mod answer;
mod arguments;
mod commands;
mod config;
mod doctor;
mod exit_codes;
mod inspect;
mod manual;
mod metrics;
mod render;
mod reset;
mod setup;
mod status;
mod support_bundle;

use std::env;
use std::ffi::OsString;
use std::mem;
use std::process::ExitCode;
use std::sync::Arc;

use crate::attester::Attester;
use crate::authenticator::{Authenticator, Caller, Cluster, Observer};
use crate::exec::{EXEC_INFO, ExecInfo};
use crate::failure::{Code, Failure};
use crate::leftovers::Leftovers;
use crate::log::Log;
use crate::machine::Machine;
use crate::process;
use crate::rescue::{Rescue, keep_memory};
use crate::settings::{Fault, ProviderSchema, Settings, Sources};

use arguments::Arguments;
use kubelet_attestation::errors::error_chain;

/// Runs a plugin with this attester.
///
/// Without a command and with `KUBERNETES_EXEC_INFO` in the environment, it answers client-go: one
/// `ExecCredential` on standard output and exit code 0, or no output and an exit code of [`Code`].
/// Otherwise the arguments select a command.
pub fn run(attester: impl Attester) -> ExitCode {
    run_on(Machine::default(), attester, None)
}

/// Does the same as [`run`], on the machine that `machine` describes. Calls `observer` after each step. Tests use this
/// function to simulate a disk that was moved to a different machine, and to stop a run at a step.
pub fn run_on(machine: Machine, attester: impl Attester, observer: Option<Observer>) -> ExitCode {
    keep_memory();
    let schema = ProviderSchema {
        provider: attester.provider(),
        settings: attester.settings(),
        expiration_seconds: attester.expiration_seconds(),
    };
    let attester: Arc<dyn Attester> = Arc::new(attester);
    let exec_info = env::var_os(EXEC_INFO);
    let given = env::args_os().skip(1);
    let settings = match exec_info {
        Some(_) => arguments::settings_alone(&schema, given),
        None => None,
    };
    let arguments = if settings.is_some() {
        None
    } else {
        match Arguments::parse(&schema) {
            Ok(arguments) => Some(arguments),
            Err(status) => return status,
        }
    };
    let has_command = arguments.as_ref().is_some_and(|it| it.command.is_some());
    let is_client_go = exec_info.is_some() && !has_command;
    let log = arguments.as_ref().map(|it| it.log).unwrap_or_default();
    let session = Session {
        attester,
        schema,
        machine,
        rescue: Rescue::install(log),
        log,
        observer,
    };
    let done = if let Some(arguments) = arguments {
        session.command(&arguments, exec_info.as_ref())
    } else {
        let (config, flags) = settings.unwrap_or_default();
        let sources = Sources {
            config: config.as_deref(),
            flags,
            ..Sources::default()
        };
        session.speak_to_client_go(&exec_info.unwrap_or_default(), sources)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // During a back-off, the journal already contains the failure.
            if is_client_go && failure.code() != Code::BackOff {
                let command = format!("{} doctor", process::command());
                log.fail_with_diagnosis(&failure, &command);
            } else {
                log.fail(&failure);
            }
            ExitCode::from(failure.code().number())
        }
    }
}

/// The inputs of every command.
struct Session {
    attester: Arc<dyn Attester>,
    schema: ProviderSchema,
    machine: Machine,
    rescue: Rescue,
    log: Log,
    observer: Option<Observer>,
}

impl Session {
    fn speak_to_client_go(&self, info: &OsString, sources: Sources<'_>) -> Result<(), Failure> {
        let info = ExecInfo::parse(info)?;
        let extension = info.cluster.as_ref().and_then(|cluster| cluster.config);
        let mut leftovers = leftovers();
        // Most kubeconfigs have no extension, and a run with the stored credential must not parse more than necessary.
        if let Some(extension) = extension {
            let extension = serde_json::from_str(extension.get()).unwrap_or_default();
            leftovers = leftovers.in_extension(EXEC_INFO, &extension);
        }
        self.warn_of_leftovers(&leftovers);
        let (settings, fault) = Settings::valid(sources, &self.schema);
        let authenticator = Authenticator {
            cluster: info.cluster.as_ref().map(Cluster::Exec),
            rescue: self.rescue.speaking(info.version),
            ..self.with_settings(settings, fault, Caller::ClientGo)
        };
        let printed = print(&authenticator);
        // Do not drop the value: it does not contain secrets, and the process exits after this line. Dropping it would
        // take as much time as reading the settings.
        mem::forget(authenticator);
        printed
    }

    fn warn_of_leftovers(&self, leftovers: &Leftovers) {
        if let Some(failure) = leftovers.failure() {
            self.log.warn_of("settings of an earlier version", &failure);
        }
    }

    /// Returns the inputs of a command, with valid settings.
    fn authenticator<'a>(
        &self,
        sources: Sources<'_>,
        caller: Caller,
    ) -> Result<Authenticator<'a>, Failure> {
        self.warn_of_leftovers(&leftovers());
        let settings = Settings::load(sources, &self.schema)?;
        Ok(self.with_settings(settings, None, caller))
    }

    fn with_settings<'a>(
        &self,
        settings: Settings,
        fault: Option<Fault>,
        caller: Caller,
    ) -> Authenticator<'a> {
        Authenticator {
            attester: Arc::clone(&self.attester),
            settings,
            fault,
            cluster: None,
            machine: self.machine.clone(),
            caller,
            rescue: self.rescue.clone(),
            log: self.log,
            observer: self.observer.clone(),
        }
    }
}

fn print(authenticator: &Authenticator<'_>) -> Result<(), Failure> {
    let answer = authenticator.credential()?;
    authenticator.rescue.print(&answer).map_err(|error| {
        let what = format!("cannot write the credential: {}", error_chain(&error));
        Failure::new(Code::Internal, what, "read standard output completely")
    })
}

/// The removed settings in this program's environment.
fn leftovers() -> Leftovers {
    let names = env::vars_os().map(|(name, _)| name);
    Leftovers::default().in_environment(names)
}
