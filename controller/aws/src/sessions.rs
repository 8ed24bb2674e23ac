//! The sessions of roles: each assumed once for all that share it, ahead of its end, and at a bounded rate.
//!
//! The SDK's own cache has room for 64 identities and does not keep the source of a role, so that 200 roles over
//! one would be assumed again and again. Here every link of a chain is kept.
//!
//! # Modules
//!
//! Each imports only those above it.
//!
//! - `error`: why there are no credentials
//! - `budget`: the rate of calls of STS
//! - `assume`: the calls of STS
//! - `session`: the credentials of one link, and their renewal
//! - `cache`: the sessions of all plans

mod assume;
mod budget;
mod cache;
mod error;
mod session;
#[cfg(test)]
pub(crate) mod testing;

pub use self::assume::{AssumeRole, Issued, Keys, SdkSts, StsFailure, Tokens};
pub use self::cache::{PlanCredentials, Sessions};
pub use self::error::{CredentialsError, FailureKind};
