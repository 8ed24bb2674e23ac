//! The rules for a certificate in a chain that do not depend on its signature.

use super::signature::SUPPORTED;

/// The rule that a certificate violates. Rules that are checked later are greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(super) enum Unfit {
    #[error("it has a duplicate extension")]
    DuplicateExtension,
    /// An endorsement key does not sign certificates.
    #[error("it is a CA certificate")]
    Authority,
    #[error("its key usage is not allowed for an endorsement key")]
    UsageOfEndorsementKey,
    #[error("its extended key usage is not allowed for endorsement keys")]
    UsageOfAuthority,
    #[error("its critical certificate policies {0}")]
    Policies(&'static str),
    #[error("it has {what} critical extension ({oid})")]
    Extension {
        /// `an unknown` or `a malformed`.
        what: &'static str,
        oid: String,
    },
    #[error("it does not have the extended key usage 2.23.133.8.1")]
    NotForEndorsementKeys,
    #[error("it does not contain a TPM manufacturer")]
    NoManufacturer,
    #[error("it is not a CA certificate")]
    NotAnAuthority,
    #[error("its key usage does not allow it to sign certificates")]
    DoesNotSign,
    /// Contains the type of the key.
    #[error("its key is {0}: {SUPPORTED}")]
    Key(String),
}
