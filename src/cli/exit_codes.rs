//! The exit codes in `--help` and in the manual page.

use kubelet_attestation::manual::exit_codes;

use crate::failure::Code;

/// The exit codes, for the end of `--help`.
pub(super) fn of_help() -> String {
    exit_codes(all())
}

/// Each exit code with its meaning.
pub(super) fn all() -> impl Iterator<Item = (u8, &'static str)> {
    let success = (
        0,
        "The plugin printed a credential, or the command completed.",
    );
    let failures = Code::MEANINGS.iter();
    [success]
        .into_iter()
        .chain(failures.map(|(code, meaning)| (*code, meaning.trim())))
}
