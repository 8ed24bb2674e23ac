//! The number of open requests of each requester.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The position of a request in the order of arrival.
pub(super) type Arrival = u64;

/// The open requests of each requester.
#[derive(Debug, Default)]
pub(super) struct Requesters {
    open: HashMap<String, BTreeMap<Arrival, String>>,
    by_count: BTreeSet<(usize, String)>,
}

impl Requesters {
    /// The number of open requests of this requester.
    pub(super) fn count(&self, requester: &str) -> usize {
        self.open.get(requester).map_or(0, BTreeMap::len)
    }

    pub(super) fn add(&mut self, requester: &str, arrival: Arrival, uid: &str) {
        self.change(requester, |open| open.insert(arrival, uid.to_owned()));
    }

    pub(super) fn remove(&mut self, requester: &str, arrival: Arrival) {
        self.change(requester, |open| open.remove(&arrival));
    }

    fn change(
        &mut self,
        requester: &str,
        change: impl FnOnce(&mut BTreeMap<Arrival, String>) -> Option<String>,
    ) {
        let open = self.open.entry(requester.to_owned()).or_default();
        self.by_count.remove(&(open.len(), requester.to_owned()));
        change(open);
        let count = open.len();
        if count == 0 {
            self.open.remove(requester);
        } else {
            self.by_count.insert((count, requester.to_owned()));
        }
    }

    /// The number of requests of the requester with the most, and their UIDs, newest first.
    pub(super) fn largest(&self) -> Option<(usize, impl Iterator<Item = &String>)> {
        let (count, requester) = self.by_count.last()?;
        let open = self.open.get(requester)?;
        Some((*count, open.values().rev()))
    }
}
