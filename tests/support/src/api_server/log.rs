//! The log of the requests to the server, and the gates at which a test holds them.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::faults::Route;
use super::resource::{Target, Verb};
use super::{lock, wait_until};
use crate::clock::now;

/// A request that reached the server.
#[derive(Debug, Clone)]
pub struct Request {
    /// The number of the request, starting from 0.
    pub number: usize,
    /// The number of the request's connection, starting from 0.
    pub connection: usize,
    /// The time at which the server had read the request's body.
    pub at: SystemTime,
    /// The operation of the request.
    pub verb: Verb,
    /// The HTTP method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query as received.
    pub query: String,
    /// The plural resource name. Empty if the path does not refer to a resource.
    pub resource: String,
    /// The name in the path.
    pub name: String,
    /// The subresource in the path.
    pub subresource: String,
    /// The `User-Agent` header.
    pub user_agent: String,
    /// The user name after authentication.
    pub user: Option<String>,
    /// The body as received. Empty for reads.
    pub body: Vec<u8>,
    /// The status of the response. `None` until the request is answered.
    pub code: Option<u16>,
    /// The time from the request's arrival to the head of the response.
    pub took: Option<Duration>,
    arrived: Instant,
}

/// All requests, oldest first.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Mutex<Vec<Request>>,
    changed: Condvar,
}

impl Log {
    pub(super) fn record(&self, arrived: Arrived<'_>) -> usize {
        let Arrived {
            connection,
            method,
            query,
            user_agent,
            target,
            body,
        } = arrived;
        let mut entries = lock(&self.entries);
        let number = entries.len();
        let request = Request {
            number,
            connection,
            at: now(),
            verb: target.verb,
            method: method.to_owned(),
            path: target.path.clone(),
            query: query.to_owned(),
            resource: target.plural.clone(),
            name: target.name.clone(),
            subresource: target.subresource.clone(),
            user_agent: user_agent.to_owned(),
            user: None,
            body: body.to_vec(),
            code: None,
            took: None,
            arrived: Instant::now(),
        };
        entries.push(request);
        drop(entries);
        self.changed.notify_all();
        number
    }

    pub(super) fn authenticated(&self, number: usize, user: &str) {
        if let Some(request) = lock(&self.entries).get_mut(number) {
            request.user = Some(user.to_owned());
        }
    }

    pub(super) fn answered(&self, number: usize, code: u16) {
        if let Some(request) = lock(&self.entries).get_mut(number) {
            request.code = Some(code);
            request.took = Some(request.arrived.elapsed());
        }
        self.changed.notify_all();
    }

    pub(super) fn all(&self) -> Vec<Request> {
        lock(&self.entries).clone()
    }

    /// Waits until `pick` returns a value for the requests.
    pub(super) fn wait<T>(
        &self,
        deadline: Duration,
        mut pick: impl FnMut(&[Request]) -> Option<T>,
    ) -> Option<T> {
        wait_until(&self.entries, &self.changed, deadline, |entries| {
            pick(entries)
        })
    }
}

/// A request that has just arrived.
pub(super) struct Arrived<'a> {
    pub(super) connection: usize,
    pub(super) method: &'a str,
    pub(super) query: &'a str,
    pub(super) user_agent: &'a str,
    pub(super) target: &'a Target,
    pub(super) body: &'a [u8],
}

/// The step at which a gate holds a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The request has been read, but not executed.
    Received,
    /// The request has been executed and stored, but not answered.
    Stored,
}

/// The state of held requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Held,
    Go,
    Cut,
}

/// A gate that holds requests at a step until it is opened, cut or dropped. Dropping the gate opens it.
#[derive(Debug)]
#[must_use = "a gate that is dropped holds nothing"]
pub struct Gate {
    pub(super) shared: Arc<GateState>,
}

#[derive(Debug)]
pub(super) struct GateState {
    route: Route,
    step: Step,
    held: Mutex<usize>,
    arrived: Condvar,
    verdict: watch::Sender<Verdict>,
}

impl Gate {
    pub(super) fn new(route: Route, step: Step) -> Self {
        Self {
            shared: Arc::new(GateState {
                route,
                step,
                held: Mutex::new(0),
                arrived: Condvar::new(),
                verdict: watch::Sender::new(Verdict::Held),
            }),
        }
    }

    /// Waits until `count` requests have arrived at the gate.
    ///
    /// # Panics
    ///
    /// Panics if the requests have not arrived within `deadline`.
    pub fn wait(&self, count: usize, deadline: Duration) {
        let state = &self.shared;
        wait_until(&state.held, &state.arrived, deadline, |held| {
            (*held >= count).then_some(())
        })
        .unwrap_or_else(|| panic!("{count} requests did not arrive at the gate {state:?}"));
    }

    /// Releases the held requests and all later requests.
    pub fn open(self) {
        drop(self);
    }

    /// Closes the connections of the held requests. At [`Step::Received`], nothing is executed or stored.
    pub fn cut(self) {
        self.shared.verdict.send_replace(Verdict::Cut);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.verdict.send_if_modified(|verdict| {
            let held = *verdict == Verdict::Held;
            if held {
                *verdict = Verdict::Go;
            }
            held
        });
    }
}

impl GateState {
    pub(super) fn holds(&self, target: &Target, step: Step) -> bool {
        self.step == step && *self.verdict.borrow() == Verdict::Held && self.route.matches(target)
    }

    pub(super) async fn pass(&self) -> Verdict {
        let mut verdict = self.verdict.subscribe();
        *lock(&self.held) += 1;
        self.arrived.notify_all();
        verdict
            .wait_for(|verdict| *verdict != Verdict::Held)
            .await
            .map_or(Verdict::Go, |verdict| *verdict)
    }
}
