//! The real plugin, run as client-go runs it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use kubelet_authenticator_tests::program;
use serde_json::Value;

use crate::cluster::{self, Cluster};

/// The plugin with the state of one machine.
pub struct Plugin {
    machine: &'static str,
    state: PathBuf,
    bootstrap: PathBuf,
    exec_info: String,
}

/// A run that has not ended, as far as is known.
pub struct Running {
    start: Instant,
    child: Child,
}

impl Running {
    /// Whether it has not ended yet.
    pub fn goes_on(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub fn finish(self) -> Run {
        let output = self.child.wait_with_output().unwrap();
        Run {
            took: self.start.elapsed(),
            output,
        }
    }
}

/// One run.
pub struct Run {
    /// How long it took.
    pub took: Duration,
    /// stdout and stderr.
    pub output: Output,
}

impl Plugin {
    /// A machine that has never joined.
    pub fn new(cluster: &Cluster, folder: &Path, machine: &'static str) -> Self {
        let folder = folder.join(machine);
        std::fs::create_dir_all(&folder).unwrap();
        Self {
            machine,
            state: folder.join("state"),
            bootstrap: cluster.bootstrap_kubeconfig(&folder, machine),
            exec_info: cluster.exec_info(),
        }
    }

    /// The environment in which the kubelet would run it.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            (
                "KUBELET_AUTHENTICATOR_STATE_DIRECTORY",
                self.state.display().to_string(),
            ),
            (
                "KUBELET_AUTHENTICATOR_BOOTSTRAP_KUBECONFIG",
                self.bootstrap.display().to_string(),
            ),
            ("KUBELET_AUTHENTICATOR_NODE_NAME", self.machine.to_owned()),
            (
                "KUBELET_AUTHENTICATOR_PROVIDER_ID",
                cluster::provider_id(self.machine),
            ),
        ]
    }

    /// The program.
    pub fn path() -> PathBuf {
        program("kubelet-authenticator-insecure")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(Self::path());
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("KUBERNETES_EXEC_INFO", &self.exec_info)
            .envs(self.env());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs it to its end.
    pub fn run(&self) -> Run {
        self.start().finish()
    }

    /// Starts it.
    pub fn start(&self) -> Running {
        Running {
            start: Instant::now(),
            child: self.command().spawn().unwrap(),
        }
    }
}

impl Run {
    /// The leaf certificate that it printed.
    pub fn certificate(&self) -> Option<String> {
        let answer: Value = serde_json::from_slice(&self.output.stdout).ok()?;
        answer["status"]["clientCertificateData"]
            .as_str()
            .map(str::to_owned)
    }

    /// What it said to the operator.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr)
            .trim()
            .to_owned()
    }
}
