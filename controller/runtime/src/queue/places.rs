//! Selects the requests that the queue keeps if there are too many.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use node_attestation_core::cluster_line;
use tokio::time::Instant;

use super::{Entry, Queue, State};

/// The maximum number of requests: several for each node in the largest cluster that Kubernetes supports. It is
/// necessary because a hostile API server can list an unlimited number of requests.
pub(super) const MAX_ENTRIES: usize = 20_000;

/// The maximum number of open requests from one requester. Machines in a pool share a token, and up to 1,000 machines
/// join at the same time. If the limit is exceeded, the newest requests are dropped until some requests are answered.
pub(super) const MAX_OF_REQUESTER: usize = 1000;

/// The delay after a list before dropped requests are listed again.
pub(super) const RELIST: Duration = Duration::from_secs(10);

/// The requests that were dropped from a list.
#[derive(Debug)]
pub(super) struct LeftOut {
    /// The earliest time of the next list.
    relist: Instant,
    /// The requesters that have too many requests.
    of: BTreeSet<Arc<str>>,
    /// Whether requests from other requesters were also dropped, because of the total limit.
    others: bool,
}

impl Queue {
    /// Whether the queue has space for this entry. To make space, removes answered requests, and requests from a
    /// requester that has more requests than the requester of this entry.
    pub(super) fn admit(&mut self, uid: &str, entry: &Entry) -> bool {
        let requester = entry.requester.clone();
        if self.requesters.count(&requester) >= MAX_OF_REQUESTER {
            self.leave_out(Some(requester));
            return false;
        }
        let bytes = entry.len(uid);
        if !self.has_room(bytes) {
            self.forget_the_settled();
        }
        if !self.has_room(bytes) {
            self.displace(self.requesters.count(&requester));
        }
        if !self.has_room(bytes) {
            self.leave_out(None);
            return false;
        }
        self.entry_bytes += bytes;
        true
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        self.entries.len() < MAX_ENTRIES && self.hold(bytes)
    }

    /// Removes answered requests. If the watch reports one of them again, the checks ignore it. Each call scans all
    /// entries, so calls are at least 1,000 arrivals apart.
    fn forget_the_settled(&mut self) {
        if self.last_arrival < self.purged_at {
            return;
        }
        self.purged_at = self.last_arrival + 1000;
        let settled = |(uid, entry): (&Arc<str>, &Entry)| {
            matches!(entry.state, State::Settled).then(|| uid.clone())
        };
        let settled: Vec<Arc<str>> = self.entries.iter().filter_map(settled).collect();
        for uid in settled {
            self.forget(&uid);
        }
    }

    /// Drops the newest request from the requester with the most requests, if this requester has more than `count + 1`.
    fn displace(&mut self, count: usize) {
        let idle = |uid: &&Arc<str>| {
            let entry = self.entries.get(&***uid);
            entry.is_some_and(|entry| !matches!(entry.state, State::Running(_)))
        };
        let largest = self.requesters.largest();
        let largest = largest.filter(|(most, _)| *most > count + 1);
        let newest = largest.and_then(|(_, mut open)| open.find(idle).cloned());
        let Some((uid, entry)) = newest.and_then(|uid| self.entries.get_key_value(&*uid)) else {
            return;
        };
        let (uid, requester) = (uid.clone(), entry.requester.clone());
        self.leave_out(Some(requester));
        self.gone(&uid);
    }

    /// Delays the next list after a list that dropped requests.
    pub(super) fn wait_before_relist(&mut self) {
        if let Some(left_out) = &mut self.left_out {
            left_out.relist = Instant::now() + RELIST;
        }
    }

    fn leave_out(&mut self, requester: Option<Arc<str>>) {
        if !mem::replace(&mut self.is_logged, true) {
            let requester = requester.as_deref();
            cluster_line!(
                &self.lines,
                WARN,
                requester,
                "too many requests are pending; the newest requests are ignored for now"
            );
        }
        let left_out = self.left_out.get_or_insert_with(|| LeftOut {
            relist: Instant::now() + RELIST,
            of: BTreeSet::new(),
            others: false,
        });
        match requester {
            Some(requester) => drop(left_out.of.insert(requester)),
            None => left_out.others = true,
        }
    }

    /// Whether a new list is due, because requests were dropped and there is now space.
    pub(crate) fn relist(&mut self, now: Instant) -> bool {
        let is_due = self.relistable().is_some_and(|at| at <= now);
        if is_due {
            self.left_out = None;
        }
        is_due
    }

    /// The time of a new list, if there is now space for requests that were dropped.
    pub(super) fn relistable(&self) -> Option<Instant> {
        let has_few = |one: &Arc<str>| self.requesters.count(one) <= MAX_OF_REQUESTER / 2;
        let has_room = self.entries.len() <= MAX_ENTRIES / 2;
        let left_out = self.left_out.as_ref().filter(|_| !self.is_listing)?;
        let has_place = left_out.of.iter().any(has_few) || left_out.others && has_room;
        has_place.then_some(left_out.relist)
    }

    /// Removes the entry.
    pub(super) fn forget(&mut self, uid: &str) {
        if let Some(entry) = self.entries.remove(uid) {
            self.requesters.remove(&entry.requester, entry.arrival);
            self.pending.remove(entry.created, entry.arrival);
            self.entry_bytes = self.entry_bytes.saturating_sub(entry.len(uid));
            self.hold(0);
        }
    }

    /// Reserves memory for the entries, for the requesters' budgets, and for `more` bytes. If there is not enough
    /// memory, returns `false` and does not change the reservation.
    fn hold(&mut self, more: usize) -> bool {
        let bytes = self.entry_bytes + self.budgets.memory() + more;
        self.memory.resize(bytes)
    }
}

#[cfg(test)]
mod tests;
