//! Waits for objects with a watch.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::AbortHandle;

use super::client::{Answer, Client, Selection};
use super::kubectl::Kubectl;

/// The pause between two watches. Without the pause, the test would poll an unavailable server continuously.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits for an object that satisfies `condition`. The error describes the observed objects.
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
        let mut watch = kubectl.try_watch(resource);
        if watch.is_none() {
            trouble = "the API server does not serve it, or does not answer".to_owned();
        }
        let mut next = || {
            watch
                .as_mut()?
                .next(end.saturating_duration_since(Instant::now()))
        };
        while let Some(event) = next() {
            if event.deleted {
                seen.remove(event.name());
            } else if condition(&event.object) {
                return Ok(event.object);
            } else {
                seen.insert(event.name().to_owned(), summary(&event.object));
            }
        }
        if let Some(error) = watch.and_then(|watch| watch.error.clone()) {
            trouble = error;
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

/// The representation of an object in a failure message.
fn summary(object: &Value) -> String {
    let mut shown = serde_json::Map::new();
    for key in ["spec", "status"] {
        let Some(Value::Object(fields)) = object.get(key) else {
            continue;
        };
        for (name, value) in fields {
            // Omit requests, certificates and a node's inventory, because they would hide the other fields.
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

/// A running watch.
#[derive(Debug)]
pub struct Watch {
    task: AbortHandle,
    events: Receiver<Answer<Event>>,
    /// The reason why the watch ended.
    error: Option<String>,
}

/// A change to an object. At the start, each existing object counts as a change.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The current object, or its last state.
    pub object: Value,
    /// Whether the object is deleted.
    pub deleted: bool,
}

impl Event {
    /// The object's name.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
}

impl Watch {
    pub(super) fn start(client: &Client, selection: &Selection) -> Self {
        let (told, events) = mpsc::channel();
        Self {
            task: client.watch(selection, told),
            events,
            error: None,
        }
    }

    /// Returns the next event. Returns `None` if no event arrives within `deadline`, or if the watch has ended.
    pub fn next(&mut self, deadline: Duration) -> Option<Event> {
        let event = self.events.recv_timeout(deadline).ok()?;
        event.map_err(|error| self.error = Some(error)).ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
