//! The commands on the pages in docs, and an operator who copies them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::binaries::control_plane_binary;
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::process::{Launch, Scratch};

use crate::machines::PATIENCE;
use crate::program;

/// The commands on a page in docs, starting at this heading, each with its prompt: `$` for an operator's machine, `#`
/// for a node.
///
/// # Panics
///
/// Panics if the page does not contain the heading, or a command after the heading.
#[track_caller]
pub fn steps(page: &str, heading: &str) -> Vec<(char, String)> {
    let text = text(page);
    let steps = steps_in(&text[text.find(heading).unwrap()..]);
    assert!(!steps.is_empty(), "{page} has no command from {heading:?}");
    steps
}

/// The commands in the page's section with this heading, without its subsections.
///
/// # Panics
///
/// Panics if the page does not contain the heading, or if the section does not contain a command.
#[track_caller]
pub fn section(page: &str, heading: &str) -> Vec<(char, String)> {
    let text = text(page);
    let (_, after) = text.split_once(&format!("\n{heading}\n")).unwrap();
    let is_heading = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
    let lines: Vec<&str> = after.lines().take_while(|line| !is_heading(line)).collect();
    let steps = steps_in(&lines.join("\n"));
    assert!(!steps.is_empty(), "{page} has no command below {heading:?}");
    steps
}

/// The line on the page that begins with these words, without a prompt.
///
/// # Panics
///
/// Panics if the page does not contain exactly one such line.
#[track_caller]
pub fn command(page: &str, start: &str) -> String {
    let text = text(page);
    let lines = text.lines().map(str::trim_start);
    let lines = lines.map(|line| {
        let command = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        command.unwrap_or(line)
    });
    let mut found = lines.filter(|line| line.starts_with(start));
    let command = found
        .next()
        .unwrap_or_else(|| panic!("{page} has no {start:?}"));
    assert_eq!(found.next(), None, "{page} has several {start:?}");
    command.to_owned()
}

fn text(page: &str) -> String {
    fs::read_to_string(repository().join("docs").join(page)).unwrap()
}

fn steps_in(text: &str) -> Vec<(char, String)> {
    let mut steps: Vec<(char, String)> = Vec::new();
    let mut blocks = text.split("```console\n");
    let mut before = blocks.next().unwrap();
    for after in blocks {
        // A code block in a list is indented.
        let indent = before.rsplit('\n').next().unwrap();
        let block = after.split("```").next().unwrap();
        let block = block.strip_suffix(indent).unwrap_or(block);
        for line in block.lines() {
            let line = line.strip_prefix(indent).unwrap_or(line);
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
        before = after;
    }
    steps
}

/// The commands on a page that follow this prompt.
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

/// Runs the commands in enable-cluster.md that adopt an existing Node, with this attestor's plugin.
#[track_caller]
pub fn take_over(machine: &Machine, attestor: &Attestor) {
    let script = commands("enable-cluster.md", '#').join("\n");
    let of_aws = format!("kubelet-authenticator-{}", Attestor::AWS);
    let script = script.replace(&of_aws, &format!("kubelet-authenticator-{attestor}"));
    machine.ok(&["sh", "-euc", &script]);
}

/// An operator's home and working directory, which contains the repository's files and the programs.
#[derive(Debug)]
pub struct Desk(Scratch);

impl Desk {
    /// Creates a directory in which kubectl uses this file as its kubeconfig.
    pub fn new(kubeconfig: &Path) -> Self {
        let files = Scratch::new("desk");
        symlink(kubeconfig, files.directory(".kube").join("config")).unwrap();
        symlink(repository().join("packaging"), files.join("packaging")).unwrap();
        let programs = files.directory("bin");
        symlink(control_plane_binary("kubectl"), programs.join("kubectl")).unwrap();
        for name in ["kubelet-authenticator-aws", "kubelet-authenticator-tpm"] {
            symlink(program(name), programs.join(name)).unwrap();
        }
        // The API servers in the tests listen on loopback, and a shorter sync period makes the tests faster. These
        // options need a management cluster.
        let controller = program("node-attestation-controller");
        let wrapper = format!(
            "#!/bin/sh\ncase \"$*\" in\n\
             *--workload-kubeconfig*) ;;\n\
             explain\\ * | tokens\\ * | cluster\\ check*) exec {0} \"$@\" --insecure-allow-loopback ;;\nesac\n\
             [ \"$1\" = run ] || exec {0} \"$@\"\nshift\n\
             case \"$*\" in *--workload-kubeconfig*) ;; \
             *) set -- --insecure-allow-loopback --sync-period=10s $RUN_OPTIONS \"$@\" ;; esac\n\
             exec setpriv --pdeathsig KILL -- {0} run \"$@\"\n",
            controller.display()
        );
        let path = files.write("bin/node-attestation-controller", wrapper);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(files)
    }

    /// The operator's files.
    pub fn files(&self) -> &Scratch {
        &self.0
    }

    /// The operator's shell, which runs a script. A caller can set the variable `RUN_OPTIONS` to additional options for
    /// `node-attestation-controller run`.
    pub fn shell(&self, script: &str) -> Launch {
        let path = std::env::var("PATH").unwrap();
        Launch::new("desk", "bash")
            .args(["-xeuo", "pipefail", "-c"])
            .arg(format!("cd {}\n{script}", self.0.path().display()))
            .env("PATH", format!("{}:{path}", self.0.join("bin").display()))
            .env("HOME", self.0.path())
            // Otherwise, clusterctl would search the Internet for a newer version.
            .env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
    }

    /// Runs a script in the operator's shell, and waits until it succeeds.
    ///
    /// # Panics
    ///
    /// Panics if the script fails. The message contains its output.
    #[track_caller]
    pub fn follow(&self, script: &str) {
        let mut shell = self.shell(script).spawn(&self.0.join("log"));
        let ended = shell.wait(PATIENCE);
        assert!(ended.success(), "{}", shell.log());
    }
}
