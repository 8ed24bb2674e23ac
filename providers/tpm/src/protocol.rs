//! What the two programs say to each other: one line of JSON each way.
//!
//! Both are of one package and one version, so that the form may change with every release.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kubelet_attestation::evidence::tpm::Registers;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The most that either says: certificates of 24 KiB in base64, and a few structures.
pub(crate) const MAX_LINE_LEN: u64 = 64 * 1024;

/// Bytes, in base64 on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64_STANDARD.decode(text).map_err(de::Error::custom)?;
        Ok(Self(bytes))
    }
}

/// What is asked of which TPM.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Question {
    /// The process that asks.
    pub(crate) asker: u32,
    /// The TPM, as libtss2 names it.
    pub(crate) tcti: String,
    /// What is asked of it.
    pub(crate) ask: Ask,
}

/// What is asked.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Ask {
    /// Which keys the TPM has.
    Keys {
        /// Which endorsement key; none leaves the choice.
        endorsement_key: Option<EndorsementKey>,
    },
    /// To open a challenge, and to quote.
    Quote(Box<QuoteFor>),
}

/// What a quote is for.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct QuoteFor {
    /// `TPMT_PUBLIC` of the endorsement key that was challenged.
    pub(crate) endorsement: Bytes,
    /// The buffer of a `TPM2B_ID_OBJECT`.
    pub(crate) credential_blob: Bytes,
    /// The buffer of a `TPM2B_ENCRYPTED_SECRET`.
    pub(crate) encrypted_secret: Bytes,
    /// What the quote is to cover, but for what is in the challenge.
    pub(crate) binding: Binding,
    /// The registers to quote.
    pub(crate) registers: Vec<u8>,
}

/// What a key binding is made of, but for the secret: that does not leave the program that opens it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Binding {
    pub(crate) audience: String,
    pub(crate) provider_id: String,
    pub(crate) node_name: String,
    pub(crate) spki: Bytes,
    pub(crate) id: Bytes,
}

/// An endorsement key of the TCG EK Credential Profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum EndorsementKey {
    /// RSA-2048, template L-1.
    Rsa2048,
    /// NIST P-256, template L-2.
    EccP256,
    /// NIST P-384, template H-3.
    EccP384,
}

/// What came of it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Answer {
    /// Its keys.
    Keys(Keys),
    /// What it says of itself.
    Quoted(Quoted),
    /// Nothing.
    Trouble(Trouble),
}

/// The keys of a TPM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Keys {
    /// `TPMT_PUBLIC` of the endorsement key.
    pub(crate) endorsement: Bytes,
    /// DER of its `SubjectPublicKeyInfo`.
    pub(crate) spki: Bytes,
    /// Its certificate as it lies in the TPM, padding and all.
    pub(crate) certificate: Option<Bytes>,
    /// The certificates of the authorities in the TPM, one after the other, padding and all.
    pub(crate) chain: Bytes,
    /// `TPMT_PUBLIC` of the attestation key.
    pub(crate) attestation: Bytes,
}

/// A quote, and by which key.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Quoted {
    /// `TPMT_PUBLIC` of the attestation key.
    pub(crate) attestation: Bytes,
    /// `TPMS_ATTEST`.
    pub(crate) attest: Bytes,
    /// `TPMT_SIGNATURE`.
    pub(crate) signature: Bytes,
    /// What is in the registers.
    pub(crate) registers: Registers,
}

/// Why a TPM does not do what is asked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum Trouble {
    /// It, or the library, answers with a code.
    Code {
        /// At which command.
        step: String,
        /// The code (TSS 2.0 Overview, "Response codes"): who speaks in bits 16 to 23.
        code: u32,
    },
    /// The library's bindings do not like what they got.
    Bindings {
        /// At which command.
        step: String,
        /// In their words.
        words: String,
    },
    /// Every command is answered by a failure.
    FailureMode,
    /// The challenge is for another TPM, or for another key of this one.
    OtherChallenge,
    /// The endorsement key that was challenged is not of this TPM.
    OtherKey,
    /// It has no bank of SHA-256, or not all of the registers in it.
    NoBank,
    /// The registers change while they are read.
    Unsettled,
    /// The question makes no sense.
    Question,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_base64() {
        let bytes = Bytes(vec![0, 255]);

        assert_eq!(serde_json::to_string(&bytes).unwrap(), "\"AP8=\"");
        assert_eq!(serde_json::from_str::<Bytes>("\"AP8=\"").unwrap(), bytes);
        assert!(serde_json::from_str::<Bytes>("\"?\"").is_err());
    }
}
