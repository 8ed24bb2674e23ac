//! The challenge for a TPM.

use base64::prelude::*;
use serde::{Deserialize, Serialize};

use super::{MAX_STRUCTURE_LEN, structure};
use crate::evidence::{InvalidField, to_json};

/// The annotation, on the first request, that contains the challenge.
pub const CHALLENGE_ANNOTATION: &str = "attestation.cluster.x-k8s.io/tpm-challenge";

/// The maximum length of the annotation, in base64.
const MAX_ANNOTATION_LEN: usize = 16 * 1024;

/// An annotation that is not a challenge.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidChallenge {
    /// The text is not base64, or is too long.
    #[error("the challenge is not base64, or is too long")]
    Base64,
    /// The content is not the JSON object of a challenge.
    #[error("the challenge does not match its JSON format")]
    Json(#[source] serde_json::Error),
    /// A field is malformed.
    #[error(transparent)]
    Field(#[from] InvalidField),
}

/// A secret that only one TPM can decrypt, and only together with one of that TPM's attestation keys
/// (`TPM2_MakeCredential`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    /// The ID of the challenge.
    pub id: ChallengeId,
    /// The expiry time of the challenge.
    pub expiry: Expiry,
    /// The buffer of a `TPM2B_ID_OBJECT`, which contains the encrypted secret.
    pub credential_blob: Vec<u8>,
    /// The buffer of a `TPM2B_ENCRYPTED_SECRET`, which contains the seed that decrypts the secret. Only the endorsement
    /// key can decrypt the seed.
    pub encrypted_secret: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawChallenge {
    id: String,
    expiry: String,
    credential_blob: String,
    encrypted_secret: String,
}

impl Challenge {
    /// Parses the annotation.
    ///
    /// # Errors
    ///
    /// Returns an error if the annotation is too long, is not base64 of the JSON object, or has a malformed field.
    pub fn parse(annotation: &str) -> Result<Self, InvalidChallenge> {
        if annotation.len() > MAX_ANNOTATION_LEN {
            return Err(InvalidChallenge::Base64);
        }
        let json = BASE64_STANDARD.decode(annotation);
        let json = json.map_err(|_| InvalidChallenge::Base64)?;
        let raw: RawChallenge = serde_json::from_slice(&json).map_err(InvalidChallenge::Json)?;
        let structure = |name, base64: &str| structure(name, base64, MAX_STRUCTURE_LEN);
        Ok(Self {
            id: id(&raw.id)?,
            expiry: expiry(&raw.expiry)?,
            credential_blob: structure("credentialBlob", &raw.credential_blob)?,
            encrypted_secret: structure("encryptedSecret", &raw.encrypted_secret)?,
        })
    }

    /// The value of the annotation.
    pub fn to_annotation(&self) -> String {
        BASE64_STANDARD.encode(to_json(&RawChallenge {
            id: self.id.to_base64(),
            expiry: self.expiry.as_str().to_owned(),
            credential_blob: BASE64_STANDARD.encode(&self.credential_blob),
            encrypted_secret: BASE64_STANDARD.encode(&self.encrypted_secret),
        }))
    }
}

pub(super) fn id(base64: &str) -> Result<ChallengeId, InvalidField> {
    ChallengeId::parse(base64).ok_or_else(|| InvalidField::new("id is not base64 of 16 bytes"))
}

pub(super) fn expiry(time: &str) -> Result<Expiry, InvalidField> {
    let rule = "invalid expiry (want YYYY-MM-DDTHH:MM:SSZ)";
    Expiry::parse(time).ok_or(InvalidField::new(rule))
}

/// The ID of a challenge, which is random and used once.
#[derive(derive_more::Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[debug("ChallengeId({})", self.to_base64())]
pub struct ChallengeId([u8; 16]);

impl ChallengeId {
    /// Creates the ID from these bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Parses base64 of 16 bytes.
    pub fn parse(base64: &str) -> Option<Self> {
        let bytes = BASE64_STANDARD.decode(base64).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The bytes in base64.
    pub fn to_base64(self) -> String {
        BASE64_STANDARD.encode(self.0)
    }
}

/// The expiry time of a challenge, in RFC 3339 format and UTC, with a precision of one second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry(String);

impl Expiry {
    /// Parses a time in the format `YYYY-MM-DDTHH:MM:SSZ`. Does not check that the date exists.
    pub fn parse(time: &str) -> Option<Self> {
        let form = b"0000-00-00T00:00:00Z";
        let has_form = time.len() == form.len()
            && time.bytes().zip(form).all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                form => byte == *form,
            });
        has_form.then(|| Self(time.to_owned()))
    }

    /// The time.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
