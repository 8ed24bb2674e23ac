//! The fixtures of this suite.

pub use kubelet_authenticator_tests::fleet::*;
