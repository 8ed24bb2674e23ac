//! How much of our work one requester may cause.
//!
//! A token bucket a requester, each by itself: whoever floods, waits for itself. A request over
//! budget is not looked at until its time, and stays pending; nothing is denied for it.
//!
//! # Guarantees
//!
//! - Memory is bounded: 40 bytes a requester, and no more than [`MAX_REQUESTERS`] of them, whatever
//!   the names.
//! - Nobody gets a new budget by being forgotten: only a budget that is whole again is forgotten,
//!   which is what a new one is. Where all are in use, requesters that are not known share one.

use std::collections::HashMap;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use kubelet_attestation::names::NODE_USER_PREFIX;
use node_attestation_core::rate_limit::Rate;
use tokio::time::Instant;

/// How many requesters are told apart: three for each node of the largest cluster that Kubernetes
/// supports.
pub const MAX_REQUESTERS: usize = 15_000;

/// A pool's token is shared by machines that are started together.
pub const TOKEN_RATE: Rate = Rate {
    burst: 100,
    every: Duration::from_millis(100),
};

/// A node renews once in days, and asks for two certificates.
pub const NODE_RATE: Rate = Rate {
    burst: 10,
    every: Duration::from_secs(10),
};

/// A requester's name, in little space.
type Key = [u8; 16];

/// The budgets of one cluster's requesters.
#[derive(Debug)]
pub struct Budgets {
    tokens: Rate,
    nodes: Rate,
    capacity: usize,
    /// When each budget is whole again; one that is whole need not be here.
    whole_at: HashMap<Key, Instant>,
    shared: Option<Instant>,
    sweep_at: Option<Instant>,
}

impl Default for Budgets {
    fn default() -> Self {
        Self::new(TOKEN_RATE, NODE_RATE)
    }
}

impl Budgets {
    /// Budgets of this size for each bootstrap token, or whoever else asks, and for each node.
    pub fn new(tokens: Rate, nodes: Rate) -> Self {
        Self {
            tokens,
            nodes,
            capacity: MAX_REQUESTERS,
            whole_at: HashMap::new(),
            shared: None,
            sweep_at: None,
        }
    }

    /// Takes one piece of work out of the requester's budget.
    ///
    /// # Errors
    ///
    /// There is none left; the time at which there is, if nobody takes it before. Nothing is taken.
    pub fn take(&mut self, requester: &str, now: Instant) -> Result<(), Instant> {
        let rate = if requester.starts_with(NODE_USER_PREFIX) {
            self.nodes
        } else {
            self.tokens
        };
        let key = key(requester);
        if let Some(whole_at) = self.whole_at.get_mut(&key) {
            return rate.take(whole_at, now);
        }
        if self.whole_at.len() >= self.capacity {
            self.forget_the_whole(now);
        }
        if self.whole_at.len() >= self.capacity {
            return self.tokens.take(self.shared.get_or_insert(now), now);
        }
        rate.take(self.whole_at.entry(key).or_insert(now), now)
    }

    /// Looks at all of them no more often than one can have become whole.
    fn forget_the_whole(&mut self, now: Instant) {
        if self.sweep_at.is_some_and(|at| now < at) {
            return;
        }
        self.whole_at.retain(|_, whole_at| *whole_at > now);
        self.sweep_at = self.whole_at.values().min().copied();
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
        Budgets::new(RATE, Rate { burst: 1, ..RATE })
    }

    #[test]
    fn a_burst_is_served_and_then_one_at_a_time() {
        let mut budgets = budgets();
        let start = Instant::now();

        for _ in 0..3 {
            assert_eq!(budgets.take("a", start), Ok(()));
        }

        assert_eq!(budgets.take("a", start), Err(start + SECOND));
        assert_eq!(budgets.take("a", start + SECOND), Ok(()));
        assert_eq!(budgets.take("a", start + SECOND), Err(start + 2 * SECOND));
    }

    #[test]
    fn one_requester_delays_no_other() {
        let mut budgets = budgets();
        let start = Instant::now();
        while budgets.take("system:bootstrap:flood1", start).is_ok() {}

        assert_eq!(budgets.take("system:bootstrap:other1", start), Ok(()));
        assert_eq!(budgets.take("system:node:a", start), Ok(()));
        assert_eq!(budgets.take("system:node:b", start), Ok(()));
    }

    #[test]
    fn a_node_has_the_budget_of_nodes() {
        let mut budgets = budgets();
        let start = Instant::now();

        assert_eq!(budgets.take("system:node:a", start), Ok(()));
        assert_eq!(budgets.take("system:node:a", start), Err(start + SECOND));
    }

    #[test]
    fn a_refusal_costs_nothing() {
        let mut budgets = budgets();
        let start = Instant::now();
        while budgets.take("a", start).is_ok() {}
        for _ in 0..1000 {
            assert_eq!(budgets.take("a", start), Err(start + SECOND));
        }

        assert_eq!(budgets.take("a", start + SECOND), Ok(()));
    }

    #[test]
    fn many_names_take_no_more_memory_and_reset_nobodys_budget() {
        let mut budgets = budgets();
        budgets.capacity = 8;
        let start = Instant::now();
        while budgets.take("flood", start).is_ok() {}

        for name in 0..1000 {
            let _ = budgets.take(&name.to_string(), start);
        }

        assert_eq!(budgets.whole_at.len(), 8);
        assert_eq!(budgets.take("flood", start), Err(start + SECOND));
    }

    #[test]
    fn strangers_share_one_budget_while_all_are_in_use() {
        let mut budgets = budgets();
        budgets.capacity = 1;
        let start = Instant::now();
        assert_eq!(budgets.take("known", start), Ok(()));

        for stranger in ["a", "b", "c"] {
            assert_eq!(budgets.take(stranger, start), Ok(()));
        }
        assert_eq!(budgets.take("d", start), Err(start + SECOND));
        assert_eq!(budgets.take("known", start), Ok(()));
    }

    #[test]
    fn a_budget_that_is_whole_again_makes_room() {
        let mut budgets = budgets();
        budgets.capacity = 1;
        let start = Instant::now();
        assert_eq!(budgets.take("a", start), Ok(()));
        assert_eq!(budgets.take("b", start), Ok(()));
        assert!(budgets.shared.is_some());

        assert_eq!(budgets.take("c", start + SECOND), Ok(()));

        assert_eq!(budgets.whole_at.len(), 1);
        assert!(budgets.whole_at.contains_key(&key("c")));
    }
}
