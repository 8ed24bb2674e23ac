//! Evidence: what a machine sends to prove what it is.
//!
//! UTF-8 JSON. Every provider's evidence begins with the fields of [`Header`]; the provider's own
//! module reads the rest, strictly, once the version is known.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::ensure;
use crate::names::Audience;
use crate::version::EvidenceVersion;

pub mod aws;
pub mod tpm;

/// The most evidence a request may carry, in bytes.
pub const MAX_EVIDENCE_LEN: usize = 32 * 1024;

/// Evidence that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEvidence {
    /// More than [`MAX_EVIDENCE_LEN`].
    #[error("the evidence has {0} bytes; at most {MAX_EVIDENCE_LEN} are read")]
    TooLarge(usize),
    /// Not the JSON that this version has.
    #[error("the evidence is not the JSON object of its version")]
    Json(#[source] serde_json::Error),
    /// A field is malformed.
    #[error(transparent)]
    Field(#[from] InvalidField),
}

/// A malformed field of evidence, by its rule. It repeats nothing of the field's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidField(Cow<'static, str>);

impl InvalidField {
    fn new(rule: impl Into<Cow<'static, str>>) -> Self {
        Self(rule.into())
    }
}

/// Reads only the version, so that evidence of another version can be refused by its version and
/// not by its fields.
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
    EvidenceVersion::parse(name).map_err(|_| InvalidField::new("the evidence names no version"))
}

/// The members of every provider's evidence, and the only ones of `null`'s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Header {
    /// The format.
    pub version: EvidenceVersion,
    /// The cluster that the evidence is for.
    pub audience: Audience,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHeader {
    version: String,
    audience: String,
}

impl Header {
    /// Reads evidence that has these fields and no others.
    pub fn parse(evidence: &[u8]) -> Result<Self, InvalidEvidence> {
        let raw: RawHeader = from_json(evidence)?;
        Self::of(&raw.version, &raw.audience)
    }

    fn of(version_name: &str, audience: &str) -> Result<Self, InvalidEvidence> {
        Ok(Self {
            version: version(version_name)?,
            audience: Audience::parse(audience)
                .map_err(|_| InvalidField::new("the evidence names no audience"))?,
        })
    }

    /// The evidence that has only these fields.
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
    fn a_header_reads_back() {
        let header = Header {
            version: EvidenceVersion::V1,
            audience: Audience::parse("prod").unwrap(),
        };

        assert_eq!(Header::parse(&header.to_json()).unwrap(), header);
        assert_eq!(Header::parse(VALID.as_bytes()).unwrap(), header);
    }

    #[test]
    fn the_version_is_read_from_evidence_of_any_other_version() {
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
    fn malformed_fields_are_named() {
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
