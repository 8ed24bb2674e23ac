//! A node: the real plugin with a separate state directory, and the plugin's callers.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kubelet_authenticator_test_support::api_server::{ApiServer, TOKEN, Verb};
use kubelet_authenticator_test_support::clock::since_epoch;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::settings;
use serde_json::Value;

use crate::{program, runs_others};

/// The plugin for machines without evidence. The certificates for this plugin are never renewed.
pub const INSECURE: &str = "kubelet-authenticator-insecure";

/// The plugin with the rubber stamp. Its certificates are renewed.
pub const NULL: &str = "kubelet-authenticator-null";

/// The plugin of `src/bin/plugin_under_test.rs`.
pub const UNDER_TEST: &str = "plugin_under_test";

/// The name of the nodes in the suites.
pub const NODE: &str = "n1";

/// The user name of the nodes' bootstrap token.
pub const BOOTSTRAP_USER: &str = "system:bootstrap:abcdef";

/// A deadline that is longer than any wait in a suite.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A shell script that sets the host name `$0`, and runs the remaining arguments.
const NAMED: &str = r#"echo "$0" > /proc/sys/kernel/hostname; exec "$@""#;

/// The minimum and the maximum of the time that a process gets on a busy machine, in addition to its time limit. With
/// the minimum, a run that does not wait still takes less time than the shortest time limit of the plugin (5 seconds).
const STARTING: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(15)];

/// A node that joins the cluster of an API server.
#[derive(Debug)]
pub struct Node {
    scratch: Scratch,
    program: PathBuf,
    wrapper: Vec<OsString>,
    settings: Vec<(String, OsString)>,
    environment: Vec<(OsString, OsString)>,
}

/// The result of a plugin run.
#[derive(Debug)]
pub struct Run {
    /// The exit status; `None` if the plugin was killed.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// The duration of the run.
    pub took: Duration,
}

/// The users that created requests after the first request, except unauthenticated users.
pub fn requesters(server: &ApiServer) -> Vec<String> {
    let requests = server.requests().into_iter();
    let creates = requests.filter(|request| request.verb == Verb::Create);
    creates.skip(1).filter_map(|request| request.user).collect()
}

impl Node {
    /// Creates a node with this plugin, a bootstrap token, and an empty store.
    pub fn new(plugin: &str, server: &ApiServer) -> Self {
        Self::of(program(plugin), server)
    }

    /// Like [`new`](Self::new), but with the plugin at this path.
    pub fn of(program: PathBuf, server: &ApiServer) -> Self {
        let scratch = Scratch::new("node");
        let bootstrap = server.write_bootstrap_kubeconfig(scratch.path(), TOKEN);
        let mut node = Self {
            program,
            wrapper: Vec::new(),
            settings: Vec::new(),
            environment: Vec::new(),
            scratch,
        };
        node.set("stateDirectory", node.state());
        node.set("bootstrapKubeconfig", bootstrap);
        node.set("nodeName", NODE);
        node.set("providerID", "test:///machine-1");
        node.set_env("KUBERNETES_EXEC_INFO", server.exec_info("v1", true));
        node
    }

    /// Sets an option of the plugin: the setting with this key in a file, or `config` or `timeLimit`.
    pub fn set(&mut self, key: &str, value: impl AsRef<OsStr>) {
        self.unset(key);
        self.settings
            .push((key.to_owned(), value.as_ref().to_owned()));
    }

    /// Removes the option.
    pub fn unset(&mut self, key: &str) {
        self.settings.retain(|(known, _)| known != key);
    }

    /// From now on, runs the plugin in an empty directory, without the other programs next to it. Returns the
    /// directory.
    #[track_caller]
    pub fn move_program(&mut self) -> PathBuf {
        let installed = Path::new("/usr/lib/kubelet-authenticator");
        assert!(
            !installed.exists(),
            "a program is missing only on a machine without {}: remove the package",
            installed.display()
        );
        let folder = self.scratch.directory("moved");
        let moved = folder.join(self.program.file_name().unwrap());
        if !moved.exists() {
            let linked = fs::hard_link(&self.program, &moved);
            // A hard link works only within the same file system.
            linked
                .or_else(|_| fs::copy(&self.program, &moved).map(drop))
                .unwrap();
            self.program = moved;
        }
        folder
    }

    /// Sets a variable of the plugin's environment.
    ///
    /// # Panics
    ///
    /// Panics if the variable is the key of a setting. The plugin does not read settings from its environment.
    /// Therefore, a test would run with the defaults, which are the addresses of real clouds.
    #[track_caller]
    pub fn set_env(&mut self, name: &str, value: impl AsRef<OsStr>) {
        let variable = name.contains('_') || !name.contains(|c: char| c.is_ascii_lowercase());
        assert!(variable, "{name} is a setting: give it to `set`");
        self.unset_env(name);
        self.environment
            .push((name.into(), value.as_ref().to_owned()));
    }

    /// Removes a variable of the plugin's environment.
    pub fn unset_env(&mut self, name: &str) {
        self.environment.retain(|(key, _)| key != OsStr::new(name));
    }

    /// Runs the plugin with this command, whose last arguments are the plugin and its arguments.
    pub fn wrap(&mut self, wrapper: &[&str]) {
        self.wrapper = wrapper.iter().map(OsString::from).collect();
    }

    /// From now on, runs the plugin on a machine with this host name. Replaces any other wrapper.
    pub fn call(&mut self, host_name: &str) {
        self.wrap(&["unshare", "--uts", "bash", "-c", NAMED, host_name]);
    }

    /// A directory that belongs to the node.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.scratch.join("state")
    }

    /// The path of a file in the state directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.state().join(name)
    }

    /// Reads an existing file in the state directory as JSON.
    #[track_caller]
    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.file(name)).unwrap()).unwrap()
    }

    /// Changes a JSON file in the state directory.
    #[track_caller]
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut value = self.json(name);
        change(&mut value);
        fs::write(self.file(name), value.to_string()).unwrap();
    }

    /// The names of the files in the state directory, sorted.
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.state()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Runs the plugin as client-go does.
    #[track_caller]
    pub fn run(&self) -> Run {
        self.run_with(&[])
    }

    /// Runs the plugin with arguments.
    #[track_caller]
    pub fn run_with(&self, arguments: &[&str]) -> Run {
        self.start(arguments).finish()
    }

    /// Runs a command of the plugin as an administrator does, without exec info.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) -> Run {
        self.start_without(arguments, Some("KUBERNETES_EXEC_INFO"))
            .finish()
    }

    /// Runs another program of the project instead of the plugin, as client-go does.
    #[track_caller]
    pub fn run_as(&self, name: &str, environment: &[(&str, &str)]) -> Run {
        let program = program(name);
        self.start_program(&program, &[], None, environment)
            .finish()
    }

    /// Starts the plugin.
    #[track_caller]
    pub fn start(&self, arguments: &[&str]) -> Started {
        self.start_without(arguments, None)
    }

    fn start_without(&self, arguments: &[&str], variable: Option<&str>) -> Started {
        self.start_program(&self.program, arguments, variable, &[])
    }

    fn start_program(
        &self,
        program: &Path,
        arguments: &[&str],
        variable: Option<&str>,
        additions: &[(&str, &str)],
    ) -> Started {
        let mut line = self.wrapper.clone();
        line.push(program.into());
        // An option can be given only once.
        let settings = self.settings.iter();
        // A plugin from an earlier commit does not support the time limit option, and takes longer.
        let settings = settings.filter(|(key, _)| key != "timeLimit" || !runs_others());
        let settings = settings.filter(|(key, _)| {
            let flag = settings::flag(key);
            let is_it = |argument: &&str| argument.split('=').next() == Some(&*flag);
            !arguments.iter().any(is_it)
        });
        line.extend(settings.map(|(key, value)| settings::option(key, value)));
        line.extend(arguments.iter().map(OsString::from));
        let (first, rest) = line.split_first().unwrap();
        let environment = self.environment.iter();
        let environment = environment.filter(|(key, _)| variable.is_none_or(|name| key != name));
        let child = Command::new(first)
            .args(rest)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(environment.map(|(key, value)| (key, value)))
            .envs(additions.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Started {
            child: Some(child),
            at: Instant::now(),
        }
    }

    /// The certificate's serial number in the output of `status`.
    #[track_caller]
    pub fn serial(&self) -> String {
        let status = self.status();
        status["certificate"]["serial"].as_str().unwrap().to_owned()
    }

    /// The output of `status -o json`.
    #[track_caller]
    pub fn status(&self) -> Value {
        let run = self.command(&["status", "-o", "json"]).succeeded();
        serde_json::from_str(&run.stdout).unwrap()
    }
}

/// A running plugin. The plugin is killed when this value is dropped.
#[derive(Debug)]
pub struct Started {
    child: Option<Child>,
    at: Instant,
}

impl Started {
    /// Sends SIGKILL to the plugin.
    #[track_caller]
    pub fn kill(&mut self) {
        self.child.as_mut().unwrap().kill().unwrap();
    }

    /// Sends SIGABRT to the plugin, which then ends as after an internal error.
    #[track_caller]
    pub fn abort(&mut self) {
        let child = self.child.as_ref().unwrap();
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::ABORT).unwrap();
    }

    /// The soft limit on the size of the plugin's core file in bytes, as the kernel reports it.
    #[track_caller]
    pub fn core_limit(&self) -> String {
        let pid = self.child.as_ref().unwrap().id();
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let mut lines = limits.lines();
        let limit = lines.find_map(|line| line.strip_prefix("Max core file size"));
        limit.unwrap().split_whitespace().next().unwrap().to_owned()
    }

    /// Waits until the run ends. Returns the result of the run.
    #[track_caller]
    pub fn finish(mut self) -> Run {
        let mut child = self.child.take().unwrap();
        let mut errors = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).unwrap();
            text
        });
        let mut stdout = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut stdout)
            .unwrap();
        let status = child.wait().unwrap();
        Run {
            code: status.code(),
            stdout,
            stderr: stderr.join().unwrap(),
            took: self.at.elapsed(),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Run {
    /// Asserts that this run succeeded.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Asserts that this run exited with this status, printed this text on standard error, and printed nothing on
    /// standard output.
    #[track_caller]
    pub fn failed(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert_eq!(self.stdout, "", "{self:#?}");
        assert!(!self.stderr.is_empty());
        self
    }

    /// Asserts that the standard error of this run contains `text`.
    #[track_caller]
    pub fn saying(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "no {text:?} in {self:#?}");
        self
    }

    /// Runs the command that the hint contains.
    #[track_caller]
    pub fn follow_hint(&self) {
        let mut hints = self
            .stderr
            .lines()
            .filter(|line| line.starts_with("hint: "));
        let Some((_, command)) = hints.find_map(|line| line.split_once("run: ")) else {
            panic!("no command in {self:#?}");
        };
        let status = Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(status.success(), "{command}: {status}");
    }

    /// Asserts that this run took at most `limit` from its start, or at most twice as long on a machine under load. With
    /// a larger tolerance, the test would not detect a doubled limit in the program. A short limit has a tolerance of 3
    /// seconds, because a busy machine can need this time to start a process.
    #[track_caller]
    pub fn within(self, limit: Duration) -> Self {
        let [least, most] = STARTING;
        assert!(self.took < limit + limit.clamp(least, most), "{self:#?}");
        self
    }

    /// The ExecCredential that this run printed, without other output.
    #[track_caller]
    pub fn credential(&self) -> Value {
        let credential: Value = serde_json::from_str(&self.stdout).unwrap();
        assert_eq!(credential["kind"], "ExecCredential");
        credential
    }

    /// The certificate and the key that this run printed.
    #[track_caller]
    pub fn pair(&self) -> (String, String) {
        let status = &self.credential()["status"];
        let text = |field: &str| status[field].as_str().unwrap().to_owned();
        (text("clientCertificateData"), text("clientKeyData"))
    }

    /// The time from `now` until client-go runs the plugin again.
    #[track_caller]
    pub fn expires_in(&self, now: std::time::SystemTime) -> Duration {
        let credential = self.credential();
        let text = credential["status"]["expirationTimestamp"]
            .as_str()
            .unwrap();
        let expiration = humantime::parse_rfc3339(text).unwrap();
        since_epoch(expiration).saturating_sub(since_epoch(now))
    }
}

/// Whether `file` contains a certificate and its key, according to openssl.
#[track_caller]
pub fn is_pair(file: &Path) -> bool {
    let public_key = |arguments: &[&str]| {
        let output = Command::new("openssl")
            .args(arguments)
            .arg("-in")
            .arg(file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    public_key(&["x509", "-noout", "-pubkey"]) == public_key(&["pkey", "-pubout"])
}
