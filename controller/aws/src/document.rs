//! The instance identity document, once its signature holds.
//!
//! IMDS gives the document inside a CMS message (`rsa2048`), and the message is all that is read:
//! there is no second copy of any fact. The steps are
//!
//! 1. [`ber`]: base64, and the encoding that AWS uses as DER;
//! 2. `cms`: exactly the one structure that AWS sends;
//! 3. the region that the content names, which nothing vouches for yet, selects the key: whoever
//!    writes another region there selects a key with which his signature does not verify;
//! 4. the signature, with the key that is pinned for that region and for nothing else;
//! 5. `json`: what the verified bytes say.
//!
//! All of it is local, takes bounded time, and asks nobody.

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

/// The content of a signed document. Only a verified signature makes one.
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
    /// The time of its launch, or of its last start.
    pub pending_time: SystemTime,
    /// SHA-256 of the bytes that the signature covers: a part of the key binding.
    pub digest: [u8; 32],
}

impl Signers {
    /// Verifies `rsa2048`, the signed document as IMDS gave it.
    ///
    /// There is no check of age here: a document has no expiry, and proves nothing about when it is
    /// shown. The call to STS does.
    ///
    /// # Errors
    ///
    /// The denial of the first check that fails.
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
