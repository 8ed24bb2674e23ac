//! The command line.

mod answer;
mod arguments;
mod commands;
mod config;
mod doctor;
mod inspect;
mod metrics;
mod render;
mod setup;
mod status;
mod support;

use std::env;
use std::ffi::OsString;
use std::mem;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::attester::Attester;
use crate::authenticator::{Authenticator, Caller, Cluster, Observer};
use crate::exec::ExecInfo;
use crate::failure::{Code, Failure};
use crate::log::Log;
use crate::machine::Machine;
use crate::rescue::{Rescue, keep_memory};
use crate::settings::{ProviderSchema, Settings, Sources, Variables};

use arguments::Arguments;
use kubelet_attestation::errors::error_chain;

/// Runs a plugin with this attester.
///
/// Without arguments and with `KUBERNETES_EXEC_INFO` in the environment, it answers client-go: one
/// `ExecCredential` on standard output and exit code 0, or no output and an exit code of [`Code`].
/// Otherwise the arguments select a command.
pub fn run(attester: impl Attester) -> ExitCode {
    run_on(Machine::default(), attester, None)
}

/// Like [`run`], on the machine that `machine` describes. Calls `observer` after each step. Tests
/// use it to move a disk to another machine, and to end a run at a step.
pub fn run_on(machine: Machine, attester: impl Attester, observer: Option<Observer>) -> ExitCode {
    keep_memory();
    let schema = ProviderSchema {
        provider: attester.provider(),
        settings: attester.settings(),
        signer_name: attester.provider().client_signer(),
        expiration_seconds: attester.expiration_seconds(),
    };
    let attester: Arc<dyn Attester> = Arc::new(attester);
    let mut variables = Variables::read(env::vars_os(), &schema);
    let exec_info = variables.exec_info.take();
    // client-go calls the plugin every hour on every node. These calls skip the argument parser.
    let is_client_go = exec_info.is_some() && env::args_os().len() <= 1;
    let arguments = if is_client_go {
        None
    } else {
        match Arguments::parse(&schema) {
            Ok(arguments) => Some(arguments),
            Err(status) => return status,
        }
    };
    let log = arguments.as_ref().map(|it| it.log).unwrap_or_default();
    let mut session = Session {
        attester,
        schema,
        variables,
        machine,
        rescue: Rescue::install(log),
        log,
        observer,
    };
    let done = if let Some(arguments) = arguments {
        session.command(&arguments, exec_info.as_ref())
    } else {
        let sources = Sources {
            variables: mem::take(&mut session.variables),
            ..Sources::default()
        };
        session.speak_to_client_go(&exec_info.unwrap_or_default(), sources)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The journal has it already when a remembered failure is repeated.
            if is_client_go && failure.code() != Code::BackOff {
                let provider = session.attester.provider();
                let command = format!("kubelet-authenticator-{provider} doctor");
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
    /// The environment, for commands.
    variables: Variables,
    machine: Machine,
    rescue: Rescue,
    log: Log,
    observer: Option<Observer>,
}

impl Session {
    fn speak_to_client_go(&self, info: &OsString, sources: Sources<'_>) -> Result<(), Failure> {
        let info = ExecInfo::parse(info)?;
        let sources = Sources {
            extension: info
                .cluster
                .as_ref()
                .and_then(|cluster| cluster.config)
                .map(RawValue::get),
            ..sources
        };
        let authenticator = Authenticator {
            cluster: info.cluster.as_ref().map(Cluster::Exec),
            rescue: self.rescue.speaking(info.version),
            ..self.authenticator(sources, Caller::ClientGo)?
        };
        let printed = print(&authenticator);
        // The process ends here, and the value holds no secret. Dropping it would cost each run as
        // much as reading the settings.
        mem::forget(authenticator);
        printed
    }

    fn warn_unknown(&self, variable: &str) {
        self.log.warn(&format!(
            "the variable {variable:?} is no setting and is passed over"
        ));
    }

    fn authenticator<'a>(
        &self,
        sources: Sources<'_>,
        caller: Caller,
    ) -> Result<Authenticator<'a>, Failure> {
        for name in &sources.variables.unknown {
            self.warn_unknown(name);
        }
        Ok(Authenticator {
            attester: Arc::clone(&self.attester),
            settings: Settings::load(sources, &self.schema)?,
            cluster: None,
            machine: self.machine.clone(),
            caller,
            rescue: self.rescue.clone(),
            log: self.log,
            observer: self.observer.clone(),
        })
    }
}

fn print(authenticator: &Authenticator<'_>) -> Result<(), Failure> {
    let answer = authenticator.credential()?;
    authenticator.rescue.print(&answer).map_err(|error| {
        let what = format!("cannot write the credential: {}", error_chain(&error));
        Failure::new(Code::Internal, what, "read standard output to its end")
    })
}
