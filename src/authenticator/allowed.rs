//! The time limit of a run.

use std::time::Duration;

use crate::clock::Deadline;

/// The time limit of a run for client-go without a valid credential, and once per hour near the end of a valid
/// credential. During the run, client-go blocks every request of the kubelet. In this time, the kubelet cannot renew
/// its Lease, which expires after 40 seconds, or its Node status, for which kube-controller-manager waits 50 seconds.
const FOR_CLIENT_GO: Duration = Duration::from_secs(25);

/// The time limit of an enrollment by `setup`. The drop-in allows 90 seconds for all of `setup`.
pub(crate) const FOR_SETUP: Duration = Duration::from_secs(55);

/// The time limit of a run with a valid credential. The kubelet's heartbeat client times out after ten seconds.
const WITH_CREDENTIAL: Duration = Duration::from_secs(5);

/// The maximum time that a run reserves to record its result: half for the run, and half for the thread that waits for
/// the run.
const MARGIN: Duration = Duration::from_millis(500);

/// The caller of the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// client-go, which runs the plugin at every request. During a back-off, client-go gets the recorded failure.
    ClientGo,
    /// `setup`, before each start of a kubelet that might fail repeatedly. A back-off applies, as for client-go.
    Setup,
    /// An operator, who might have just fixed the cause of a failure. The run ignores the back-off.
    Person,
}

/// The time limit of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allowed {
    /// The time limit of a run with a valid credential.
    Briefly(Duration),
    /// The longer time limit, once per hour, of a run with a valid credential that is about to expire. A slow device
    /// needs this time.
    InFull(Duration),
    /// The time limit of a run without a valid credential, or of a run that an operator started.
    Without(Duration),
}

/// The start of a run, and the time limit for the whole run if a valid credential is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    briefly: Deadline,
    limit: Duration,
}

impl Start {
    /// Starts the measurement of a run that takes at most `limit`.
    pub(super) fn now(limit: Duration) -> Self {
        Self {
            briefly: Deadline::after(limit.min(WITH_CREDENTIAL)),
            limit,
        }
    }

    /// Returns the remaining time of a run, if a valid credential is stored.
    pub(super) fn remaining(self) -> Duration {
        self.briefly.remaining()
    }

    /// Returns the time limit for a renewal. A check of the stored credential might have used a part of the run's time.
    pub(super) fn renewal(self, in_full: bool) -> Allowed {
        if in_full {
            Allowed::InFull(self.limit.min(FOR_CLIENT_GO))
        } else {
            Allowed::Briefly(self.briefly.remaining())
        }
    }
}

impl Allowed {
    /// Returns the time limit of a run without a valid credential. `limit` is the general limit for all runs.
    pub(super) fn without(caller: Caller, limit: Duration) -> Self {
        Self::Without(match caller {
            Caller::ClientGo => limit.min(FOR_CLIENT_GO),
            Caller::Setup => limit.min(FOR_SETUP),
            Caller::Person => limit,
        })
    }

    /// Returns the deadline for sending a request and receiving the decision. Only a slow device justifies a long run.
    /// If the API server or the controller is slow, the next run continues with the same request.
    pub(super) fn decision(self, deadline: Deadline) -> Deadline {
        match self {
            Self::InFull(_) => deadline.within(WITH_CREDENTIAL),
            Self::Briefly(_) | Self::Without(_) => deadline,
        }
    }

    pub(super) fn total(self) -> Duration {
        let (Self::Briefly(total) | Self::InFull(total) | Self::Without(total)) = self;
        total
    }

    /// Returns the time that is reserved to record the result of the run.
    pub(super) fn margin(self) -> Duration {
        (MARGIN / 2).min(self.total() / 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn a_run_for_client_go_ends_before_its_30_second_timeout() {
        let client_go = Allowed::without(Caller::ClientGo, MINUTE);
        let in_full = Start::now(MINUTE).renewal(true);

        for allowed in [client_go, in_full] {
            // This time starts after the check of a stored credential, which takes up to two seconds.
            assert_eq!(allowed.total(), Duration::from_secs(25), "{allowed:?}");
        }
        assert_eq!(
            Allowed::without(Caller::Setup, MINUTE).total(),
            Duration::from_secs(55)
        );
        assert_eq!(Allowed::without(Caller::Person, MINUTE).total(), MINUTE);
    }

    #[test]
    fn a_run_with_a_valid_credential_ends_within_five_seconds() {
        let start = Start::now(MINUTE);
        let Allowed::Briefly(whole) = start.renewal(false) else {
            panic!("{start:?}");
        };
        assert!(whole <= Duration::from_secs(5), "{whole:?}");
        assert!(whole > Duration::from_secs(4), "{whole:?}");

        // Checking the credential took two seconds.
        let later = Start {
            briefly: Deadline::after(Duration::from_secs(3)),
            ..start
        };
        let rest = later.renewal(false).total();
        assert!(rest <= Duration::from_secs(3), "{rest:?}");
    }

    #[test]
    fn a_run_with_the_full_time_limit_waits_5_seconds_for_a_decision() {
        let deadline = Deadline::after(MINUTE);

        let in_full = Allowed::InFull(MINUTE).decision(deadline);
        assert!(in_full.remaining() <= Duration::from_secs(5));
        assert_eq!(Allowed::Without(MINUTE).decision(deadline), deadline);
    }
}
