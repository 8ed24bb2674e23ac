//! Runs the real plugin as client-go does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use kubelet_authenticator_test_support::control_plane::Exec;
use kubelet_authenticator_test_support::settings;
use serde_json::Value;

use crate::cluster::{self, Cluster};

/// The plugin with the state of one machine.
pub struct Plugin {
    program: PathBuf,
    settings: Vec<(&'static str, String)>,
    exec_info: String,
}

/// A run that might still be in progress.
pub struct Running {
    start: Instant,
    child: Child,
}

impl Running {
    /// Whether the run is still in progress.
    pub fn goes_on(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the run with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the run ends. Returns the completed run.
    pub fn finish(self) -> Run {
        let output = self.child.wait_with_output().unwrap();
        Run {
            took: self.start.elapsed(),
            output,
        }
    }
}

/// A completed run.
pub struct Run {
    /// The duration of the run.
    pub took: Duration,
    /// The standard output and the standard error of the run.
    pub output: Output,
}

impl Plugin {
    /// Creates a machine that has never joined. `own` contains additional settings for the provider's plugin.
    pub fn new(
        cluster: &Cluster,
        folder: &Path,
        machine: &str,
        program: &str,
        own: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Self {
        let folder = folder.join(machine);
        std::fs::create_dir_all(&folder).unwrap();
        let bootstrap = cluster.bootstrap_kubeconfig(&folder, machine);
        let stored = [
            ("stateDirectory", folder.join("state")),
            ("bootstrapKubeconfig", bootstrap),
        ];
        let stored = stored.map(|(name, path)| (name, path.display().to_string()));
        Self {
            program: kubelet_authenticator_tests::program(program),
            settings: stored.into_iter().chain(own).collect(),
            exec_info: cluster.exec_info(),
        }
    }

    /// A machine without evidence.
    pub fn insecure(cluster: &Cluster, folder: &Path, machine: &'static str) -> Self {
        let own = [
            ("nodeName", machine.to_owned()),
            ("providerID", cluster::provider_id(machine)),
        ];
        let program = "kubelet-authenticator-insecure";
        Self::new(cluster, folder, machine, program, own)
    }

    /// The name of the plugin's program.
    pub fn name(&self) -> String {
        let name = self.program.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The entry for this plugin in a kubelet's kubeconfig.
    pub fn exec(&self) -> Exec {
        let exec = Exec::new(self.program.clone()).provide_cluster_info();
        let settings = self.settings.iter();
        settings.fold(exec, |exec, (key, value)| exec.setting(key, value))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let settings = self.settings.iter();
        command
            .args(settings.map(|(key, value)| settings::option(key, value)))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("KUBERNETES_EXEC_INFO", &self.exec_info);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the plugin, and waits until it ends.
    pub fn run(&self) -> Run {
        self.start().finish()
    }

    /// Starts the plugin.
    pub fn start(&self) -> Running {
        Running {
            start: Instant::now(),
            child: self.command().spawn().unwrap(),
        }
    }
}

impl Run {
    /// The leaf certificate in the output of the run.
    pub fn certificate(&self) -> Option<String> {
        let answer: Value = serde_json::from_slice(&self.output.stdout).ok()?;
        answer["status"]["clientCertificateData"]
            .as_str()
            .map(str::to_owned)
    }

    /// The messages that the run printed for the operator.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr)
            .trim()
            .to_owned()
    }
}
