//! The commands of the pages of docs.

use std::fs;
use std::path::{Path, PathBuf};

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::machine::Machine;

/// The commands of a page of docs from this heading on, each behind its prompt: `$` on an operator's machine, `#` on a node.
///
/// # Panics
///
/// If there is none.
#[track_caller]
pub fn steps(page: &str, heading: &str) -> Vec<(char, String)> {
    let text = fs::read_to_string(repository().join("docs").join(page)).unwrap();
    let start = text.find(heading).unwrap();
    let mut steps: Vec<(char, String)> = Vec::new();
    let blocks = text[start..].split("```console\n").skip(1);
    for block in blocks.map(|block| block.split("```").next().unwrap()) {
        for line in block.lines() {
            let prompt = ['$', '#']
                .into_iter()
                .find_map(|prompt| Some((prompt, line.strip_prefix(&format!("{prompt} "))?)));
            if let Some((prompt, command)) = prompt {
                steps.push((prompt, command.to_owned()));
            } else {
                let (_, command) = steps.last_mut().unwrap();
                *command = format!("{command}\n{line}");
            }
        }
    }
    assert!(!steps.is_empty(), "{page} has no command from {heading:?}");
    steps
}

/// The commands of a page after this prompt.
#[track_caller]
pub fn commands(page: &str, prompt: char) -> Vec<String> {
    let steps = steps(page, "").into_iter();
    let commands = steps.filter_map(|(of, command)| (of == prompt).then_some(command));
    commands.collect()
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
