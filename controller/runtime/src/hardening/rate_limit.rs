//! A limit on the work that one requester can cause.
//!
//! Each requester has a token bucket, so that a flood delays only its own requests. A request that exceeds the budget
//! remains pending until its turn. The request is never denied because of the budget.
//!
//! # Guarantees
//!
//! - Memory is limited to 64 bytes per requester, for up to [`MAX_REQUESTERS`] requesters, regardless of the length of
//!   their names. The memory is released when a budget is full again.
//! - A requester does not benefit from the removal of its budget, because only full budgets are removed. While all
//!   budgets are in use, new requesters share one budget.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use kubelet_attestation::names::NODE_USER_PREFIX;
use node_attestation_core::rate_limit::Rate;
use tokio::time::Instant;

/// The maximum number of requesters with a separate budget: three for each node in the largest cluster that Kubernetes
/// supports.
pub const MAX_REQUESTERS: usize = 15_000;

/// The rate for a bootstrap token. Machines in a pool that start together share a token.
pub const TOKEN_RATE: Rate = Rate {
    burst: 100,
    every: Duration::from_millis(100),
};

/// The rate for a node. A node renews rarely, and requests two certificates.
pub const NODE_RATE: Rate = Rate {
    burst: 10,
    every: Duration::from_secs(10),
};

/// The memory for one budget, measured in a map with many budgets.
const BUDGET_LEN: usize = 64;

/// The minimum time between two searches for full budgets. Each search visits all budgets.
const SWEEP: Duration = Duration::from_secs(1);

/// The first bytes of a digest of the requester's name.
type Key = [u8; 16];

/// The budgets of one cluster's requesters.
#[derive(Debug)]
pub struct Budgets {
    /// The rate for a bootstrap token, or for another requester that is not a node.
    tokens: Rate,
    nodes: Rate,
    capacity: usize,
    /// The times at which the budgets will be full again. Full budgets are not necessarily in the map.
    whole_at: BTreeMap<Key, Instant>,
    shared: Option<Instant>,
    /// The earliest time for the next search for full budgets.
    sweep_at: Option<Instant>,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            tokens: TOKEN_RATE,
            nodes: NODE_RATE,
            capacity: MAX_REQUESTERS,
            whole_at: BTreeMap::new(),
            shared: None,
            sweep_at: None,
        }
    }
}

impl Budgets {
    /// Takes one unit of work from the requester's budget. Returns the earliest time for this work: `now`, or a later
    /// time if the budget is exhausted.
    pub fn reserve(&mut self, requester: &str, now: Instant) -> Instant {
        let (rate, whole_at) = self.budget(requester, now);
        match rate.take(whole_at, now) {
            Ok(()) => now,
            Err(due) => {
                *whole_at += rate.every;
                due
            }
        }
    }

    /// Returns one unit of work that was taken but is no longer needed.
    pub fn give_back(&mut self, requester: &str, now: Instant) {
        let (rate, whole_at) = self.budget(requester, now);
        *whole_at = whole_at.checked_sub(rate.every).unwrap_or(*whole_at);
    }

    fn budget(&mut self, requester: &str, now: Instant) -> (Rate, &mut Instant) {
        let key = key(requester);
        self.forget_the_whole(now);
        if self.whole_at.len() >= self.capacity && !self.whole_at.contains_key(&key) {
            return (self.tokens, self.shared.get_or_insert(now));
        }
        let rate = if requester.starts_with(NODE_USER_PREFIX) {
            self.nodes
        } else {
            self.tokens
        };
        (rate, self.whole_at.entry(key).or_insert(now))
    }

    /// Removes full budgets.
    fn forget_the_whole(&mut self, now: Instant) {
        if self.sweep_at.is_some_and(|at| now < at) {
            return;
        }
        self.whole_at.retain(|_, whole_at| *whole_at > now);
        self.sweep_at = Some(now + SWEEP);
    }

    /// The memory that the budgets use.
    pub(crate) fn memory(&self) -> usize {
        self.whole_at.len() * BUDGET_LEN
    }
}

fn key(requester: &str) -> Key {
    let digest = digest(&SHA256, requester.as_bytes());
    digest.as_ref().first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        burst: 3,
        every: Duration::from_secs(1),
    };
    const SECOND: Duration = Duration::from_secs(1);

    fn budgets() -> Budgets {
        Budgets {
            tokens: RATE,
            nodes: Rate { burst: 1, ..RATE },
            ..Budgets::default()
        }
    }

    #[test]
    fn after_a_burst_requests_are_served_one_at_a_time() {
        let mut budgets = budgets();
        let start = Instant::now();

        for _ in 0..3 {
            assert_eq!(budgets.reserve("a", start), start);
        }

        assert_eq!(budgets.reserve("a", start), start + SECOND);
        assert_eq!(budgets.reserve("a", start + SECOND), start + 2 * SECOND);
        assert_eq!(budgets.reserve("a", start + 3 * SECOND), start + 3 * SECOND);
    }

    #[test]
    fn one_requester_does_not_delay_another() {
        let mut budgets = budgets();
        let start = Instant::now();
        while budgets.reserve("system:bootstrap:flood1", start) == start {}

        assert_eq!(budgets.reserve("system:bootstrap:other1", start), start);
        assert_eq!(budgets.reserve("system:node:a", start), start);
        assert_eq!(budgets.reserve("system:node:b", start), start);
    }

    #[test]
    fn a_node_consumes_the_budget_of_nodes() {
        let mut budgets = budgets();
        let start = Instant::now();

        assert_eq!(budgets.reserve("system:node:a", start), start);
        assert_eq!(budgets.reserve("system:node:a", start), start + SECOND);
    }

    #[test]
    fn a_returned_reservation_does_not_consume_the_budget() {
        let mut budgets = budgets();
        let start = Instant::now();
        while budgets.reserve("a", start) == start {}
        for _ in 0..1000 {
            assert_eq!(budgets.reserve("a", start), start + 2 * SECOND);
            budgets.give_back("a", start);
        }

        assert_eq!(budgets.reserve("a", start + 3 * SECOND), start + 3 * SECOND);
    }

    #[test]
    fn many_requester_names_use_bounded_memory_and_reset_no_budget() {
        let mut budgets = budgets();
        budgets.capacity = 8;
        let start = Instant::now();
        while budgets.reserve("flood", start) == start {}

        for name in 0..1000 {
            budgets.reserve(&name.to_string(), start);
        }

        assert_eq!(budgets.whole_at.len(), 8);
        assert_eq!(budgets.reserve("flood", start), start + 2 * SECOND);
    }

    #[test]
    fn full_budgets_release_their_memory_within_a_second() {
        let mut budgets = budgets();
        let start = Instant::now();
        for name in 0..1000 {
            budgets.reserve(&name.to_string(), start);
        }
        assert_eq!(budgets.memory(), 1000 * BUDGET_LEN);

        budgets.reserve("a", start + SECOND - Duration::from_millis(1));
        assert_eq!(budgets.whole_at.len(), 1001, "they are not full yet");
        budgets.reserve("b", start + 2 * SECOND);

        assert_eq!(budgets.memory(), BUDGET_LEN);
    }

    #[test]
    fn a_budget_is_released_as_soon_as_it_is_full() {
        let mut budgets = budgets();
        let start = Instant::now();
        budgets.reserve("a", start);

        budgets.reserve("b", start + SECOND);

        assert_eq!(budgets.whole_at.len(), 1);
    }

    #[test]
    fn unknown_requesters_share_one_budget_if_all_are_in_use() {
        let mut budgets = budgets();
        budgets.capacity = 1;
        let start = Instant::now();
        assert_eq!(budgets.reserve("known", start), start);

        for stranger in ["a", "b", "c"] {
            assert_eq!(budgets.reserve(stranger, start), start);
        }
        assert_eq!(budgets.reserve("d", start), start + SECOND);
        assert_eq!(budgets.reserve("known", start), start);
    }

    #[test]
    fn a_full_budget_releases_its_slot() {
        let mut budgets = budgets();
        budgets.capacity = 1;
        let start = Instant::now();
        assert_eq!(budgets.reserve("a", start), start);
        assert_eq!(budgets.reserve("b", start), start);
        assert!(budgets.shared.is_some());

        assert_eq!(budgets.reserve("c", start + SECOND), start + SECOND);

        assert_eq!(budgets.whole_at.len(), 1);
        assert!(budgets.whole_at.contains_key(&key("c")));
    }
}
