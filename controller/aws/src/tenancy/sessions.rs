//! Role sessions. Each role is assumed once for all tenants that share it, before its session expires, and at a limited
//! rate.
//!
//! The SDK's own cache holds 64 identities and does not keep the source of a role. If 200 roles shared one source, the
//! SDK would assume the source repeatedly. This cache keeps every link of a chain.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `error`: the reasons why credentials are missing
//! - `budget`: the rate of STS calls
//! - `assume`: the STS calls
//! - `state`: the credentials of one link, their last failure, and their account
//! - `session`: the renewal of one link's credentials
//! - `cache`: the sessions of all plans

mod assume;
mod budget;
mod cache;
mod error;
mod session;
mod state;
#[cfg(test)]
pub(crate) mod testing;

pub use self::assume::{AssumeRole, Issued, Keys, SdkSts, Tokens};
pub use self::cache::{PlanCredentials, Sessions};
pub use self::error::{CredentialsError, FailureKind, TokenError};
