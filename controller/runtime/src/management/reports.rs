//! The Events that are being written, about unreadable `KubeletAuthentication`s.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use tokio::task::{AbortHandle, JoinSet};

/// The maximum number of tasks for one namespace. A task can wait indefinitely for its turn or for its Cluster. If a
/// namespace has more unreadable versions, the last ones are reported.
const OF_NAMESPACE: usize = 100;

/// The tasks that write Events. Each unreadable version of an object has one task.
#[derive(Debug, Default)]
pub(super) struct Reports {
    tasks: JoinSet<()>,
    /// The tasks for each namespace, in the order in which they started.
    of_namespaces: BTreeMap<String, Vec<AbortHandle>>,
}

impl Reports {
    /// Starts writing an Event about an object in this namespace.
    pub(super) fn start(&mut self, namespace: String, report: BoxFuture<'static, ()>) {
        while self.tasks.try_join_next().is_some() {}
        let of_namespace = self.of_namespaces.entry(namespace).or_default();
        of_namespace.retain(|task| !task.is_finished());
        if of_namespace.len() >= OF_NAMESPACE {
            of_namespace.remove(0).abort();
        }
        of_namespace.push(self.tasks.spawn(report));
        // At least half of the namespaces have only tasks that have ended.
        if self.of_namespaces.len() > 2 * self.tasks.len() {
            self.of_namespaces.retain(|_, tasks| {
                tasks.retain(|task| !task.is_finished());
                !tasks.is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_report_waits_for_days_unless_its_namespace_has_100_later_ones() {
        let mut reports = Reports::default();
        let waiting = |reports: &Reports, namespace: &str| {
            let tasks = &reports.of_namespaces[namespace];
            tasks.iter().filter(|task| !task.is_finished()).count()
        };
        reports.start("other".to_owned(), Box::pin(pending()));
        for _ in 0..OF_NAMESPACE {
            reports.start("a".to_owned(), Box::pin(pending()));
        }
        tokio::time::advance(std::time::Duration::from_hours(48)).await;
        assert_eq!(waiting(&reports, "a"), OF_NAMESPACE);

        for _ in 0..OF_NAMESPACE {
            reports.start("a".to_owned(), Box::pin(pending()));
        }
        yield_now().await;

        assert_eq!(waiting(&reports, "a"), OF_NAMESPACE);
        assert_eq!(waiting(&reports, "other"), 1);
    }

    #[tokio::test]
    async fn reports_that_were_written_use_no_memory() {
        let mut reports = Reports::default();
        // This report waits for its Cluster, and must not block the other reports.
        reports.start("waiting".to_owned(), Box::pin(pending()));
        for number in 0..1000 {
            reports.start(number.to_string(), Box::pin(ready(())));
            yield_now().await;
        }

        let known = reports.of_namespaces.len();
        assert!(known <= 4, "{known}");
        assert!(reports.of_namespaces.contains_key("waiting"));
    }
}
