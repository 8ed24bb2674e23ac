//! Test access to the parser for an endorsement key from an EC2 response.

use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::verifier::platform::KeyKind;

use super::nitro_tpm::key_format::{key_type, read};

/// The digest of a key of this type. `None` if the key is rejected.
pub fn endorsement_key(kind: KeyKind, value: &str) -> Option<KeyDigest> {
    read(&key_type(kind)?, value).ok()
}
