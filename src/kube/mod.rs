//! The API operations that a node needs: certificate signing requests, and a dry run of its Lease.

mod client;
mod error;
pub(crate) mod kubeconfig;
mod proxy;
#[cfg(feature = "testing")]
pub(crate) mod testing;
mod tls;
mod transport;
mod types;
mod watch;

pub use client::ApiClient;
pub use error::ApiError;
pub(crate) use error::ApiErrorKind;
pub(crate) use types::{Condition, CsrDetails};
pub use types::{CsrObject, CsrState, NewCsr};
