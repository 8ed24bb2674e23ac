//! The commands of the pages of docs.

use std::fs;
use std::path::{Path, PathBuf};

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::machine::Machine;

/// The commands of a page of docs after this prompt: `$` on an operator's machine, `#` on a node.
///
/// # Panics
///
/// If there is none.
#[track_caller]
pub fn commands(page: &str, prompt: char) -> Vec<String> {
    let page = fs::read_to_string(repository().join("docs").join(page)).unwrap();
    let mut commands: Vec<String> = Vec::new();
    let blocks = page.split("```console\n").skip(1);
    for block in blocks.map(|block| block.split("```").next().unwrap()) {
        let mut continues = false;
        for line in block.lines() {
            if let Some(command) = line.strip_prefix(&format!("{prompt} ")) {
                commands.push(command.to_owned());
                continues = true;
            } else if line.starts_with("$ ") || line.starts_with("# ") {
                continues = false;
            } else if continues {
                let command = commands.last_mut().unwrap();
                *command = format!("{command}\n{line}");
            }
        }
    }
    assert!(
        !commands.is_empty(),
        "the page has no command after {prompt}"
    );
    commands
}

/// The directory of the repository.
pub fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.unwrap().to_owned()
}

/// Runs the commands of cluster-api.md that take over a node that joined before, with this attestor's plugin.
#[track_caller]
pub fn take_over(machine: &Machine, attestor: &Attestor) {
    let script = commands("cluster-api.md", '#').join("\n");
    let of_aws = format!("kubelet-authenticator-{}", Attestor::AWS);
    let script = script.replace(&of_aws, &format!("kubelet-authenticator-{attestor}"));
    machine.ok(&["sh", "-euc", &script]);
}
