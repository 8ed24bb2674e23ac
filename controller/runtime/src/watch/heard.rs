//! The age of what a watch has shown.

use std::time::Duration;

use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::time::Instant;

use super::watch_config;

/// A store that was not heard of for so long may have changed in any way: whoever was revoked or deleted in it would get
/// certificates that outlive that.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_mins(1);

/// The API server ends a watch after so many seconds, and sends a bookmark just before: also a quiet one is heard of
/// within [`HEARD_WITHIN`].
const WATCH_SECONDS: u32 = 45;

/// The configuration of a watch whose age matters.
pub(crate) fn heard_config() -> watcher::Config {
    watch_config().timeout(WATCH_SECONDS)
}

/// The time of the API server's last answer on a watch.
#[derive(Debug, Default)]
pub(crate) struct Heard(watch::Sender<Option<Instant>>);

impl Heard {
    /// Notes an answer of the API server.
    pub(crate) fn now(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// Notes that the objects are out of date, until they were listed.
    pub(crate) fn outdated(&self) {
        self.0.send_replace(None);
    }

    /// Whether the last answer was just now.
    pub(crate) fn is_recent(&self) -> bool {
        let last = *self.0.borrow();
        last.is_some_and(|heard| heard.elapsed() < HEARD_WITHIN)
    }

    /// Changes with each answer.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<Instant>> {
        self.0.subscribe()
    }
}
