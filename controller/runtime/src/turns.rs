//! Turns and rates that the Clusters of all namespaces share: calls, lookups, requests, Events.

use std::convert::Infallible;

use node_attestation_core::rate_limit::Rate;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::object_key::ObjectKey;

pub use node_attestation_turns::{FairTurns, Line, Owner, Turn, TurnLimits};

impl Owner for ObjectKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// A rate that the Clusters of all namespaces share. They take tokens in turn.
#[derive(Debug)]
pub struct FairRate {
    turns: FairTurns,
    rate: Rate,
    /// The time at which the token bucket is full.
    full_at: Mutex<Instant>,
}

impl FairRate {
    /// Creates a full bucket.
    pub fn new(rate: Rate) -> Self {
        let limits = TurnLimits {
            all: 1,
            of_cluster: 1,
        };
        Self {
            turns: FairTurns::new(limits),
            rate,
            full_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits for a token, in turn.
    pub async fn take(&self, cluster: &ObjectKey) {
        let Ok(()) = self.take_if(cluster, |_| Ok::<_, Infallible>(())).await;
    }

    /// Waits for a token, in turn. `check` runs before each check of the bucket.
    ///
    /// # Errors
    ///
    /// The error of `check`. No token is taken.
    pub async fn take_if<E>(
        &self,
        cluster: &ObjectKey,
        check: impl Fn(Instant) -> Result<(), E>,
    ) -> Result<(), E> {
        let _turn = self.turns.line(cluster).turn().await;
        loop {
            let now = Instant::now();
            check(now)?;
            let taken = self.rate.take(&mut *self.full_at.lock(), now);
            let Err(ready) = taken else {
                return Ok(());
            };
            sleep_until(ready).await;
        }
    }

    /// Whether the bucket is full.
    pub fn is_full(&self, now: Instant) -> bool {
        *self.full_at.lock() <= now
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_taken_by_namespace_and_then_by_cluster() {
        let rate = Rate {
            burst: 1,
            every: Duration::from_secs(1),
        };
        let shared = Arc::new(FairRate::new(rate));
        let order: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut callers = Vec::new();
        let each = (0..40).map(|number| ObjectKey::new("a", number.to_string()));
        for cluster in each.chain([ObjectKey::new("b", "1")]) {
            let (shared, order) = (shared.clone(), order.clone());
            callers.push(tokio::spawn(async move {
                shared.take(&cluster).await;
                order.lock().push(cluster.to_string());
            }));
        }
        futures::future::join_all(callers).await;

        let order = order.lock();
        let at = order.iter().position(|cluster| cluster == "b/1").unwrap();
        assert_eq!(order.len(), 41);
        assert_eq!(
            at, 2,
            "after the first, and the one that waits for its token"
        );
    }
}
