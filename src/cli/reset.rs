//! The command `reset`.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::PathBuf;

use super::arguments::Arguments;
use super::{Session, answer};
use crate::authenticator::Authenticator;
use crate::failure::{Code, Failure};
use crate::log::show;
use crate::process;

impl Session {
    pub(super) fn reset(&self, arguments: &Arguments, is_confirmed: bool) -> Result<(), Failure> {
        let authenticator = self.interactive(arguments)?;
        if !is_confirmed {
            confirm(&authenticator)?;
        }
        let count = authenticator.reset()?;
        answer::print(&match count {
            1 => "state cleared (1 file)\n".to_owned(),
            _ => format!("state cleared ({count} files)\n"),
        })
    }
}

/// Shows the effect of `reset`, and reads a confirmation from the terminal. The question goes to standard error, so
/// that standard output contains only the result.
fn confirm(authenticator: &Authenticator<'_>) -> Result<(), Failure> {
    show(&plan(authenticator)?);
    let unconfirmed = |what: &str| {
        let remedy = format!("to reset, run: {} reset --yes", process::command());
        Failure::new(Code::Usage, format!("{what}: nothing was deleted"), remedy)
    };
    if !io::stdin().is_terminal() {
        return Err(unconfirmed("reset needs a confirmation"));
    }
    show("Continue? [y/N] ");
    let mut line = String::new();
    // If the function cannot read an answer, the operator has not confirmed the command.
    let read = io::stdin().lock().read_line(&mut line);
    if read.is_ok() && ["y", "yes"].contains(&line.trim().to_lowercase().as_str()) {
        Ok(())
    } else {
        Err(unconfirmed("reset was not confirmed"))
    }
}

/// Returns the files that `reset` deletes, and the effects on the node.
fn plan(authenticator: &Authenticator<'_>) -> Result<String, Failure> {
    let files = authenticator.resettable()?;
    let lines = files
        .iter()
        .map(|path: &PathBuf| format!("  {}\n", path.display()));
    let list = if files.is_empty() {
        "  (no file)\n".to_owned()
    } else {
        lines.collect()
    };
    let bootstrap = authenticator.settings.bootstrap_kubeconfig.display();
    Ok(format!(
        "reset deletes these files:\n{list}\
         After that, the node has no client certificate until it enrolls again with the bootstrap \
         credential in {bootstrap}.\n"
    ))
}
