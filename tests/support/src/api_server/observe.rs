//! Observes and interrupts the server's requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::faults::Route;
use super::log::{Gate, Request, Step};
use super::resource::{REQUESTS, Verb};
use super::{ApiServer, lock};

impl ApiServer {
    /// Holds matching requests at a step until the gate is opened, cut or dropped.
    pub fn hold(&self, route: Route, step: Step) -> Gate {
        let gate = Gate::new(route, step);
        lock(&self.shared.gates).push(gate.shared.clone());
        gate
    }

    /// All requests so far, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log.all()
    }

    /// The number of creations of certificate requests, regardless of their responses.
    pub fn creates(&self) -> usize {
        self.count(Verb::Create)
    }

    /// The number of watches on certificate requests.
    pub fn watches(&self) -> usize {
        self.count(Verb::Watch)
    }

    /// The number of reads of one certificate request.
    pub fn gets(&self) -> usize {
        self.count(Verb::Get)
    }

    /// The number of lists of certificate requests.
    pub fn lists(&self) -> usize {
        self.count(Verb::List)
    }

    /// The bodies of all creations of certificate requests.
    pub fn created_bodies(&self) -> Vec<Vec<u8>> {
        self.requests()
            .into_iter()
            .filter(|request| is_csr(request, Verb::Create))
            .map(|request| request.body)
            .collect()
    }

    /// The number of accepted connections, including faulty connections.
    pub fn connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// The number of connections that are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Waits until `count` requests that `matches` accepts have arrived, and returns the last one.
    ///
    /// # Panics
    ///
    /// Panics if the requests have not arrived within `deadline`.
    pub fn wait_for(
        &self,
        count: usize,
        deadline: Duration,
        matches: impl Fn(&Request) -> bool,
    ) -> Request {
        let nth = |requests: &[Request]| {
            requests
                .iter()
                .filter(|it| matches(it))
                .nth(count.saturating_sub(1))
                .cloned()
        };
        self.shared.log.wait(deadline, nth).unwrap_or_else(|| {
            let seen: Vec<String> = self
                .requests()
                .iter()
                .map(|it| format!("{} {}", it.method, it.path))
                .collect();
            panic!("{count} requests did not arrive within {deadline:?}; these requests arrived: {seen:?}")
        })
    }

    /// Waits until `count` calls with this verb on certificate requests have arrived.
    ///
    /// # Panics
    ///
    /// Panics if the calls have not arrived within `deadline`.
    pub fn wait_for_request(&self, verb: Verb, count: usize, deadline: Duration) -> Request {
        self.wait_for(count, deadline, |request| is_csr(request, verb))
    }

    fn count(&self, verb: Verb) -> usize {
        self.requests()
            .iter()
            .filter(|request| is_csr(request, verb))
            .count()
    }
}

fn is_csr(request: &Request, verb: Verb) -> bool {
    request.verb == verb && request.resource == REQUESTS.plural && request.subresource.is_empty()
}
