//! Strict parsing of the TPM's encoding ("TPM 2.0 Library, Part 2: Structures").
//!
//! A structure has only one encoding, and is parsed up to the last byte. Therefore encoding an accepted structure again
//! produces exactly the input.

use aws_lc_rs::digest::{self, SHA256, SHA384, digest};
use tpm2_protocol::data::TpmAlgId;
use tpm2_protocol::{TpmMarshal, TpmSized, TpmUnmarshal, TpmWriter};

/// Parses a single structure. Bytes after the structure are an error.
pub(crate) fn exactly<T: TpmUnmarshal>(bytes: &[u8]) -> Option<T> {
    match T::unmarshal(bytes) {
        Ok((structure, [])) => Some(structure),
        Ok(_) | Err(_) => None,
    }
}

/// Encodes a structure. `None` if it cannot be encoded.
pub(crate) fn encode(structure: &(impl TpmMarshal + TpmSized)) -> Option<Vec<u8>> {
    let mut bytes = vec![0; structure.len()];
    let mut writer = TpmWriter::new(&mut bytes);
    structure.marshal(&mut writer).ok()?;
    Some(bytes)
}

/// Encodes these bytes as a `TPM2B`. `None` if there are too many bytes.
pub(crate) fn sized(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut sized = u16::try_from(bytes.len()).ok()?.to_be_bytes().to_vec();
    sized.extend_from_slice(bytes);
    Some(sized)
}

/// The hash algorithm for an object's Name. Only the algorithms of the supported keys occur.
pub(crate) type NameAlgorithm = (TpmAlgId, &'static digest::Algorithm);

pub(crate) const NAMED_BY_SHA_256: NameAlgorithm = (TpmAlgId::Sha256, &SHA256);
pub(crate) const NAMED_BY_SHA_384: NameAlgorithm = (TpmAlgId::Sha384, &SHA384);

/// The Name of an object: its algorithm, and the digest of its public area (Part 1, "Names").
#[derive(derive_more::Debug, Clone, PartialEq, Eq)]
#[debug("Name({})", data_encoding::HEXLOWER.encode(bytes))]
pub(crate) struct Name {
    algorithm: NameAlgorithm,
    bytes: Vec<u8>,
}

/// `TPM_RH_ENDORSEMENT`.
const ENDORSEMENT: [u8; 4] = 0x4000_000b_u32.to_be_bytes();

impl Name {
    /// Computes the Name of the object with this public area.
    pub(crate) fn of(algorithm: NameAlgorithm, public_area: &[u8]) -> Self {
        let (identifier, by) = algorithm;
        let mut bytes = identifier.value().to_be_bytes().to_vec();
        bytes.extend_from_slice(digest(by, public_area).as_ref());
        Self { algorithm, bytes }
    }

    /// The Qualified Name of a primary object with this Name in the endorsement hierarchy. The Name of a hierarchy is
    /// its handle.
    pub(crate) fn qualified(&self) -> Self {
        Self::of(self.algorithm, &[&ENDORSEMENT[..], &self.bytes].concat())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}
