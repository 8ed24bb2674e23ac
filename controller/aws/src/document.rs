//! The instance identity document, once its signature holds.

use std::time::SystemTime;

/// What a signed document says of its instance. Only a verified signature makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedDocument {
    /// The account that owns the instance, twelve digits.
    pub account: String,
    /// Its region, whose signer signed the document.
    pub region: String,
    /// Its availability zone.
    pub availability_zone: String,
    /// Its ID.
    pub instance: String,
    /// When it was launched, or started again.
    pub pending_time: SystemTime,
    /// SHA-256 of the bytes that the signature covers: a part of the key binding.
    pub digest: [u8; 32],
}
