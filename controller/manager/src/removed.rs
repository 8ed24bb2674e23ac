//! Options of earlier builds: the error for one names its replacement.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// An option that a command no longer has.
#[derive(Debug)]
pub(crate) struct Removed {
    /// The first word of the command.
    pub(crate) command: &'static str,
    pub(crate) option: &'static str,
    /// The next step for an operator who still uses it.
    hint: &'static str,
}

/// All removed options.
pub(crate) const REMOVED: &[Removed] = &[
    run(
        "--leader-elect",
        "leave it out: one replica leads, with a Lease, always",
    ),
    run(
        "--shards",
        "run a Deployment for each --namespace or --watch-filter; each has a Lease of its own",
    ),
];

const fn run(option: &'static str, hint: &'static str) -> Removed {
    Removed {
        command: "run",
        option,
        hint,
    }
}

/// The message for a removed option, if the arguments were refused because of one. `command` is the first word of
/// the command.
pub(crate) fn message(command: &str, error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let (option, _) = argument.split_once('=').unwrap_or((argument, ""));
    let mut all = REMOVED.iter();
    let row = all.find(|row| row.command == command && row.option == option)?;
    let Removed { option, hint, .. } = row;
    Some(format!("error: {option} was removed\nhint: {hint}\n"))
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    fn message_for(command: &'static str, arguments: &[&str]) -> Option<String> {
        let program = Command::new("program").subcommand(Command::new(command));
        let arguments = ["program", command].iter().chain(arguments);
        message(
            command,
            &program.try_get_matches_from(arguments).unwrap_err(),
        )
    }

    #[test]
    fn each_removed_option_is_an_error_that_names_its_replacement() {
        for row in REMOVED {
            let Removed {
                command,
                option,
                hint,
            } = row;
            let message = Some(format!("error: {option} was removed\nhint: {hint}\n"));
            let with_value = format!("{option}=value");
            for arguments in [&[*option][..], &[*option, "value"], &[&*with_value]] {
                assert_eq!(message_for(command, arguments), message, "{arguments:?}");
            }
        }
    }

    #[test]
    fn an_option_that_was_never_there_has_no_message_of_its_own() {
        assert_eq!(message_for("run", &["--unheard-of"]), None);
        assert_eq!(message_for("run", &["--help"]), None);
        assert_eq!(message_for("crds", &["--shards"]), None);
    }
}
