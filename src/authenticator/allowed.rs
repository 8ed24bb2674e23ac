//! How long a run may take.

use std::time::Duration;

/// What is kept of a run's time at most, in two parts: for the run and for whoever waits for it.
const MARGIN: Duration = Duration::from_millis(500);

/// How long a run may take.
#[derive(Debug, Clone, Copy)]
pub(super) enum Allowed {
    /// With a valid credential.
    Briefly(Duration),
    /// With a valid credential that will not be renewed otherwise.
    InFull(Duration),
    /// Without a valid credential, or for a person.
    Without(Duration),
}

impl Allowed {
    pub(super) fn total(self) -> Duration {
        let (Self::Briefly(total) | Self::InFull(total) | Self::Without(total)) = self;
        total
    }

    /// What is kept of it for ending the run in good order.
    pub(super) fn margin(self) -> Duration {
        (MARGIN / 2).min(self.total() / 20)
    }
}
