use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, Selection, Served};
use super::watch::{self, Watch};
use crate::binaries::control_plane_binary;
use crate::process::{guarded, poll};

/// The deadline for one request. It includes the plugin run, which can take one minute.
const REQUEST_TIMEOUT: &str = "--request-timeout=90s";

/// The deadline for the API server to serve a kind. On a busy machine, the API server lists a kind in its discovery some
/// time after the condition of its definition is Established.
const SERVED: Duration = Duration::from_secs(30);

/// The annotation in which `kubectl apply` stores the applied object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The real kubectl, with one kubeconfig.
///
/// Operations that only read or write objects, and do not depend on decisions in kubectl, run in this process if the
/// kubeconfig itself contains a credential.
#[derive(Debug, Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    home: PathBuf,
    environment: Vec<(OsString, OsString)>,
    client: Arc<Mutex<Option<Option<Client>>>>,
    served: Served,
}

impl Kubectl {
    /// Creates a kubectl that uses `kubeconfig`, and keeps its caches in `home`.
    pub fn new(kubeconfig: impl Into<PathBuf>, home: impl Into<PathBuf>) -> Self {
        Self {
            kubeconfig: kubeconfig.into(),
            home: home.into(),
            environment: Vec::new(),
            client: Arc::default(),
            served: Served::default(),
        }
    }

    /// Returns a kubectl for the same API server with another kubeconfig.
    pub(super) fn with(&self, kubeconfig: impl Into<PathBuf>) -> Self {
        Self {
            served: self.served.clone(),
            ..Self::new(kubeconfig, &self.home)
        }
    }

    /// Sets an environment variable for kubectl and for the exec plugin that it runs.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs kubectl until it exits, and accepts any exit status.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        self.run_with_input(arguments, "")
    }

    /// Runs kubectl, and returns its standard output.
    ///
    /// # Panics
    ///
    /// Panics if kubectl fails. The message includes kubectl's standard error.
    #[track_caller]
    pub fn ok<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        let arguments: Vec<_> = arguments.into_iter().collect();
        succeeded(&arguments, self.run(&arguments))
    }

    /// Like [`Kubectl::ok`], but with `-o json`. Returns the parsed output.
    #[track_caller]
    pub fn json<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Value {
        let mut all: Vec<_> = arguments
            .into_iter()
            .map(|word| word.as_ref().to_owned())
            .collect();
        if let Some((client, selection)) = self.selected(&all) {
            return client.get(&selection).unwrap_or_else(|error| {
                panic!("kubectl {all:?} failed: {error}");
            });
        }
        all.extend(["-o", "json"].map(OsString::from));
        let printed = self.ok(&all);
        serde_json::from_str(&printed)
            .unwrap_or_else(|error| panic!("kubectl printed no JSON ({error}): {printed}"))
    }

    /// Applies a manifest in YAML or JSON.
    #[track_caller]
    pub fn apply(&self, manifest: &str) {
        let arguments = ["apply", "-f", "-"];
        succeeded(&arguments, self.run_with_input(arguments, manifest));
    }

    /// Applies one object, or a List.
    #[track_caller]
    pub fn apply_object(&self, object: &Value) {
        if let Some(items) = object["items"].as_array() {
            for item in items {
                self.apply_object(item);
            }
        } else if !self.applied_first(object) {
            self.apply(&object.to_string());
        }
    }

    /// Creates the object as `kubectl apply` does. Returns whether the object was created. Otherwise, the caller runs
    /// kubectl, which updates an existing object or reports the error.
    fn applied_first(&self, object: &Value) -> bool {
        let Some((client, place)) = self.placed(object) else {
            return false;
        };
        let mut applied = object.clone();
        applied["metadata"]["annotations"][LAST_APPLIED] = json!(format!("{object}\n"));
        let created = client.create(&place, &applied, "kubectl-client-side-apply");
        created.is_ok()
    }

    /// Creates one object, and returns the stored object.
    #[track_caller]
    pub fn create_object(&self, object: &Value) -> Value {
        self.try_create(object)
            .unwrap_or_else(|error| panic!("kubectl create failed: {error}\n{object:#}"))
    }

    /// Creates objects one after the other, and returns the stored objects.
    #[track_caller]
    pub fn create_objects(&self, objects: &[Value]) -> Vec<Value> {
        objects
            .iter()
            .map(|object| self.create_object(object))
            .collect()
    }

    /// Returns the object as the API server would store it, either created or applied to the existing object. Returns
    /// the reason if the API server would reject it. Nothing is stored.
    ///
    /// # Panics
    ///
    /// Panics if the kind is not served.
    #[track_caller]
    pub fn dry_run(&self, object: &Value, applied: bool) -> Result<Value, String> {
        let (client, place) = self
            .placed(object)
            .unwrap_or_else(|| panic!("nobody serves {object:#}"));
        if applied {
            client.try_apply(&place, object)
        } else {
            client.try_create(&place, object)
        }
    }

    /// Creates one object, and returns the stored object, or the reason why it was rejected.
    pub fn try_create(&self, object: &Value) -> Result<Value, String> {
        if let Some((client, place)) = self.placed(object) {
            return client.create(&place, object, "kubectl-create");
        }
        let arguments = ["create", "-f", "-", "-o", "json"];
        let output = self.run_with_input(arguments, &object.to_string());
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&output.stdout).expect("kubectl prints JSON"))
    }

    /// Writes the statuses of objects. All other fields, except the fields that identify the objects, are ignored.
    #[track_caller]
    pub fn apply_statuses(&self, objects: &[Value]) {
        for object in objects {
            self.apply_in_process(Some("status"), object);
        }
    }

    /// Applies one object on the server, including an object that is too large for the annotation of `kubectl apply`.
    #[track_caller]
    pub fn apply_server_side(&self, object: &Value) {
        self.apply_in_process(None, object);
    }

    #[track_caller]
    fn apply_in_process(&self, subresource: Option<&str>, object: &Value) {
        let (client, place) = self
            .placed(object)
            .expect("a credential, and a kind served");
        client
            .apply(&place, subresource, object)
            .unwrap_or_else(|error| panic!("kubectl apply failed: {error}\n{object:#}"));
    }

    /// Merges `patch` into an object. `target` contains its resource, its name, and kubectl's flags.
    #[track_caller]
    pub fn patch(&self, target: &[&str], patch: &Value) {
        let (words, subresource) = match target {
            [words @ .., last] => match last.strip_prefix("--subresource=") {
                Some(subresource) => (words, Some(subresource)),
                None => (target, None),
            },
            [] => (target, None),
        };
        let words: Vec<_> = ["get"].iter().chain(words).map(OsString::from).collect();
        if let Some((client, place)) = self.selected(&words) {
            client
                .merge(&place, subresource, patch)
                .unwrap_or_else(|error| panic!("kubectl patch {target:?} failed: {error}"));
            return;
        }
        let patch = format!("--patch={patch}");
        self.ok(["patch", "--type=merge", &patch].iter().chain(target));
    }

    /// Watches `resource` (`["nodes"]`, or with kubectl's flags) until an object satisfies `condition`, and returns the
    /// object. `what` describes the awaited state in the failure message.
    ///
    /// Existing objects come first. The watch is resumed if the server ends it.
    ///
    /// # Panics
    ///
    /// Panics at the deadline, with the last known state of each object.
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

    /// Like [`Kubectl::wait_for`], but returns the failure message as an error, so that callers can extend it.
    pub(crate) fn try_wait_for(
        &self,
        resource: &[&str],
        what: &str,
        deadline: Duration,
        condition: impl FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        watch::wait_for(self, resource, what, deadline, condition)
    }

    /// Watches `resource`. Existing objects come first.
    #[track_caller]
    pub fn watch(&self, resource: &[&str]) -> Watch {
        self.try_watch(resource)
            .unwrap_or_else(|| panic!("{resource:?} cannot be watched"))
    }

    /// Like [`Kubectl::watch`], but returns `None` while the API server does not serve the resource, or does not
    /// respond.
    pub(super) fn try_watch(&self, resource: &[&str]) -> Option<Watch> {
        let words: Vec<_> = ["get"].iter().chain(resource).map(OsString::from).collect();
        let (client, selection) = self.selected(&words)?;
        Some(Watch::start(&client, &selection))
    }

    /// Returns the response to a `GET` request for this path, as text. The error is from the API server.
    pub fn raw(&self, path: &str) -> Result<String, String> {
        match self.client() {
            Some(client) => client.raw(path),
            None => {
                let output = self.run(["get", "--raw", path]);
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let failed = !output.status.success();
                if failed {
                    Err(text(&output.stderr))
                } else {
                    Ok(text(&output.stdout))
                }
            }
        }
    }

    /// The client in this process, if the kubeconfig itself contains a credential.
    pub(super) fn client(&self) -> Option<Client> {
        let client = || {
            let by_itself = self.environment.is_empty();
            by_itself
                .then(|| Client::new(&self.kubeconfig, self.served.clone()))
                .flatten()
        };
        self.known_client().get_or_insert_with(client).clone()
    }

    /// Makes the next call reload the kubeconfig, because its file was replaced.
    pub(super) fn read_again(&self) {
        *self.known_client() = None;
    }

    fn known_client(&self) -> MutexGuard<'_, Option<Option<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects that `kubectl get` with these arguments would read, if this process can read them itself.
    fn selected(&self, words: &[OsString]) -> Option<(Client, Selection)> {
        let words: Option<Vec<_>> = words.iter().map(|word| word.to_str()).collect();
        let words = words?;
        let ("get", words) = (*words.first()?, words.get(1..)?) else {
            return None;
        };
        let client = self.client()?;
        let selection = client.select(words)?;
        Some((client, selection))
    }

    /// The location of this object, if this process can access it itself. Waits until the API server serves its kind.
    fn placed(&self, object: &Value) -> Option<(Client, Selection)> {
        let client = self.client()?;
        let place = poll(SERVED, || client.place(object))?;
        Some((client, place))
    }

    /// Runs kubectl with `input` on its standard input.
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
            // kubectl can exit without reading its input.
            scope.spawn(move || stdin.write_all(input.as_bytes()).ok());
            child.wait_with_output().expect("a child can be waited for")
        })
    }

    /// Creates the command, without standard streams.
    pub(super) fn command<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        flags: &[&str],
    ) -> std::process::Command {
        let mut words = vec![control_plane_binary("kubectl").into_os_string()];
        // Put this option first, because the words after `--` are a command in a pod.
        words.push("--kubeconfig".into());
        words.push(self.kubeconfig.clone().into());
        words.extend(flags.iter().map(OsString::from));
        words.extend(arguments.into_iter().map(|word| word.as_ref().to_owned()));
        let mut command = guarded(&[], &words);
        command
            .env("HOME", &self.home)
            // kubectl exits before a garbage collection would be useful.
            .env("GOGC", "off")
            .env("GOMEMLIMIT", "256MiB")
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The path of the kubeconfig that kubectl uses.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
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
