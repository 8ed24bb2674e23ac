//! Requests over their requesters' budgets: each waits behind those of the same requester, and
//! delays nobody else's.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tokio::time::Instant;

use super::Seq;
use crate::hardening::rate_limit::Budgets;

/// What waits for its requester's budget.
#[derive(Debug, Default)]
pub(super) struct Held {
    budgets: Budgets,
    requesters: HashMap<String, Waiting>,
    /// When a requester's budget has something left for its first; one timer a requester, however
    /// much it filed.
    timers: BTreeSet<(Instant, String)>,
}

#[derive(Debug)]
struct Waiting {
    until: Instant,
    uids: BTreeMap<Seq, String>,
}

impl Held {
    /// Whether the requester may have this worked on now; where not, it waits here.
    pub(super) fn admit(&mut self, requester: &str, ticket: Seq, uid: &str, now: Instant) -> bool {
        if let Some(waiting) = self.requesters.get_mut(requester) {
            waiting.uids.insert(ticket, uid.to_owned());
            return false;
        }
        let Err(until) = self.budgets.take(requester, now) else {
            return true;
        };
        let uids = BTreeMap::from([(ticket, uid.to_owned())]);
        self.wait(requester.to_owned(), Waiting { until, uids });
        false
    }

    /// The first whose requester has something left for it at `now`.
    pub(super) fn next(&mut self, now: Instant) -> Option<String> {
        while self.timers.first().is_some_and(|(until, _)| *until <= now) {
            let (_, requester) = self.timers.pop_first()?;
            let waiting = self.requesters.remove(&requester);
            let Some(mut waiting) = waiting.filter(|waiting| !waiting.uids.is_empty()) else {
                continue;
            };
            if let Err(until) = self.budgets.take(&requester, now) {
                waiting.until = until;
                self.wait(requester, waiting);
                continue;
            }
            let first = waiting.uids.pop_first();
            if !waiting.uids.is_empty() {
                waiting.until = now;
                self.wait(requester, waiting);
            }
            return first.map(|(_, uid)| uid);
        }
        None
    }

    /// When [`Self::next`] may have one.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        self.timers.first().map(|(until, _)| *until)
    }

    /// Forgets one.
    pub(super) fn gone(&mut self, requester: &str, ticket: Seq) {
        if let Some(waiting) = self.requesters.get_mut(requester) {
            waiting.uids.remove(&ticket);
        }
    }

    fn wait(&mut self, requester: String, waiting: Waiting) {
        self.timers.insert((waiting.until, requester.clone()));
        self.requesters.insert(requester, waiting);
    }
}
