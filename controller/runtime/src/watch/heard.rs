//! The age of the data from a watch.

use std::time::Duration;

use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::time::Instant;

use super::watch_config;

/// The maximum age. A store that has received no events for this time might have missed any change, so a revoked or
/// deleted node could get a certificate.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_mins(1);

/// The timeout of a watch, in seconds. The API server sends a bookmark just before the watch ends, so that even a quiet
/// watch has an event within [`HEARD_WITHIN`]. If there is no bookmark, the objects are listed again.
const WATCH_SECONDS: u32 = 45;

/// The configuration of a watch whose data must not be older than [`HEARD_WITHIN`].
pub(crate) fn heard_config() -> watcher::Config {
    watch_config().timeout(WATCH_SECONDS)
}

/// The time of the last event from the API server that the store has applied.
#[derive(Debug, Default)]
pub(crate) struct Heard(watch::Sender<Option<Instant>>);

impl Heard {
    /// Records that the objects are current.
    pub(crate) fn now(&self) {
        self.at(Instant::now());
    }

    /// Records that all events that the API server sent until this time have been applied.
    pub(crate) fn at(&self, read: Instant) {
        self.0.send_modify(|last| *last = (*last).max(Some(read)));
    }

    /// Marks the objects as outdated until they are listed again.
    pub(crate) fn outdated(&self) {
        self.0.send_replace(None);
    }

    /// Whether the last event is recent.
    pub(crate) fn is_recent(&self) -> bool {
        let last = *self.0.borrow();
        last.is_some_and(|heard| heard.elapsed() < HEARD_WITHIN)
    }

    /// Notifies about each event.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<Instant>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_age_of_a_store_is_the_age_of_its_last_applied_event() {
        let heard = Heard::default();
        let read = Instant::now();
        tokio::time::advance(HEARD_WITHIN / 2).await;
        heard.at(read);
        assert!(heard.is_recent());

        tokio::time::advance(HEARD_WITHIN).await;
        heard.at(read + HEARD_WITHIN / 2);
        assert!(!heard.is_recent(), "its event took too long");

        heard.now();
        heard.at(read);
        assert!(heard.is_recent(), "a later event counts");
    }

    #[tokio::test(start_paused = true)]
    async fn an_applied_event_is_recent_for_less_than_a_minute() {
        let heard = Heard::default();
        heard.now();
        let last = Duration::from_millis(1);

        tokio::time::advance(HEARD_WITHIN.saturating_sub(last)).await;
        assert!(heard.is_recent());
        tokio::time::advance(last).await;
        assert!(!heard.is_recent());
    }
}
