//! The checks of one decision, and their durations.

use std::fmt;
use std::future::Future;
use std::time::Duration;

/// A monotonic clock: the time since some moment.
pub type Elapsed = fn() -> Duration;

/// A check that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The check.
    pub check: Check,
    /// How long it took.
    pub took: Duration,
}

/// The checks: one for each link of the chain in [`crate::request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Is it ours, and open?
    Triage,
    /// Is it well-formed, and signed with its own key?
    Parse,
    /// Does it ask for what a kubelet may have, by who may ask?
    ConformClient,
    /// Which machine is it?
    Locate,
    /// Does the evidence hold, for this key and this machine?
    Attest,
    /// Is the node name this machine's?
    NodeName,
    /// Is the name's record this machine's?
    Claim,
    /// Can the CA sign?
    Sign,
    /// Is it for what a kubelet serves as, by the node itself?
    ConformServing,
    /// Is every name in it the machine's own?
    Corroborate,
    /// Is it a control-plane machine's, without evidence?
    ControlPlane,
}

impl Check {
    /// A stable name, for logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Triage => "triage",
            Self::Parse => "parse",
            Self::ConformClient => "conform_client",
            Self::Locate => "locate",
            Self::Attest => "attest",
            Self::NodeName => "check_node_name",
            Self::Claim => "claim",
            Self::Sign => "sign",
            Self::ConformServing => "conform_serving",
            Self::Corroborate => "corroborate",
            Self::ControlPlane => "control_plane",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(super) struct Steps {
    pub(super) taken: Vec<Step>,
    elapsed: Elapsed,
}

impl Steps {
    pub(super) fn timed_by(elapsed: Elapsed) -> Self {
        Self {
            taken: Vec::new(),
            elapsed,
        }
    }

    pub(super) fn take<T>(&mut self, check: Check, make: impl FnOnce() -> T) -> T {
        let begin = (self.elapsed)();
        let result = make();
        self.took(check, begin);
        result
    }

    pub(super) async fn wait<T>(&mut self, check: Check, made: impl Future<Output = T>) -> T {
        let begin = (self.elapsed)();
        let result = made.await;
        self.took(check, begin);
        result
    }

    fn took(&mut self, check: Check, begin: Duration) {
        let took = (self.elapsed)().saturating_sub(begin);
        self.taken.push(Step { check, took });
    }
}
