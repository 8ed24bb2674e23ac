//! Waiting for objects, by a watch.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::kubectl::Kubectl;

/// Makes kubectl list, then watch, and print every event as JSON.
const WATCH: [&str; 4] = ["--watch", "--output-watch-events", "-o", "json"];

/// Between two watches, so that a server that is away is not asked all the time.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits for an object that satisfies `condition`; the error says what there was instead.
pub(super) fn wait_for(
    kubectl: &Kubectl,
    resource: &[&str],
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut(&Value) -> bool,
) -> Result<Value, String> {
    let end = Instant::now() + deadline;
    let mut seen = BTreeMap::new();
    let mut trouble = String::new();
    loop {
        let mut watch = Watch::start(kubectl, resource);
        while let Some(event) = watch.next(end.saturating_duration_since(Instant::now())) {
            if event.deleted {
                seen.remove(event.name());
            } else if condition(&event.object) {
                return Ok(event.object);
            } else {
                seen.insert(event.name().to_owned(), summary(&event.object));
            }
        }
        let complaint = watch.end();
        if !complaint.is_empty() {
            trouble = complaint;
        }
        if Instant::now() >= end {
            let resource = resource.join(" ");
            let mut message = format!("no {resource} {what} within {deadline:?}; seen:");
            for (name, state) in &seen {
                message.push_str(&format!("\n{name}: {state}"));
            }
            return Err(format!("{message}\n{trouble}"));
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

/// A running watch by kubectl.
#[derive(Debug)]
pub struct Watch {
    child: Child,
    events: Receiver<Event>,
}

/// Something that happened to an object, its being there at first included.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The object, as it is now or as it was last.
    pub object: Value,
    /// Whether it is gone.
    pub deleted: bool,
}

impl Event {
    /// The object's name.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    fn parse(mut document: Value) -> Self {
        let deleted = document["type"] == "DELETED";
        Self {
            object: document["object"].take(),
            deleted,
        }
    }
}

impl Watch {
    pub(super) fn start(kubectl: &Kubectl, resource: &[&str]) -> Self {
        let mut command = kubectl.command(["get"].iter().chain(resource), &WATCH);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("setpriv can be started");
        let events = read(child.stdout.take().expect("it is piped"));
        Self { child, events }
    }

    /// The next event; `None` when there is none within `deadline`, or the watch was cut.
    pub fn next(&mut self, deadline: Duration) -> Option<Event> {
        self.events.recv_timeout(deadline).ok()
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
fn read(stdout: ChildStdout) -> Receiver<Event> {
    let (sender, events) = mpsc::channel();
    thread::spawn(move || {
        let documents = serde_json::Deserializer::from_reader(BufReader::new(stdout));
        for document in documents.into_iter().map_while(Result::ok) {
            if sender.send(Event::parse(document)).is_err() {
                return;
            }
        }
    });
    events
}
