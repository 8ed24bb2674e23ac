//! The steps of a run, for tests that interrupt a run after each step.

use kubelet_authenticator::testing::Step;

/// The steps of a run without a challenge, in order.
pub const RUN: [Step; 11] = [
    Step::Locked,
    Step::Loaded,
    Step::Named,
    Step::OriginSaved,
    Step::KeySaved,
    Step::Attested,
    Step::RequestSaved,
    Step::Acknowledged,
    Step::Decided,
    Step::CredentialStored,
    Step::Cleared,
];

/// The steps that a challenge adds, in order.
pub const CHALLENGE: [Step; 4] = [
    Step::Challenged,
    Step::Answered,
    Step::AnswerSaved,
    Step::AnswerAcknowledged,
];

/// The steps of `setup`, in the order of a join. The enrollment follows them.
pub const SETUP: [Step; 3] = [
    Step::BootstrapKubeconfigWritten,
    Step::KubeletKubeconfigWritten,
    Step::EnvironmentWritten,
];
