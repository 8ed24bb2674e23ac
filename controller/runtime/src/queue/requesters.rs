//! The number of open requests from each requester.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The position of a request in the order of arrival.
pub(super) type Arrival = u64;

/// The open requests from each requester.
///
/// A single map contains the requests from all requesters, because a map with one request takes as much memory as a map
/// with eleven requests.
#[derive(Debug, Default)]
pub(super) struct Requesters {
    open: BTreeMap<(Arc<str>, Arrival), Arc<str>>,
    counts: BTreeMap<Arc<str>, usize>,
    by_count: BTreeSet<(usize, Arc<str>)>,
}

impl Requesters {
    /// The number of open requests from this requester.
    pub(super) fn count(&self, requester: &str) -> usize {
        self.counts.get(requester).copied().unwrap_or_default()
    }

    pub(super) fn add(&mut self, requester: &Arc<str>, arrival: Arrival, uid: &Arc<str>) {
        let key = (requester.clone(), arrival);
        if self.open.insert(key, uid.clone()).is_none() {
            let count = self.count(requester);
            self.set_count(requester, count, count + 1);
        }
    }

    pub(super) fn remove(&mut self, requester: &Arc<str>, arrival: Arrival) {
        if self.open.remove(&(requester.clone(), arrival)).is_some() {
            let count = self.count(requester);
            self.set_count(requester, count, count.saturating_sub(1));
        }
    }

    fn set_count(&mut self, requester: &Arc<str>, before: usize, count: usize) {
        self.by_count.remove(&(before, requester.clone()));
        if count == 0 {
            self.counts.remove(requester);
        } else {
            self.counts.insert(requester.clone(), count);
            self.by_count.insert((count, requester.clone()));
        }
    }

    /// For the requester with the most requests, the number of its requests, and their UIDs, newest first.
    pub(super) fn largest(&self) -> Option<(usize, impl Iterator<Item = &Arc<str>>)> {
        let (count, requester) = self.by_count.last()?;
        let all = (requester.clone(), Arrival::MIN)..=(requester.clone(), Arrival::MAX);
        let open = self.open.range(all).map(|(_, uid)| uid);
        Some((*count, open.rev()))
    }
}
