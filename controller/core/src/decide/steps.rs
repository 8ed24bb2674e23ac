//! Which checks were made, and how long each took.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

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
#[non_exhaustive]
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
    Settle,
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
            Self::Settle => "settle",
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

#[derive(Default)]
pub(super) struct Steps(pub(super) Vec<Step>);

impl Steps {
    pub(super) fn take<T>(&mut self, check: Check, make: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = make();
        self.took(check, begin);
        result
    }

    pub(super) async fn wait<T>(&mut self, check: Check, made: impl Future<Output = T>) -> T {
        let begin = Instant::now();
        let result = made.await;
        self.took(check, begin);
        result
    }

    fn took(&mut self, check: Check, begin: Instant) {
        let took = begin.elapsed();
        self.0.push(Step { check, took });
    }
}
