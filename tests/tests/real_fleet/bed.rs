//! The fixtures of the suite.

pub use kubelet_authenticator_tests::fleet::*;
