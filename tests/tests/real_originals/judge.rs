//! The judges: programs that run the code of the originals.

use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::LazyLock;

use kubelet_authenticator_test_support::binaries;
use kubelet_authenticator_test_support::process::Scratch;
use serde_json::Value;

/// The directory of the programs.
pub fn directory() -> &'static Path {
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
        binaries::build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("judges/build"))
    });
    &DIRECTORY
}

/// A running program that answers one case after the other.
#[derive(Debug)]
pub struct Judge {
    child: Child,
    cases: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    scratch: Scratch,
}

impl Judge {
    /// Starts a program with only this environment.
    pub fn start(name: &str, environment: &[(&str, &str)]) -> Self {
        let scratch = Scratch::new(name);
        let log = std::fs::File::create(scratch.join("log")).unwrap();
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(directory().join(name))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("HOME", "/nonexistent")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            cases: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
            scratch,
        }
    }

    /// Returns the answer to a case. `None` if the program crashed instead.
    pub fn ask(&mut self, case: &Value) -> Option<Value> {
        let mut line = case.to_string();
        line.push('\n');
        self.cases
            .as_mut()
            .unwrap()
            .write_all(line.as_bytes())
            .ok()?;
        self.answer()
    }

    /// Returns the answers to all cases, from a program that first reads all cases.
    pub fn ask_all(mut self, cases: &[Value]) -> Vec<Value> {
        let lines: String = cases.iter().map(|case| format!("{case}\n")).collect();
        let mut input = self.cases.take().unwrap();
        let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
        let answers: Vec<_> = std::iter::from_fn(|| self.answer()).collect();
        writer.join().unwrap().ok();
        assert_eq!(answers.len(), cases.len(), "{}", self.log());
        answers
    }

    fn answer(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    /// Waits until the program ends.
    pub fn end(&mut self) -> ExitStatus {
        self.cases = None;
        self.child.wait().unwrap()
    }

    /// The messages of the program.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("log")).unwrap()
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
