//! The rate of calls of STS: one for the process, with a share for each tenant.

use std::time::Duration;

use node_attestation_core::rate_limit::Rate;
use node_attestation_runtime::shared::{Shared, Swept};
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

/// The token buckets.
#[derive(Debug)]
pub(super) struct Budget {
    /// Their holder gets the next token of all, so that a tenant that waits for its own keeps nobody.
    turn: tokio::sync::Mutex<()>,
    state: Shared<State>,
}

#[derive(Debug)]
struct State {
    full_at: Instant,
    tenants: Swept<String, Instant>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            turn: tokio::sync::Mutex::default(),
            state: Shared::new(
                "rates of STS calls",
                State {
                    full_at: Instant::now(),
                    tenants: Swept::default(),
                },
            ),
        }
    }

    /// Waits until STS may be called, in order of arrival. No tenant's own share is waited for here: others may share
    /// the call.
    pub(super) async fn of_all(&self) {
        let _turn = self.turn.lock().await;
        loop {
            let now = Instant::now();
            let taken = self.state.write(|state| ALL.take(&mut state.full_at, now));
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
        self.state.write(|State { tenants, .. }| {
            // Those whose bucket is full are forgotten.
            let is_full = |_: &_, full_at: &mut Instant| *full_at <= now;
            let full_at = tenants.get_or_insert_with(tenant.to_owned(), is_full, || now);
            TENANT.take(full_at, now)
        })
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
