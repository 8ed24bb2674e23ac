//! The fixtures for the suite.

pub use kubelet_authenticator_tests::fleet::*;
