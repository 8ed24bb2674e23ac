//! Evidence: the data that identifies a machine.
//!
//! Evidence is UTF-8 JSON. The evidence of every provider begins with the fields of [`Header`]. The module of each
//! provider parses the other fields strictly, after the version is known.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::ensure;
use crate::names::Audience;
use crate::version::EvidenceVersion;

pub mod aws;
pub mod tpm;

/// The maximum size of evidence in a request, in bytes.
pub const MAX_EVIDENCE_LEN: usize = 32 * 1024;

/// Evidence that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEvidence {
    /// The evidence exceeds [`MAX_EVIDENCE_LEN`].
    #[error("the evidence is {0} bytes long (limit: {MAX_EVIDENCE_LEN})")]
    TooLarge(usize),
    /// The evidence is not the JSON object of this version.
    #[error("the evidence does not match the JSON format of its version")]
    Json(#[source] serde_json::Error),
    /// A field is malformed.
    #[error(transparent)]
    Field(#[from] InvalidField),
}

/// The rule that a malformed field of evidence violates. The error does not contain the field's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidField(Cow<'static, str>);

impl InvalidField {
    fn new(rule: impl Into<Cow<'static, str>>) -> Self {
        Self(rule.into())
    }
}

/// Parses only the version, so that the error for an unknown version contains the version instead of an unknown field.
pub fn version_of(evidence: &[u8]) -> Result<EvidenceVersion, InvalidEvidence> {
    #[derive(Deserialize)]
    struct Versioned<'a> {
        #[serde(borrow)]
        version: Cow<'a, str>,
    }

    let versioned: Versioned<'_> = from_json(evidence)?;
    Ok(version(&versioned.version)?)
}

fn version(name: &str) -> Result<EvidenceVersion, InvalidField> {
    EvidenceVersion::parse(name)
        .map_err(|_| InvalidField::new("the evidence does not contain a valid version"))
}

/// The fields that all evidence contains, regardless of the provider. The evidence of the provider `null` has only
/// these fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Header {
    /// The version of the format.
    pub version: EvidenceVersion,
    /// The cluster for which the evidence was created.
    pub audience: Audience,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHeader {
    version: String,
    audience: String,
}

impl Header {
    /// Parses evidence that has exactly these fields.
    pub fn parse(evidence: &[u8]) -> Result<Self, InvalidEvidence> {
        let raw: RawHeader = from_json(evidence)?;
        Self::of(&raw.version, &raw.audience)
    }

    fn of(version_name: &str, audience: &str) -> Result<Self, InvalidEvidence> {
        Ok(Self {
            version: version(version_name)?,
            audience: Audience::parse(audience)
                .map_err(|_| InvalidField::new("the evidence does not contain a valid audience"))?,
        })
    }

    /// Encodes evidence with only these fields for a request.
    pub fn to_json(&self) -> Vec<u8> {
        to_json(self)
    }
}

fn from_json<'a, T: Deserialize<'a>>(evidence: &'a [u8]) -> Result<T, InvalidEvidence> {
    let len = evidence.len();
    ensure!(len <= MAX_EVIDENCE_LEN, InvalidEvidence::TooLarge(len));
    serde_json::from_slice(evidence).map_err(InvalidEvidence::Json)
}

fn to_json(raw: &impl Serialize) -> Vec<u8> {
    serde_json::json!(raw).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = r#"{"version":"v1","audience":"prod"}"#;

    #[test]
    fn a_header_is_unchanged_after_a_round_trip() {
        let header = Header {
            version: EvidenceVersion::V1,
            audience: Audience::parse("prod").unwrap(),
        };

        assert_eq!(Header::parse(&header.to_json()).unwrap(), header);
        assert_eq!(Header::parse(VALID.as_bytes()).unwrap(), header);
    }

    #[test]
    fn the_version_is_read_from_evidence_of_an_unsupported_version() {
        let version = version_of(br#"{"new":{"shape":[]},"version":"v9"}"#).unwrap();

        assert_eq!(version.as_str(), "v9");
    }

    #[test]
    fn unknown_and_duplicate_fields_are_refused() {
        for evidence in [
            r#"{"version":"v1","audience":"prod","more":1}"#,
            r#"{"version":"v1","version":"v1","audience":"prod"}"#,
            r#"{"version":"v1","audience":"prod"}{}"#,
            r#"{"version":"v1"}"#,
            "[]",
            "",
            "\u{feff}{}",
        ] {
            assert!(
                matches!(
                    Header::parse(evidence.as_bytes()),
                    Err(InvalidEvidence::Json(_))
                ),
                "{evidence}"
            );
        }
    }

    #[test]
    fn the_error_for_malformed_fields_names_them() {
        let version = Header::parse(br#"{"version":"V1","audience":"prod"}"#);
        let audience = Header::parse(br#"{"version":"v1","audience":"a b"}"#);

        assert!(matches!(version, Err(InvalidEvidence::Field(_))));
        assert!(matches!(audience, Err(InvalidEvidence::Field(_))));
    }

    #[test]
    fn evidence_over_the_limit_is_not_parsed() {
        let at_limit = format!("{VALID}{}", " ".repeat(MAX_EVIDENCE_LEN - VALID.len()));
        let over = format!("{at_limit} ");

        assert!(Header::parse(at_limit.as_bytes()).is_ok());
        assert!(matches!(
            Header::parse(over.as_bytes()),
            Err(InvalidEvidence::TooLarge(32769))
        ));
        assert!(matches!(
            version_of(over.as_bytes()),
            Err(InvalidEvidence::TooLarge(32769))
        ));
    }
}
