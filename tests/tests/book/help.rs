//! Checks that the programs' complete help equals the files in the directory `help`.

use std::fmt::Write as _;
use std::slice;

use kubelet_authenticator_tests::snapshot::assert_file;

use crate::commands::{CONTROLLER, Help};
use crate::options::SIGNER;
use crate::{PLUGIN, PLUGINS};

/// Appends the help of the command and of all commands below it.
fn read(help: &mut Help, command: &[String], text: &mut String) {
    let shown = help.of(command);
    let _ = write!(text, "$ {} --help\n{shown}\n", command.join(" "));
    for name in help.commands(command) {
        read(help, &[command, &[name]].concat(), text);
    }
}

#[test]
fn the_help_of_each_program_matches_its_snapshot() {
    let mut help = Help::default();
    let plugins = PLUGINS.map(|name| format!("{PLUGIN}{name}"));
    let others = [CONTROLLER, SIGNER].map(str::to_owned);
    for program in plugins.into_iter().chain(others) {
        let mut text = String::new();

        read(&mut help, slice::from_ref(&program), &mut text);

        assert_file(&format!("tests/tests/book/help/{program}.txt"), &text);
    }
}
