//! The protocol of the two programs: one line of JSON in each direction.
//!
//! The programs come from two packages, which can have different versions: a package manager can hold back the TPM
//! helper, and an administrator can copy only one program. Therefore, lines in the format of the first version remain
//! valid. The tests contain such lines.
//!
//! - A program ignores unknown fields. Each new field has a default.
//! - If the TPM helper cannot parse a request, it answers with [`DeviceError::Question`].
//! - The plugin fails after [`DeviceError::Question`], and after an answer that the plugin cannot parse. The error
//!   contains the name of the package. Only `doctor` continues: it warns if the TPM helper does not support
//!   [`Ask::Examine`], because joins and renewals do not need this request.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kubelet_attestation::evidence::tpm::Registers;
use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The maximum length of a line, in bytes. Both programs write shorter lines, with 24 KiB of certificates in base64 and
/// a few structures.
pub(crate) const MAX_LINE_LEN: u64 = 64 * 1024;

/// The beginning of a certificate in DER: a SEQUENCE whose length field has two bytes. Every certificate has at least
/// 256 bytes.
pub(crate) const SEQUENCE: [u8; 2] = [0x30, 0x82];

/// Bits 16 to 23 of a code: the number of the layer that returned the code. The TPM itself is layer 0 (TSS 2.0
/// Overview, "Response codes").
pub(crate) const LAYER: u32 = 0x00ff_0000;

/// Part 2, `TPM_RC`: bit 7 is set in codes that refer to a handle or parameter.
pub(crate) const FORMAT_ONE: u32 = 0x80;

/// The bits of a format-one code that contain the error number.
pub(crate) const FORMAT_ONE_ERROR: u32 = 0xbf;

/// Bytes, encoded as base64 in the protocol.
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

/// A request to a TPM.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Question {
    /// The process ID of the caller.
    pub(crate) asker: u32,
    /// The TPM's name in libtss2.
    pub(crate) tcti: String,
    pub(crate) ask: Ask,
}

/// A request to a TPM. The answer is a `Result` with a [`DeviceError`].
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Ask {
    /// Read the [`Keys`].
    Keys {
        /// The endorsement key; with `None`, the program chooses a key.
        endorsement_key: Option<EndorsementKey>,
    },
    /// Open a challenge, and create a quote ([`Quoted`]).
    Quote(Box<QuoteFor>),
    /// Read the [`Findings`], which are only shown to users.
    Examine {
        /// The endorsement key in use.
        endorsement_key: EndorsementKey,
    },
    /// Return the [`Version`] of the TPM helper. This request does not need a TPM.
    Version {},
}

/// The inputs of a quote.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct QuoteFor {
    /// `TPMT_PUBLIC` of the challenged endorsement key.
    pub(crate) endorsement: Bytes,
    /// The buffer of a `TPM2B_ID_OBJECT`.
    pub(crate) credential_blob: Bytes,
    /// The buffer of a `TPM2B_ENCRYPTED_SECRET`.
    pub(crate) encrypted_secret: Bytes,
    /// The PCRs to quote.
    pub(crate) pcrs: Vec<u8>,
    /// The inputs of the key binding that the quote must cover, except the secret of the challenge, which does not
    /// leave the TPM helper.
    pub(crate) audience: Audience,
    pub(crate) provider_id: ProviderId,
    pub(crate) node_name: NodeName,
    pub(crate) spki: Bytes,
    pub(crate) id: Bytes,
}

/// A type of endorsement key that the TCG EK Credential Profile defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum EndorsementKey {
    /// RSA-2048, template L-1.
    Rsa2048,
    /// NIST P-256, template L-2.
    EccP256,
    /// NIST P-384, template H-3.
    EccP384,
}

impl EndorsementKey {
    /// The NV index of the key's certificate.
    pub(crate) fn certificate_index(self) -> u32 {
        match self {
            Self::Rsa2048 => 0x01c0_0002,
            Self::EccP256 => 0x01c0_000a,
            Self::EccP384 => 0x01c0_0016,
        }
    }
}

/// The keys of a TPM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Keys {
    /// `TPMT_PUBLIC` of the endorsement key.
    pub(crate) endorsement: Bytes,
    /// DER of the endorsement key's `SubjectPublicKeyInfo`.
    pub(crate) spki: Bytes,
    /// The endorsement key certificate as stored in the TPM, with padding.
    pub(crate) certificate: Option<Bytes>,
    /// The concatenated CA certificates in the TPM, with padding.
    pub(crate) chain: Bytes,
    /// `TPMT_PUBLIC` of the attestation key.
    pub(crate) attestation: Bytes,
}

/// The parts of the TPM state that are not in evidence, for output to users.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Findings {
    /// Whether the index for the endorsement key's certificate is defined, even if the index is not readable.
    pub(crate) has_certificate_index: bool,
    /// The PCRs that firmware extends, in the quoted bank; `None` if the TPM has no such bank.
    pub(crate) firmware: Option<Registers>,
}

/// The version of the TPM helper.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Version {
    pub(crate) version: String,
}

/// A quote, and the key that signed it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Quoted {
    /// `TPMT_PUBLIC` of the attestation key.
    pub(crate) attestation: Bytes,
    /// `TPMS_ATTEST`.
    pub(crate) attest: Bytes,
    /// `TPMT_SIGNATURE`.
    pub(crate) signature: Bytes,
    /// The values of the PCRs.
    pub(crate) pcrs: Registers,
}

/// The reason why the TPM did not respond to a request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum DeviceError {
    /// The TPM, or the library, returns a code.
    Code {
        /// The command.
        step: String,
        /// The code (TSS 2.0 Overview, "Response codes"). Bits 16 to 23 contain the number of the layer that returned
        /// the code.
        code: u32,
    },
    /// The Rust bindings of the library reject a value.
    Bindings {
        /// The command.
        step: String,
        /// The error of the bindings.
        words: String,
    },
    /// The TPM is in failure mode: it answers every command with a failure.
    FailureMode,
    /// The challenge was created for a different TPM, or for a different key of this TPM.
    OtherChallenge,
    /// The challenged endorsement key does not belong to this TPM.
    OtherKey,
    /// The endorsement key does not match its template, or is malformed.
    InvalidKey,
    /// The TPM has no SHA-256 or SHA-384 bank with all of the PCRs.
    NoBank,
    /// The PCRs change while the program reads them.
    Unsettled,
    /// The TPM helper cannot parse the request, because the plugin has a different version.
    Question,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn bytes_are_encoded_as_base64() {
        let bytes = Bytes(vec![0, 255]);

        assert_eq!(serde_json::to_string(&bytes).unwrap(), "\"AP8=\"");
        assert_eq!(serde_json::from_str::<Bytes>("\"AP8=\"").unwrap(), bytes);
        assert!(serde_json::from_str::<Bytes>("\"?\"").is_err());
    }

    /// Requests in the form in which the first version of the plugin wrote them (commit 7571c2c2).
    const QUESTIONS: &[&str] = &[
        r#"{"asker":7,"tcti":"device:/dev/tpmrm0","ask":{"Keys":{"endorsement_key":null}}}"#,
        r#"{"asker":7,"tcti":"device:/dev/tpmrm0","ask":{"Keys":{"endorsement_key":"EccP384"}}}"#,
        concat!(
            r#"{"asker":7,"tcti":"swtpm:host=127.0.0.1,port=2321","ask":{"Quote":{"endorsement":"AQ==","#,
            r#""credential_blob":"Ag==","encrypted_secret":"Aw==","pcrs":[0,4,7],"audience":"prod","#,
            r#""provider_id":"metal:///rack-1/7","node_name":"n1","spki":"BA==","id":"BQ=="}}}"#
        ),
    ];

    /// Answers of the first version of the TPM helper to the request for the keys, with and without a certificate.
    pub(crate) const KEYS: &[&str] = &[
        r#"{"Ok":{"endorsement":"AQ==","spki":"Ag==","certificate":"AwP/","chain":"BA==","attestation":"BQ=="}}"#,
        r#"{"Ok":{"endorsement":"AQ==","spki":"Ag==","certificate":null,"chain":"","attestation":"BQ=="}}"#,
    ];

    /// The answer of the first version to the request for a quote.
    pub(crate) const QUOTED: &str = concat!(
        r#"{"Ok":{"attestation":"AQ==","attest":"Ag==","signature":"Aw==","pcrs":{"#,
        r#""0":"0101010101010101010101010101010101010101010101010101010101010101","#,
        r#""7":"0202020202020202020202020202020202020202020202020202020202020202"}}}"#
    );

    const ERRORS: &[&str] = &[
        r#"{"Err":{"Code":{"step":"TPM2_Quote","code":2336}}}"#,
        r#"{"Err":{"Bindings":{"step":"TPM2_Quote","words":"why"}}}"#,
        r#"{"Err":"FailureMode"}"#,
        r#"{"Err":"OtherChallenge"}"#,
        r#"{"Err":"OtherKey"}"#,
        r#"{"Err":"InvalidKey"}"#,
        r#"{"Err":"NoBank"}"#,
        r#"{"Err":"Unsettled"}"#,
        r#"{"Err":"Question"}"#,
    ];

    type Answer<T> = Result<T, DeviceError>;

    /// Parses a recorded line, and asserts that it is written unchanged, so that a program with a different version can
    /// also parse it.
    #[track_caller]
    fn assert_same<T: Serialize + for<'de> Deserialize<'de>>(line: &str) {
        let read: T = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(serde_json::to_string(&read).unwrap(), line);
    }

    #[test]
    fn helper_commands_of_the_first_version_are_still_parsed() {
        for line in QUESTIONS {
            assert_same::<Question>(line);
        }
    }

    #[test]
    fn helper_responses_of_the_first_version_are_still_parsed() {
        for line in KEYS {
            assert_same::<Answer<Keys>>(line);
        }
        assert_same::<Answer<Quoted>>(QUOTED);
        for line in ERRORS {
            assert_same::<Answer<Keys>>(line);
            assert_same::<Answer<Quoted>>(line);
        }
    }

    #[test]
    fn the_version_command_of_the_helper_is_still_parsed() {
        assert_same::<Question>(r#"{"asker":7,"tcti":"device:/dev/tpmrm0","ask":{"Version":{}}}"#);
        assert_same::<Answer<Version>>(r#"{"Ok":{"version":"1.2.3"}}"#);
    }

    #[test]
    fn fields_of_a_later_helper_version_are_ignored() {
        let insert = |value: &mut serde_json::Value| {
            let fields = value.as_object_mut().unwrap();
            fields.insert("later".to_owned(), serde_json::json!([1]));
        };
        for line in QUESTIONS {
            let mut question: serde_json::Value = serde_json::from_str(line).unwrap();
            insert(&mut question);
            let asked = question["ask"].as_object_mut().unwrap();
            asked.values_mut().for_each(insert);
            serde_json::from_value::<Question>(question).unwrap();
        }
        // The first name in the line is the variant of the result, not a field.
        let later = |line: &str| line.replacen(r#"{"Ok":{"#, r#"{"Ok":{"later":[1],"#, 1);
        for line in KEYS {
            serde_json::from_str::<Answer<Keys>>(&later(line))
                .unwrap()
                .unwrap();
        }
        serde_json::from_str::<Answer<Quoted>>(&later(QUOTED))
            .unwrap()
            .unwrap();
    }

    #[test]
    fn a_command_of_a_later_helper_version_is_refused() {
        let line = r#"{"asker":7,"tcti":"device:/dev/tpmrm0","ask":{"Seal":{}}}"#;

        let error = serde_json::from_str::<Question>(line).unwrap_err();
        let words = error.to_string();
        assert!(words.starts_with("unknown variant `Seal`"), "{words}");
    }
}
