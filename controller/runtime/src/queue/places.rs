//! The requests that the queue holds when there are too many.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::{Entry, Queue, State};

/// So many requests are known at once: several for each node of the largest cluster that Kubernetes
/// supports. A hostile API server lists without end.
pub(super) const MAX_ENTRIES: usize = 20_000;

/// So many open ones of one requester are known: the machines of a pool share a token, and join a
/// thousand at a time. Of more, the newest are left out until some of them are answered.
pub(super) const MAX_OF_REQUESTER: usize = 1000;

/// How long after a list there is another, because requests were left out.
pub(super) const RELIST: Duration = Duration::from_secs(10);

/// What was left out of a list.
#[derive(Debug)]
pub(super) struct LeftOut {
    /// Not to be listed again before.
    relist: Instant,
    /// Requests of these, who had too many.
    of: BTreeSet<String>,
    /// Also of others: there was no place.
    others: bool,
}

impl Queue {
    /// Whether this one can be known; room is made for it where it is fair.
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
        self.entries.len() < MAX_ENTRIES && self.memory.resize(self.entry_bytes + bytes)
    }

    /// Of those that were answered none need be known: where one is told of again, the checks find
    /// that it is. Looking at all of them pays for some thousand new ones.
    fn forget_the_settled(&mut self) {
        if self.last_arrival < self.purged_at {
            return;
        }
        self.purged_at = self.last_arrival + 1000;
        let settled = |(uid, entry): (&String, &Entry)| {
            matches!(entry.state, State::Settled).then(|| uid.clone())
        };
        let settled: Vec<String> = self.entries.iter().filter_map(settled).collect();
        for uid in settled {
            self.forget(&uid);
        }
    }

    /// Leaves out the newest of whoever has most, if that is more than `count` and one.
    fn displace(&mut self, count: usize) {
        let idle = |uid: &&String| {
            let entry = self.entries.get(*uid);
            entry.is_some_and(|entry| !matches!(entry.state, State::Running(_)))
        };
        let largest = self.requesters.largest();
        let largest = largest.filter(|(most, _)| *most > count + 1);
        let newest = largest.and_then(|(_, mut open)| open.find(idle).cloned());
        let Some((uid, entry)) = newest.and_then(|uid| self.entries.get_key_value(&uid)) else {
            return;
        };
        let (uid, requester) = (uid.clone(), entry.requester.clone());
        self.leave_out(Some(requester));
        self.gone(&uid);
    }

    /// Those that were left out of the list that has just ended are not listed again at once.
    pub(super) fn wait_before_relist(&mut self) {
        if let Some(left_out) = &mut self.left_out {
            left_out.relist = Instant::now() + RELIST;
        }
    }

    fn leave_out(&mut self, requester: Option<String>) {
        if self.left_out.is_none() {
            let requester = requester.as_deref();
            tracing::warn!(
                requester,
                "too many requests are pending; the newest are left out"
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

    /// Whether requests are to be listed again: some were left out, and there is room now.
    pub(crate) fn relist(&mut self, now: Instant) -> bool {
        let is_due = self.relistable().is_some_and(|at| at <= now);
        if is_due {
            self.left_out = None;
        }
        is_due
    }

    /// When requests may be listed again, because there is room now.
    pub(super) fn relistable(&self) -> Option<Instant> {
        let has_few = |one: &String| self.requesters.count(one) <= MAX_OF_REQUESTER / 2;
        let has_room = self.entries.len() <= MAX_ENTRIES / 2;
        let left_out = self.left_out.as_ref().filter(|_| !self.is_listing)?;
        let has_place = left_out.of.iter().any(has_few) || left_out.others && has_room;
        has_place.then_some(left_out.relist)
    }

    /// Takes the entry out of what is counted.
    pub(super) fn forget(&mut self, uid: &str) {
        if let Some(entry) = self.entries.remove(uid) {
            self.requesters.remove(&entry.requester, entry.arrival);
            self.entry_bytes = self.entry_bytes.saturating_sub(entry.len(uid));
            self.memory.resize(self.entry_bytes);
        }
    }
}

#[cfg(test)]
mod tests;
