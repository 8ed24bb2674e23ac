//! The metrics of a watch.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use super::clusters::ClusterValues;
use crate::shared::{Lock, Shared};

/// A watch of objects of one kind.
#[derive(Debug)]
pub(crate) struct Watch {
    kind: &'static str,
    /// The workload cluster. `None` for the management cluster.
    cluster: Option<Arc<ClusterValues>>,
    failures: Counter,
    state: Shared<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    is_listed: bool,
    holds: bool,
    /// The time of the last message from the API server. Initially, the start time.
    heard: Instant,
}

impl Watch {
    pub(super) fn new(
        kind: &'static str,
        cluster: Option<Arc<ClusterValues>>,
        failures: Counter,
    ) -> Self {
        let state = State {
            is_listed: false,
            holds: false,
            heard: Instant::now(),
        };
        Self {
            kind,
            cluster,
            failures,
            state: Shared::new(Lock::Watches, state),
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    /// The workload cluster. `None` for the management cluster.
    pub(super) fn cluster(&self) -> Option<&ClusterValues> {
        self.cluster.as_deref()
    }

    pub(super) fn is_listed(&self) -> bool {
        self.state.read(|state| state.is_listed)
    }

    pub(super) fn holds(&self) -> bool {
        self.state.read(|state| state.holds)
    }

    /// The seconds since the last message from the API server.
    pub(super) fn age(&self) -> f64 {
        let heard = self.state.read(|state| state.heard);
        heard.elapsed().as_secs_f64()
    }
}

/// The metrics of a watch.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchMetrics(pub(super) Option<Arc<Watch>>);

impl WatchMetrics {
    /// Records a message on the watch. After a failure, a message shows that the watch works again, provided that the
    /// objects have been listed. The message is necessary because a quiet watch has no events.
    pub(crate) fn heard(&self) {
        self.change(|state| {
            state.heard = Instant::now();
            state.holds |= state.is_listed;
        });
    }

    /// Records that the objects are listed, or that the kind does not exist.
    pub(crate) fn listed(&self) {
        self.change(|state| {
            state.is_listed = true;
            state.holds = true;
            state.heard = Instant::now();
        });
    }

    /// Records that the watch works.
    pub(crate) fn holds(&self) {
        self.change(|state| state.holds = true);
    }

    /// Records a failure of the watch.
    pub(crate) fn failed(&self) {
        if let Some(watch) = &self.0 {
            watch.failures.inc();
        }
        self.change(|state| state.holds = false);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        if let Some(watch) = &self.0 {
            watch.state.write(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::shared::testing::most_visited;

    #[tokio::test]
    async fn a_watch_event_updates_only_one_metric() {
        let metrics = Metrics::new("1");
        let watch = metrics.watch("Node");

        let visited = most_visited(|| {
            watch.listed();
            watch.heard();
        });

        assert_eq!(visited[&Lock::Watches], 0);
    }
}
