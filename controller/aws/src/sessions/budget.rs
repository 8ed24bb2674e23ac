//! The rate of calls of STS: one for the process, with a share for each tenant.

use std::collections::HashMap;
use std::time::Duration;

use node_attestation_core::rate_limit::Rate;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The rate of all calls. STS allows an account more, and others use the account too.
const ALL: Rate = Rate {
    burst: 50,
    every: Duration::from_millis(100),
};

/// The rate of one tenant's calls: more than its clusters need, and a tenth of all.
const TENANT: Rate = Rate {
    burst: 10,
    every: Duration::from_secs(1),
};

/// More tenants than start at once; at it, those whose bucket is full are forgotten.
const MAX_TENANTS: usize = 4096;

/// The token buckets.
#[derive(Debug)]
pub(super) struct Budget {
    /// Their holder gets the next token of all, so that a tenant that waits for its own keeps nobody.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    full_at: Instant,
    tenants: HashMap<String, Instant>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            turn: tokio::sync::Mutex::default(),
            state: Mutex::new(State {
                full_at: Instant::now(),
                tenants: HashMap::new(),
            }),
        }
    }

    /// Waits until STS may be called, in order of arrival. No tenant's own share is waited for here: others may share
    /// the call.
    pub(super) async fn of_all(&self) {
        let _turn = self.turn.lock().await;
        loop {
            let now = Instant::now();
            let taken = ALL.take(&mut self.state.lock().full_at, now);
            let Err(ready) = taken else {
                return;
            };
            sleep_until(ready).await;
        }
    }

    /// Takes one of the calls that `tenant` may have made.
    ///
    /// # Errors
    ///
    /// There is none left; when there is one.
    pub(super) fn take(&self, tenant: &str, now: Instant) -> Result<(), Instant> {
        let mut state = self.state.lock();
        if state.tenants.len() >= MAX_TENANTS {
            state.tenants.retain(|_, full_at| *full_at > now);
        }
        let full_at = state.tenants.entry(tenant.to_owned()).or_insert(now);
        TENANT.take(full_at, now)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    async fn token(budget: &Budget, tenant: &str) {
        while let Err(ready) = budget.take(tenant, Instant::now()) {
            sleep_until(ready).await;
        }
        budget.of_all().await;
    }

    async fn seconds(calls: impl IntoIterator<Item = String>) -> u64 {
        let budget = Budget::new();
        let start = Instant::now();
        join_all(calls.into_iter().map(|tenant| {
            let budget = &budget;
            async move { token(budget, &tenant).await }
        }))
        .await;
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_with_many_tenants_is_spread() {
        let each = || (0..201).map(|n| format!("tenant-{n}"));
        assert_eq!(seconds(each().take(50)).await, 0);
        assert_eq!(seconds(each()).await, 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_has_its_share_and_delays_no_other() {
        assert_eq!(seconds((0..30).map(|_| "one".to_owned())).await, 20);

        let budget = Budget::new();
        let flood = join_all((0..30).map(|_| token(&budget, "one")));
        let other = async {
            let start = Instant::now();
            token(&budget, "two").await;
            start.elapsed()
        };
        let (_, waited) = tokio::join!(flood, other);
        assert_eq!(waited, Duration::ZERO);
    }
}
