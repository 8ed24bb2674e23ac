//! Which cluster to talk to, and as whom.
//!
//! A kubeconfig is somebody else's format: keys that we do not know are passed over, as client-go
//! does. What would make the connection or the login something else than the file says is refused,
//! with the reason.

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
