//! The instance identity document, after its signature is verified.
//!
//! IMDS returns the document in a CMS message (`rsa2048`). No other source is read, so each fact has only one source.
//! The steps are:
//!
//! 1. [`ber`]: base64, and the encoding that AWS uses as DER;
//! 2. `cms`: only the structure that AWS sends;
//! 3. the region in the content, which has not been verified yet, selects the key: if an attacker changes the region in
//!    the content, the selected key does not verify the signature;
//! 4. the signature, with a key that is pinned only for that region;
//! 5. `json`: the fields in the verified bytes.
//!
//! All steps are local and take bounded time.

mod cms;
mod fields;
mod json;
mod region_certificates;

use std::time::SystemTime;

use kubelet_attestation::ensure;
use kubelet_attestation::evidence::aws::ber::{self, InvalidBer};

use crate::denial::AwsDenial;

pub(crate) use json::{is_account, is_instance, is_zone_of};
pub use region_certificates::{InvalidSigners, Signer, Signers};

/// The content of a signed document. It can only be created by verifying the signature.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedDocument {
    /// The account that owns the instance, 12 digits.
    pub account: String,
    /// The region of the instance. The document signing certificate for this region signed the document.
    pub region: String,
    /// The availability zone of the instance.
    pub availability_zone: String,
    /// The instance ID.
    pub instance: String,
    /// The time of the launch or of the last start of the instance.
    pub pending_time: SystemTime,
    /// The SHA-256 digest of the bytes that the signature covers. It is a part of the key binding.
    pub digest: [u8; 32],
}

impl Signers {
    /// Verifies `rsa2048`, the signed document as returned by IMDS.
    ///
    /// This function does not check the age, because a document has no expiry time and does not show when it was
    /// presented. The STS call shows that time.
    ///
    /// # Errors
    ///
    /// Returns the denial from the first check that fails.
    pub fn verify(&self, rsa2048: &str) -> Result<VerifiedDocument, AwsDenial> {
        let der = ber::decode(rsa2048);
        let der = der.map_err(|InvalidBer(detail)| AwsDenial::DocumentUndecodable(detail))?;
        let message = cms::SignedMessage::parse(&der)?;
        let region = json::claimed_region(message.claimed_content())?;
        let signers = self.region(&region);
        ensure!(!signers.is_empty(), AwsDenial::RegionUnknown(region));
        let content = message.verify(signers, &region)?;
        json::parse(&content, &self.extra_versions)
    }
}

#[cfg(test)]
mod tests;
