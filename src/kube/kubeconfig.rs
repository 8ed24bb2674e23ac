//! The cluster and the login of a kubeconfig.
//!
//! A kubeconfig is a foreign format, so unknown keys are ignored, as in client-go. A field that
//! would make the connection or the login differ from what the file says is refused, with a reason.

mod endpoint;
mod error;
mod file;
mod login;
mod wire;

pub use endpoint::{ClusterEndpoint, EndpointFields};
pub use error::{KubeconfigError, Place, Refused};
pub use file::Kubeconfig;
pub use login::Login;

pub(super) use login::{Identity, identity};
