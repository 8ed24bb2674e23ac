//! The maximum validity of certificates.

/// The default for an attested machine, in seconds: 7 days.
pub(crate) const ATTESTED_SECONDS: u32 = 7 * 24 * 60 * 60;

/// The maximum for an attested machine, in seconds: 30 days.
pub(crate) const MAX_ATTESTED_SECONDS: u32 = 30 * 24 * 60 * 60;

/// The default for a machine without evidence, in seconds: 365 days.
pub(crate) const INSECURE_SECONDS: u32 = 365 * 24 * 60 * 60;

/// The maximum for a machine without evidence, in seconds: 366 days.
pub(crate) const MAX_SECONDS: u32 = 366 * 24 * 60 * 60;
