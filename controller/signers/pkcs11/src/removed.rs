//! Options of earlier builds. If an operator uses one of these options, the error contains its replacement.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The removed options, and their replacements.
const REMOVED: [(&str, &str); 3] = [
    (
        "--ca",
        "write one file for each CA to the directory of --cas",
    ),
    (
        "--reserved-address",
        "write the line `reserved-address: ADDRESS` to the files of the CAs",
    ),
    (
        "--reserved-name",
        "write the line `reserved-name: NAME` to the files of the CAs",
    ),
];

/// Returns the error, or the error with the replacement for a removed option.
pub(crate) fn explained(error: clap::Error, mut command: Command) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let (option, _) = argument.split_once('=').unwrap_or((argument, ""));
    let Some((option, hint)) = REMOVED.iter().find(|(name, _)| *name == option) else {
        return error;
    };
    let message = format!("{option} was removed: {hint}");
    command.error(ErrorKind::UnknownArgument, message)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn message(argument: &'static str) -> String {
        let command = Command::new("signer").arg(Arg::new("cas").long("cas"));
        let error = command.clone().try_get_matches_from(["signer", argument]);
        explained(error.unwrap_err(), command).to_string()
    }

    #[test]
    fn a_removed_signer_option_is_an_error_that_names_its_replacement() {
        for (option, hint) in REMOVED {
            for argument in [option.to_owned(), format!("{option}=value")] {
                let text = message(argument.leak());
                let expected = format!("error: {option} was removed: {hint}");
                assert!(text.starts_with(&expected), "{text}");
            }
        }
        assert!(!message("--unknown").contains("was removed"));
    }
}
