//! Versions of the evidence format.

use std::borrow::Cow;

use serde::Serialize;

use crate::text::as_text;

/// The annotation on a failed request with the versions that the controller accepts, separated by commas.
pub const SUPPORTED_VERSIONS_ANNOTATION: &str = "attestation.cluster.x-k8s.io/supported-versions";

/// The maximum length of a version name.
const MAX_VERSION_LEN: usize = 32;

/// A version of the evidence format, such as `v1`.
#[derive(derive_more::Display, Serialize, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EvidenceVersion(Cow<'static, str>);

/// An invalid version name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an evidence version must have 1 to {MAX_VERSION_LEN} lower-case letters and digits")]
pub struct InvalidVersion;

impl EvidenceVersion {
    /// The evidence version that every provider supports.
    pub const V1: Self = Self(Cow::Borrowed("v1"));

    /// The version in which TPM evidence can contain the intermediate certificates between the endorsement key
    /// certificate and the vendor's root.
    pub const V2: Self = Self(Cow::Borrowed("v2"));

    /// Parses a version name.
    pub fn parse(name: &str) -> Result<Self, InvalidVersion> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if name.is_empty() || name.len() > MAX_VERSION_LEN || !name.bytes().all(allowed) {
            return Err(InvalidVersion);
        }
        Ok(Self(Cow::Owned(name.to_owned())))
    }

    /// The value of [`SUPPORTED_VERSIONS_ANNOTATION`] for `versions`.
    pub fn list<'a>(versions: impl IntoIterator<Item = &'a Self>) -> String {
        let names: Vec<_> = versions.into_iter().map(Self::as_str).collect();
        names.join(",")
    }

    /// The versions in the value of [`SUPPORTED_VERSIONS_ANNOTATION`]. Invalid entries are skipped.
    pub fn parse_list(value: &str) -> Vec<Self> {
        let names = value.split(',');
        names
            .filter_map(|name| Self::parse(name.trim()).ok())
            .collect()
    }
}

as_text!(EvidenceVersion);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_versions_is_unchanged_after_a_round_trip() {
        let versions = [
            EvidenceVersion::V1,
            EvidenceVersion::parse("v2beta1").unwrap(),
        ];

        assert_eq!(EvidenceVersion::list(&versions), "v1,v2beta1");
        assert_eq!(EvidenceVersion::parse_list("v1, v2beta1"), versions);
    }

    #[test]
    fn an_unknown_version_in_a_list_is_ignored() {
        assert_eq!(
            EvidenceVersion::parse_list("v1,,V2,\u{e9},v 3"),
            [EvidenceVersion::V1]
        );
    }

    #[test]
    fn a_malformed_version_is_refused() {
        let longest = "v".repeat(32);
        assert_eq!(EvidenceVersion::parse(&longest).unwrap().as_str(), longest);
        for name in ["", "V1", "v1.0", "v1\n", &"v".repeat(33)] {
            assert_eq!(
                EvidenceVersion::parse(name),
                Err(InvalidVersion),
                "{name:?}"
            );
        }
    }
}
