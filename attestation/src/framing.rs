//! Length-prefixed fields, so that two lists of fields never hash alike.

use sha2::{Digest, Sha256};

/// SHA-256 over fields, each after its length as four big-endian bytes.
#[derive(Default)]
pub(crate) struct FramedDigest(Sha256);

impl FramedDigest {
    /// A digest over `prefix`, as it is, and what is added after it.
    pub(crate) fn with_prefix(prefix: &[u8]) -> Self {
        Self(Sha256::new_with_prefix(prefix))
    }

    /// Adds one field.
    ///
    /// A field longer than 4 GiB cannot be framed; its length saturates, and both halves agree on
    /// that.
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
