//! A node that has a kubelet's kubeconfig, and the output of `doctor` on this node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Signer, TOKEN};
use kubelet_authenticator_tests::node::{NULL, Node, Run};
use kubelet_authenticator_tests::program;
use serde_json::Value;

/// The exit code if a check fails.
pub const CHECK_FAILED: i32 = 20;

/// The maximum time for which an operator waits for all checks.
pub const LIMIT: Duration = Duration::from_secs(10);

pub struct Bed {
    pub server: ApiServer,
    pub node: Node,
    /// The plugin in the kubelet's kubeconfig.
    pub plugin: PathBuf,
}

/// The output of `doctor`.
#[derive(Debug)]
pub struct Examined {
    pub run: Run,
    checks: Vec<Check>,
}

/// The lines of a check, with the lines of each part joined into one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub state: String,
    /// The name of the check, and its finding.
    pub finding: String,
    pub cure: String,
    pub link: String,
}

impl Bed {
    /// A node with this plugin that is ready to join.
    pub fn of(plugin: &str, server: ApiServer, mut node: Node) -> Self {
        server.set_signer(Signer::issue());
        // This directory does not contain systemctl, because the host that runs the tests might have a kubelet unit.
        node.set_env("PATH", node.scratch().directory("bin"));
        let installed = node.scratch().join(plugin);
        std::os::unix::fs::symlink(program(plugin), &installed).unwrap();
        let bed = Self {
            server,
            node,
            plugin: installed,
        };
        bed.write_kubelet_kubeconfig();
        bed
    }

    /// A node that is ready to join.
    pub fn new() -> Self {
        let server = ApiServer::start();
        let node = Node::new(NULL, &server);
        Self::of(NULL, server, node)
    }

    /// A node that has joined.
    pub fn joined() -> Self {
        let bed = Self::new();
        bed.node.run().succeeded();
        bed
    }

    /// Writes the kubelet's kubeconfig as an administrator does.
    pub fn write_kubelet_kubeconfig(&self) {
        let command = self.plugin.to_str().unwrap();
        let run = self
            .node
            .command(&["render", "--command", command, "kubeconfig"])
            .succeeded();
        fs::write(self.kubelet_kubeconfig(), run.stdout).unwrap();
    }

    pub fn kubelet_kubeconfig(&self) -> PathBuf {
        self.node.scratch().join("kubelet.conf")
    }

    pub fn change_kubelet_kubeconfig(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.kubelet_kubeconfig()).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(self.kubelet_kubeconfig(), text.replace(from, to)).unwrap();
    }

    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.node.scratch().join("bootstrap.kubeconfig")
    }

    /// Issues a new bootstrap token to the node.
    pub fn write_new_token(&self) {
        let (id, secret) = ("fedcba", "fedcba9876543210");
        self.server.add_token(id, secret);
        self.server
            .write_bootstrap_kubeconfig(self.node.scratch().path(), &format!("{id}.{secret}"));
    }

    fn run(&self, options: &[&str]) -> Run {
        let path = self.kubelet_kubeconfig();
        let words = ["doctor", "--kubelet-kubeconfig", path.to_str().unwrap()];
        let run = self.node.command(&[&words, options].concat());
        for secret in [TOKEN, "PRIVATE KEY"] {
            assert!(
                !run.stdout.contains(secret) && !run.stderr.contains(secret),
                "{run:#?}"
            );
        }
        run
    }

    /// The output as a table.
    #[track_caller]
    pub fn doctor(&self) -> Examined {
        let run = self.run(&[]);
        assert_ne!(run.stdout, "", "{run:#?}");
        let checks = parse(&run.stdout);
        let failing = checks.iter().any(|check| check.state == "fail");
        let code = if failing { CHECK_FAILED } else { 0 };
        assert_eq!(run.code, Some(code), "{run:#?}");
        for check in &checks {
            let is_wrong = ["warn", "fail"].contains(&check.state.as_str());
            assert_eq!(!check.cure.is_empty(), is_wrong, "{check:#?}");
            assert_eq!(!check.link.is_empty(), is_wrong, "{check:#?}");
        }
        Examined { run, checks }
    }

    /// The checks in the JSON output.
    #[track_caller]
    pub fn json(&self) -> Value {
        let run = self.run(&["-o", "json"]);
        serde_json::from_str(&run.stdout).unwrap()
    }

    /// Asserts that no check fails.
    #[track_caller]
    pub fn is_well(&self) {
        let examined = self.doctor();
        assert_eq!(examined.run.code, Some(0), "{}", examined.run.stdout);
        assert_eq!(examined.run.stderr, "");
    }

    /// Asserts that this is the first failing check, with this finding and this hint.
    #[track_caller]
    pub fn first_failing(&self, name: &str, finding: &str, cure: &str) -> Examined {
        let examined = self.doctor();
        let mut checks = examined.checks.iter();
        let first = checks.find(|check| check.state == "fail");
        let first = first.unwrap_or_else(|| panic!("{}", examined.run.stdout));
        let expected = format!("{name}: {finding}");
        assert!(
            first.finding.starts_with(&expected),
            "{expected}: {examined:#?}"
        );
        assert!(first.cure.contains(cure), "{cure}: {examined:#?}");
        examined
    }
}

impl Examined {
    /// The check with this name.
    #[track_caller]
    pub fn check(&self, name: &str) -> &Check {
        let start = format!("{name}: ");
        let mut checks = self.checks.iter();
        let found = checks.find(|check| check.finding.starts_with(&start));
        found.unwrap_or_else(|| panic!("no {name}: {}", self.run.stdout))
    }

    /// The state of the check with this name.
    #[track_caller]
    pub fn state(&self, name: &str) -> &str {
        &self.check(name).state
    }

    /// Asserts the state and the finding of the check with this name.
    #[track_caller]
    pub fn says(&self, name: &str, state: &str, finding: &str) {
        let check = self.check(name);
        assert_eq!(check.state, state, "{check:#?}");
        assert!(check.finding.contains(finding), "{finding}: {check:#?}");
    }

    /// Runs the command in the hint of the check with this name.
    #[track_caller]
    pub fn follow(&self, name: &str) {
        let cure = &self.check(name).cure;
        let (_, command) = cure.split_once("run: ").unwrap_or_else(|| panic!("{cure}"));
        let (command, _) = command.split_once(';').unwrap_or((command, ""));
        let status = Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(status.success(), "{command}: {status}");
    }

    /// The names of the checks in this state.
    pub fn names(&self, state: &str) -> Vec<&str> {
        let checks = self.checks.iter().filter(|check| check.state == state);
        let names = checks.map(|check| check.finding.split_once(':').unwrap().0);
        names.collect()
    }

    /// The table with one line for each finding, hint and link.
    pub fn unwrapped(&self) -> String {
        let mut text = String::new();
        for check in &self.checks {
            text += &format!("{}  {}\n", check.state, check.finding);
            if !check.cure.is_empty() {
                text += &format!("      cure: {}\n", check.cure);
            }
            if !check.link.is_empty() {
                text += &format!("      see: {}\n", check.link);
            }
        }
        text
    }
}

/// Parses the table.
fn parse(table: &str) -> Vec<Check> {
    let (table, summary) = table.rsplit_once("\n\n").unwrap();
    assert!(summary.contains(" checks: "), "{summary}");
    let mut checks: Vec<Check> = Vec::new();
    let mut field = 0;
    for line in table.lines() {
        let words = line.get(6..).unwrap();
        if !line.starts_with(' ') {
            checks.push(Check {
                state: line[..4].to_owned(),
                finding: words.to_owned(),
                cure: String::new(),
                link: String::new(),
            });
            field = 0;
            continue;
        }
        let check = checks.last_mut().unwrap();
        let fields = [&mut check.finding, &mut check.cure, &mut check.link];
        let (next, words) = match (words.strip_prefix("cure: "), words.strip_prefix("see: ")) {
            (Some(words), _) => (1, words),
            (_, Some(words)) => (2, words),
            (None, None) => (field, words),
        };
        field = next;
        let text = fields.into_iter().nth(field).unwrap();
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(words);
    }
    checks
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
