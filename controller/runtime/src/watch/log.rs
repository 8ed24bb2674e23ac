//! The log of a watch.

use std::sync::Arc;

use kube::runtime::watcher::{self, Event};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::cluster_line;
use node_attestation_core::log_lines::{LogLines, Unlimited};

use crate::log_lines::ClusterLines;
use crate::metrics::WatchMetrics;

/// Logs the failures of a watch: the first failure as a warning, and later failures at debug level.
#[derive(Debug)]
pub struct WatchLog {
    kind: &'static str,
    /// The name of the object, if the watch is for a single object.
    name: Option<String>,
    last: Option<State>,
    metrics: WatchMetrics,
    lines: Arc<dyn LogLines>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Holds,
    Failed,
    Absent,
}

impl WatchLog {
    /// Creates the log for a watch of this kind.
    pub fn new(kind: &'static str) -> Self {
        Self {
            kind,
            name: None,
            last: None,
            metrics: WatchMetrics::default(),
            lines: Arc::new(Unlimited),
        }
    }

    /// Also reports events and failures to these metrics.
    pub(crate) fn measured_by(self, metrics: WatchMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Uses the log lines of a cluster whose tenant can make the watch fail.
    #[must_use]
    pub(crate) fn within(self, lines: ClusterLines) -> Self {
        let lines = Arc::new(lines);
        Self { lines, ..self }
    }

    /// Creates the log for a watch of a single object.
    pub fn of_one(kind: &'static str, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..Self::new(kind)
        }
    }

    /// Records an event, and calls `holds` when the watch starts to work. Returns whether the watch has failed or
    /// recovered.
    pub fn observe<K>(&mut self, event: &watcher::Result<Event<K>>, holds: impl FnOnce()) -> bool {
        let before = self.last;
        match event {
            // This event precedes the first call.
            Ok(Event::Init) => {}
            Ok(event) => {
                if matches!(event, Event::InitDone) {
                    self.metrics.listed();
                } else {
                    self.metrics.holds();
                }
                if self.changes_to(State::Holds) {
                    holds();
                }
            }
            Err(error) => self.failed(error),
        }
        before.is_some() && self.last != before
    }

    /// Records and logs a failure.
    pub fn failed(&mut self, error: &(dyn std::error::Error + 'static)) {
        self.metrics.failed();
        let (kind, error) = (self.kind, error_chain(error));
        let is_new = self.changes_to(State::Failed);
        let object = self.name.as_deref();
        if is_new {
            cluster_line!(
                &*self.lines,
                WARN,
                kind,
                object,
                error,
                "the watch failed; the controller retries it"
            );
        } else {
            tracing::debug!(kind, object, error, "the watch failed again");
        }
    }

    /// Records that the management cluster does not serve the kind, which is optional.
    pub fn none(&self) {
        self.metrics.listed();
    }

    /// Logs once that the management cluster does not serve the kind.
    pub fn absent(&mut self) {
        if self.changes_to(State::Absent) {
            cluster_line!(
                &*self.lines,
                WARN,
                kind = self.kind,
                "the management cluster does not serve a supported version of this kind"
            );
        }
    }

    fn changes_to(&mut self, state: State) -> bool {
        self.last.replace(state) != Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Format, Metrics};

    #[test]
    fn a_failing_or_recovering_watch_changes_its_state_once() {
        let mut log = WatchLog::new("Node");
        let failed = || Err(watcher::Error::NoResourceVersion);
        let mut observe = |event: watcher::Result<Event<()>>| log.observe(&event, || {});

        assert!(!observe(Ok(Event::Init)));
        assert!(!observe(Ok(Event::InitDone)), "the first");
        assert!(!observe(Ok(Event::InitDone)));
        assert!(observe(failed()));
        assert!(!observe(failed()), "again");
        assert!(!observe(Ok(Event::Init)), "it begins before it holds");
        assert!(observe(Ok(Event::InitDone)));
    }

    #[test]
    fn a_watch_is_logged_when_it_is_established() {
        let mut log = WatchLog::new("Node");
        let mut told = 0;
        for event in [
            Ok(Event::Init),
            Ok(Event::InitDone),
            Ok(Event::Apply(())),
            Err(watcher::Error::NoResourceVersion),
            Ok(Event::Apply(())),
        ] {
            log.observe(&event, || told += 1);
        }
        assert_eq!(told, 2);
    }

    #[tokio::test]
    async fn the_watch_metric_shows_whether_the_watch_is_established() {
        let metrics = Metrics::new("1");
        metrics.require_lists(&["Node"]);
        let mut log = WatchLog::new("Node").measured_by(metrics.watch("Node"));
        let told = |line: &str| {
            let text = metrics.text(Format::OpenMetrics);
            text.lines().any(|found| found == line)
        };
        log.observe(&Ok(Event::<()>::Init), || {});
        assert!(told(r#"node_attestation_watch_up{kind="Node"} 0.0"#));
        assert!(metrics.ready().is_err());

        log.observe(&Ok(Event::<()>::InitDone), || {});
        assert!(told(r#"node_attestation_watch_up{kind="Node"} 1.0"#));
        assert_eq!(metrics.ready(), Ok(()));

        for _ in 0..2 {
            log.observe::<()>(&Err(watcher::Error::NoResourceVersion), || {});
        }
        assert!(told(r#"node_attestation_watch_up{kind="Node"} 0.0"#));
        assert!(told(
            r#"node_attestation_watch_failures_total{kind="Node"} 2"#
        ));
        log.observe(&Ok(Event::Apply(())), || {});
        assert!(told(r#"node_attestation_watch_up{kind="Node"} 1.0"#));
    }

    #[tokio::test]
    async fn a_quiet_watch_recovers_when_the_api_server_answers() {
        let metrics = Metrics::new("1");
        let watch = metrics.watch("Node");
        let mut log = WatchLog::new("Node").measured_by(watch.clone());
        let is_up = || {
            let text = metrics.text(Format::OpenMetrics);
            text.contains(r#"node_attestation_watch_up{kind="Node"} 1.0"#)
        };
        // The API server's response to the watch before this list has no information about the objects.
        watch.heard();
        assert!(!is_up());
        log.observe(&Ok(Event::<()>::InitDone), || {});
        log.observe::<()>(&Err(watcher::Error::NoResourceVersion), || {});
        assert!(!is_up());

        watch.heard();

        assert!(is_up());
    }
}
