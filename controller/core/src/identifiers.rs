//! Identifiers of keys, node identities, certificates and bootstrap tokens, and names of nodes and servers.

use std::fmt;
use std::net::IpAddr;

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use kubelet_attestation::names::NodeName;

/// The prefix of the user name for a bootstrap token, before the token ID.
pub(crate) const BOOTSTRAP_USER_PREFIX: &str = "system:bootstrap:";

/// The SHA-256 digest of the DER of a `SubjectPublicKeyInfo`.
#[derive(
    derive_more::Display, derive_more::Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
#[display("{}", HEXLOWER.encode(_0))]
#[debug("KeyDigest({self})")]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// Computes the digest of this key.
    pub fn of(spki_der: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, spki_der).as_ref());
        Self(bytes)
    }

    /// Parses a digest in lower-case hexadecimal.
    pub fn parse(hex: &str) -> Result<Self, InvalidDigest> {
        bytes(hex).map(Self).ok_or(InvalidDigest)
    }
}

/// A string that is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest must have 64 lower-case hexadecimal digits")]
pub struct InvalidDigest;

/// The UID of a node identity: 16 random bytes, generated with the node identity.
#[derive(
    derive_more::Display, derive_more::Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
#[display("{}", HEXLOWER.encode(_0))]
#[debug("RecordUid({self})")]
pub struct RecordUid([u8; 16]);

impl RecordUid {
    /// Creates the UID from these random bytes.
    pub fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// Parses a UID in lower-case hexadecimal.
    pub fn parse(hex: &str) -> Result<Self, InvalidCertificateUid> {
        bytes(hex).map(Self).ok_or(InvalidCertificateUid)
    }
}

/// The UID in a certificate, `<node identity>.<generation>`. The API server uses it as the user's UID.
#[derive(derive_more::Display, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[display("{record}.{generation}")]
pub struct CertificateUid {
    /// The UID of the node identity.
    pub record: RecordUid,
    /// The generation of the node identity, starting at 1.
    pub generation: u64,
}

/// A string that is not a certificate UID in its canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a certificate's UID must have 32 lower-case hexadecimal digits, '.' and a generation")]
pub struct InvalidCertificateUid;

impl CertificateUid {
    /// Parses a UID. Accepts only the canonical form.
    pub fn parse(text: &str) -> Result<Self, InvalidCertificateUid> {
        let (record, generation) = text.split_once('.').ok_or(InvalidCertificateUid)?;
        let uid = Self {
            record: RecordUid::parse(record)?,
            generation: generation.parse().map_err(|_| InvalidCertificateUid)?,
        };
        // Therefore signs and leading zeros, which the integer parser accepts, are rejected.
        if uid.generation > 0 && uid.to_string() == text {
            Ok(uid)
        } else {
            Err(InvalidCertificateUid)
        }
    }
}

fn bytes<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let bytes = HEXLOWER.decode(hex.as_bytes()).ok()?;
    bytes.try_into().ok()
}

/// The public part of a bootstrap token: its ID.
///
/// The bytes are stored inline, without a heap allocation, because every cached machine has an ID.
#[derive(derive_more::Display, derive_more::Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[display("{}", self.as_str())]
#[debug("TokenId({})", self.as_str())]
pub struct TokenId([u8; TOKEN_ID_LEN]);

/// A string that is not the ID of a bootstrap token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a bootstrap token's ID must have {TOKEN_ID_LEN} lower-case letters and digits")]
pub struct InvalidTokenId;

/// The length of the ID in a bootstrap token, `[a-z0-9]{6}.[a-z0-9]{16}` (bootstrap token format of Kubernetes).
const TOKEN_ID_LEN: usize = 6;

impl TokenId {
    /// Parses an ID.
    pub fn parse(id: &str) -> Result<Self, InvalidTokenId> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = id.as_bytes().try_into().map_err(|_| InvalidTokenId)?;
        if id.bytes().all(allowed) {
            Ok(Self(bytes))
        } else {
            Err(InvalidTokenId)
        }
    }

    /// Parses the ID from the user name for a bootstrap token.
    pub fn of_username(username: &str) -> Option<Self> {
        let id = username.strip_prefix(BOOTSTRAP_USER_PREFIX)?;
        Self::parse(id).ok()
    }

    /// The ID.
    pub fn as_str(&self) -> &str {
        // Letters and digits are always UTF-8.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The maximum number of names in a message, because an infrastructure can report dozens of names for one machine.
const MAX_LISTED: usize = 4;

/// A list of node names. `Display` writes only the first 4 names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNames(Vec<NodeName>);

impl From<NodeName> for NodeNames {
    fn from(name: NodeName) -> Self {
        Self(vec![name])
    }
}

impl FromIterator<NodeName> for NodeNames {
    /// Collects the names in the given order, without duplicates.
    fn from_iter<T: IntoIterator<Item = NodeName>>(names: T) -> Self {
        let mut all = Vec::new();
        for name in names {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        Self(all)
    }
}

impl fmt::Display for NodeNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = self.0.iter().take(MAX_LISTED).map(NodeName::as_str);
        f.write_str(&listed.collect::<Vec<_>>().join(" or "))?;
        match self.0.len().saturating_sub(MAX_LISTED) {
            0 => Ok(()),
            more => write!(f, " or one of {more} more"),
        }
    }
}

/// A name or an address in a serving certificate.
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServingName {
    /// A DNS name in its canonical form: lower-case labels, no final dot, no wildcard.
    Dns(String),
    /// An IP address.
    Ip(IpAddr),
}

/// Converts a reported DNS name to the form for comparisons: lower case, and without a final dot, which the domain name
/// of a network can have.
pub fn dns_form(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dns_name_is_compared_without_case_and_final_dot() {
        for (reported, compared) in [
            ("IP-10-0-0-1.Corp.Test.", "ip-10-0-0-1.corp.test"),
            ("ip-10-0-0-1", "ip-10-0-0-1"),
            ("n1..", "n1."),
            (".", ""),
        ] {
            assert_eq!(dns_form(reported), compared);
        }
    }

    #[test]
    fn a_certificate_uid_is_unchanged_after_a_round_trip() {
        let text = "000102030405060708090a0b0c0d0e0f.18446744073709551615";

        assert_eq!(CertificateUid::parse(text).unwrap().to_string(), text);
    }

    #[test]
    fn a_malformed_certificate_uid_is_refused() {
        let record = "000102030405060708090a0b0c0d0e0f";
        for text in [
            String::new(),
            record.to_owned(),
            format!("{record}."),
            format!("{record}.0"),
            format!("{record}.01"),
            format!("{record}.+1"),
            format!("{record}.1.1"),
            format!("{record}.1 "),
            format!("{record}.18446744073709551616"),
            format!("{}.1", record.to_ascii_uppercase()),
            format!("{}.1", record.split_at(2).1),
            format!("{record}00.1"),
        ] {
            assert_eq!(
                CertificateUid::parse(&text),
                Err(InvalidCertificateUid),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_list_of_names_is_deduplicated_and_truncated() {
        let names = |names: &[&str]| {
            let names = names.iter().map(|name| NodeName::parse(name).unwrap());
            names.collect::<NodeNames>().to_string()
        };

        assert_eq!(names(&["a"]), "a");
        assert_eq!(names(&["a", "b", "a"]), "a or b");
        let many = ["a", "b", "c", "d", "e", "f"];
        assert_eq!(names(&many), "a or b or c or d or one of 2 more");
    }

    #[test]
    fn a_token_id_has_six_lower_case_letters_and_digits() {
        let id = TokenId::parse("abc123").unwrap();
        assert_eq!((id.as_str(), &*id.to_string()), ("abc123", "abc123"));
        assert_eq!(format!("{id:?}"), "TokenId(abc123)");
        for id in [
            "",
            "abc12",
            "abc1234",
            "ABC123",
            "abc12.",
            "abc12\u{e4}",
            "abc12\n",
        ] {
            assert_eq!(TokenId::parse(id), Err(InvalidTokenId), "{id:?}");
        }
    }
}
