//! Waiting for objects, by a watch.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::kubectl::Kubectl;

/// Makes kubectl list, then watch, and print every event as JSON.
const WATCH: [&str; 4] = ["--watch", "--output-watch-events", "-o", "json"];

/// Between two watches, so that a server that is away is not asked all the time.
const PAUSE: Duration = Duration::from_millis(100);

#[track_caller]
pub(super) fn wait_for(
    kubectl: &Kubectl,
    resource: &[&str],
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut(&Value) -> bool,
) -> Value {
    let end = Instant::now() + deadline;
    let mut seen = BTreeMap::new();
    loop {
        let mut watch = Watch::start(kubectl, resource);
        while let Some(event) = watch.next_before(end) {
            let object = &event["object"];
            let name = object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            if event["type"] == "DELETED" {
                seen.remove(&name);
            } else if condition(object) {
                return event["object"].clone();
            } else {
                seen.insert(name, summary(object));
            }
        }
        let trouble = watch.end();
        if Instant::now() >= end {
            let resource = resource.join(" ");
            let seen: Vec<_> = seen
                .iter()
                .map(|(name, state)| format!("{name}: {state}"))
                .collect();
            let seen = if seen.is_empty() {
                "none".to_owned()
            } else {
                seen.join("\n")
            };
            panic!("no {resource} {what} within {deadline:?}; seen:\n{seen}\n{trouble}");
        }
        thread::sleep(PAUSE);
    }
}

/// What a failure message shows of an object.
fn summary(object: &Value) -> String {
    let mut shown = serde_json::Map::new();
    for key in ["spec", "status"] {
        let Some(Value::Object(fields)) = object.get(key) else {
            continue;
        };
        for (name, value) in fields {
            // Requests, certificates and a node's inventory would hide the rest.
            if ![
                "request",
                "certificate",
                "images",
                "nodeInfo",
                "allocatable",
                "capacity",
            ]
            .contains(&name.as_str())
            {
                shown.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(shown).to_string()
}

struct Watch {
    child: Child,
    events: Receiver<Value>,
}

impl Watch {
    #[track_caller]
    fn start(kubectl: &Kubectl, resource: &[&str]) -> Self {
        let mut command = kubectl.command(["get"].iter().chain(resource), &WATCH);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("setpriv can be started");
        let events = read(child.stdout.take().expect("it is piped"));
        Self { child, events }
    }

    /// The next event; `None` when the watch is cut and at the deadline.
    fn next_before(&mut self, end: Instant) -> Option<Value> {
        match self
            .events
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Ends the watch, and returns what kubectl had to complain about.
    fn end(mut self) -> String {
        self.child.kill().ok();
        let mut complaint = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut complaint).ok();
        }
        complaint
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A thread, since a pipe cannot be read with a deadline; it ends with kubectl.
fn read(stdout: ChildStdout) -> Receiver<Value> {
    let (sender, events) = mpsc::channel();
    thread::spawn(move || {
        let documents = serde_json::Deserializer::from_reader(BufReader::new(stdout));
        for event in documents.into_iter().map_while(Result::ok) {
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    events
}
