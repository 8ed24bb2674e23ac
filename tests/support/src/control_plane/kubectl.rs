use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::watch::{self, Watch};
use crate::binaries::control_plane_binary;
use crate::process::guarded;

/// How long one request may take, plugin runs not counted.
const REQUEST_TIMEOUT: &str = "--request-timeout=30s";

/// The real kubectl with one kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    home: PathBuf,
    environment: Vec<(OsString, OsString)>,
}

impl Kubectl {
    /// A kubectl that uses `kubeconfig`, and keeps its caches in `home`.
    pub fn new(kubeconfig: impl Into<PathBuf>, home: impl Into<PathBuf>) -> Self {
        Self {
            kubeconfig: kubeconfig.into(),
            home: home.into(),
            environment: Vec::new(),
        }
    }

    /// Sets an environment variable, for kubectl and the exec plugin that it runs.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs it to its end, whatever that is.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        self.run_with_input(arguments, "")
    }

    /// Runs it, and returns what it printed.
    ///
    /// # Panics
    ///
    /// If it fails; the message has its standard error.
    #[track_caller]
    pub fn ok<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        let arguments: Vec<_> = arguments.into_iter().collect();
        succeeded(&arguments, self.run(&arguments))
    }

    /// Like [`Kubectl::ok`] with `-o json`, parsed.
    #[track_caller]
    pub fn json<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Value {
        let mut all: Vec<_> = arguments
            .into_iter()
            .map(|word| word.as_ref().to_owned())
            .collect();
        all.extend(["-o", "json"].map(OsString::from));
        let printed = self.ok(&all);
        serde_json::from_str(&printed)
            .unwrap_or_else(|error| panic!("kubectl printed no JSON ({error}): {printed}"))
    }

    /// Applies a manifest, YAML or JSON.
    #[track_caller]
    pub fn apply(&self, manifest: &str) {
        let arguments = ["apply", "-f", "-"];
        succeeded(&arguments, self.run_with_input(arguments, manifest));
    }

    /// Applies one object.
    #[track_caller]
    pub fn apply_object(&self, object: &Value) {
        self.apply(&object.to_string());
    }

    /// Creates one object, and returns it as it is stored.
    #[track_caller]
    pub fn create_object(&self, object: &Value) -> Value {
        let mut stored = self.create_objects(std::slice::from_ref(object));
        stored.pop().expect("kubectl prints what it created")
    }

    /// Creates objects with one call, and returns them as they are stored.
    #[track_caller]
    pub fn create_objects(&self, objects: &[Value]) -> Vec<Value> {
        let arguments = ["create", "-f", "-", "-o", "json"];
        let output = self.run_with_input(arguments, &list(objects));
        let printed = succeeded(&arguments, output);
        serde_json::Deserializer::from_str(&printed)
            .into_iter()
            .collect::<Result<_, _>>()
            .expect("kubectl prints JSON")
    }

    /// Writes the statuses of objects with one call; all else in them but what names them is
    /// ignored.
    #[track_caller]
    pub fn apply_statuses(&self, objects: &[Value]) {
        let arguments = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--subresource=status",
            "-f",
            "-",
        ];
        succeeded(&arguments, self.run_with_input(arguments, &list(objects)));
    }

    /// Merges `patch` into an object, whose `target` is its resource, its name, and kubectl's flags.
    #[track_caller]
    pub fn patch(&self, target: &[&str], patch: &Value) {
        let patch = format!("--patch={patch}");
        self.ok(["patch", "--type=merge", &patch].iter().chain(target));
    }

    /// Watches `resource` (`["nodes"]`, or with kubectl's flags) until an object satisfies
    /// `condition`, and returns it; `what` says in the failure message what was waited for.
    ///
    /// Objects that are there already come first. Watching goes on when the server cuts it.
    ///
    /// # Panics
    ///
    /// At the deadline, with the state that each object was last seen in.
    #[track_caller]
    pub fn wait_for(
        &self,
        resource: &[&str],
        what: &str,
        deadline: Duration,
        condition: impl FnMut(&Value) -> bool,
    ) -> Value {
        self.try_wait_for(resource, what, deadline, condition)
            .unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Like [`Kubectl::wait_for`], for a caller with more to say about the failure.
    pub(crate) fn try_wait_for(
        &self,
        resource: &[&str],
        what: &str,
        deadline: Duration,
        condition: impl FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        watch::wait_for(self, resource, what, deadline, condition)
    }

    /// Watches `resource`; objects that are there already come first.
    pub fn watch(&self, resource: &[&str]) -> Watch {
        Watch::start(self, resource)
    }

    /// Runs it with this on its standard input.
    #[track_caller]
    pub fn run_with_input<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        input: &str,
    ) -> Output {
        let mut command = self.command(arguments, &[REQUEST_TIMEOUT]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("setpriv can be started");
        let mut stdin = child.stdin.take().expect("it is piped");
        thread::scope(|scope| {
            // It may end without reading.
            scope.spawn(move || stdin.write_all(input.as_bytes()).ok());
            child.wait_with_output().expect("a child can be waited for")
        })
    }

    /// The command, without standard streams set up.
    pub(super) fn command<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        flags: &[&str],
    ) -> std::process::Command {
        let mut words = vec![control_plane_binary("kubectl").into_os_string()];
        words.extend(arguments.into_iter().map(|word| word.as_ref().to_owned()));
        words.push("--kubeconfig".into());
        words.push(self.kubeconfig.clone().into());
        words.extend(flags.iter().map(OsString::from));
        let mut command = guarded(&[], &words);
        command
            .env("HOME", &self.home)
            // It ends before a garbage collection pays.
            .env("GOGC", "off")
            .env("GOMEMLIMIT", "256MiB")
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The kubeconfig it uses.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

fn list(objects: &[Value]) -> String {
    json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string()
}

#[track_caller]
fn succeeded<A: AsRef<OsStr>>(arguments: &[A], output: Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let words: Vec<_> = arguments
            .iter()
            .map(|word| word.as_ref().to_string_lossy())
            .collect();
        let stderr = String::from_utf8_lossy(&output.stderr);
        panic!(
            "kubectl {} failed ({}): {stderr}{stdout}",
            words.join(" "),
            output.status
        );
    }
    stdout
}
