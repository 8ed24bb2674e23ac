//! Length-prefixed fields, so that two different lists of fields never have the same hash input.

use sha2::{Digest, Sha256};

/// SHA-256 over fields, each preceded by its length as four big-endian bytes.
#[derive(Default)]
pub(crate) struct FramedDigest(Sha256);

impl FramedDigest {
    /// Creates a digest that begins with `prefix`, without a length.
    pub(crate) fn with_prefix(prefix: &[u8]) -> Self {
        Self(Sha256::new_with_prefix(prefix))
    }

    /// Adds one field.
    ///
    /// The length of a field above 4 GiB saturates. The node and the verifier still compute the same digest.
    pub(crate) fn field(mut self, bytes: &[u8]) -> Self {
        self.0
            .update(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.0.update(bytes);
        self
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}
