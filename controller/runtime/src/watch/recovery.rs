//! Lists that find the objects that were dropped because of a limit and now fit.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The shortest time between two such lists. A tenant can cause them.
const BETWEEN_LISTS: Duration = Duration::from_mins(10);

/// The times of the lists of one watch.
#[derive(Debug, Default)]
pub(crate) struct RecoveryLists {
    /// The time of the next list.
    next: Option<Instant>,
    /// The time of the last list.
    last: Option<Instant>,
}

impl RecoveryLists {
    /// Plans a list: immediately, or some time after the last one.
    pub(crate) fn plan(&mut self) {
        if self.next.is_none() {
            let now = Instant::now();
            let next = self.last.map_or(now, |last| last + BETWEEN_LISTS);
            self.next = Some(next.max(now));
        }
    }

    /// Waits until a list is due. The list is then made, and not due again until it is planned.
    pub(crate) async fn due(&mut self) {
        match self.next {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
        self.next = None;
        self.last = Some(Instant::now());
    }
}
