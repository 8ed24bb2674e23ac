//! The time limit of a run.

use std::time::Duration;

/// The maximum time that a run reserves, half for itself and half for the thread that waits for it.
const MARGIN: Duration = Duration::from_millis(500);

/// The time limit of a run.
#[derive(Debug, Clone, Copy)]
pub(super) enum Allowed {
    /// With a valid credential.
    Briefly(Duration),
    /// With a valid credential that is about to expire, once an hour.
    InFull(Duration),
    /// Without a valid credential, or for a person.
    Without(Duration),
}

impl Allowed {
    pub(super) fn total(self) -> Duration {
        let (Self::Briefly(total) | Self::InFull(total) | Self::Without(total)) = self;
        total
    }

    /// The part that is reserved for an orderly end of the run.
    pub(super) fn margin(self) -> Duration {
        (MARGIN / 2).min(self.total() / 20)
    }
}
