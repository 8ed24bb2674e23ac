//! The whole help of the programs, as in the files of the directory `help`.

use std::fmt::Write as _;
use std::slice;

use kubelet_authenticator_tests::snapshot::assert_file;

use crate::commands::{CONTROLLER, Help};
use crate::options::SIGNER;
use crate::{PLUGIN, PLUGINS};

/// The plugin whose commands are compared too: those of the others differ only in the settings.
const WITH_COMMANDS: &str = "aws";

/// Appends the help of the command and, if wanted, of all commands below it.
fn read(help: &mut Help, command: &[String], is_whole: bool, text: &mut String) {
    let shown = help.of(command);
    let _ = write!(text, "$ {} --help\n{shown}\n", command.join(" "));
    if is_whole {
        for name in help.commands(command) {
            read(help, &[command, &[name]].concat(), is_whole, text);
        }
    }
}

#[test]
fn the_help_of_each_program_matches_its_snapshot() {
    let mut help = Help::default();
    let plugins = PLUGINS.map(|name| (format!("{PLUGIN}{name}"), name == WITH_COMMANDS));
    let others = [CONTROLLER, SIGNER].map(|name| (name.to_owned(), true));
    for (program, is_whole) in plugins.into_iter().chain(others) {
        let mut text = String::new();

        read(&mut help, slice::from_ref(&program), is_whole, &mut text);

        assert_file(&format!("tests/tests/book/help/{program}.txt"), &text);
    }
}
