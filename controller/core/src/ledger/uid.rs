//! What tells records, generations and keys apart.

use std::fmt::{self, Debug};

/// SHA-256 of the DER of a `SubjectPublicKeyInfo`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of this key.
    pub fn of(spki_der: &[u8]) -> Self {
        let mut digest = [0; 32];
        digest.copy_from_slice(
            aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, spki_der).as_ref(),
        );
        Self(digest)
    }

    /// Reads a digest in lower-case hexadecimal.
    pub fn parse(hex: &str) -> Result<Self, InvalidDigest> {
        bytes(hex).map(Self).ok_or(InvalidDigest)
    }

    /// The digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyDigest({self})")
    }
}

/// Text is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 lower-case hexadecimal digits")]
pub struct InvalidDigest;

/// What makes records distinct: 16 random bytes, made with the record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordUid([u8; 16]);

impl RecordUid {
    /// The UID of these random bytes.
    pub fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// Reads a UID in lower-case hexadecimal.
    pub fn parse(hex: &str) -> Result<Self, InvalidCertificateUid> {
        bytes(hex).map(Self).ok_or(InvalidCertificateUid)
    }
}

impl fmt::Display for RecordUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl Debug for RecordUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordUid({self})")
    }
}

/// The UID that a certificate carries, `<record>.<generation>`; the API server makes it the user's
/// UID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CertificateUid {
    /// The record.
    pub record: RecordUid,
    /// Which holder of the record's name, from 1.
    pub generation: u64,
}

/// Text is not a certificate's UID in its only form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a certificate's UID is 32 lower-case hexadecimal digits, '.' and a generation")]
pub struct InvalidCertificateUid;

impl CertificateUid {
    /// Reads a UID; every UID has one form.
    pub fn parse(text: &str) -> Result<Self, InvalidCertificateUid> {
        let (record, generation) = text.split_once('.').ok_or(InvalidCertificateUid)?;
        let uid = Self {
            record: RecordUid::parse(record)?,
            generation: generation.parse().map_err(|_| InvalidCertificateUid)?,
        };
        // `parse` also reads signs and leading zeros.
        if uid.generation > 0 && uid.to_string() == text {
            Ok(uid)
        } else {
            Err(InvalidCertificateUid)
        }
    }
}

impl fmt::Display for CertificateUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.record, self.generation)
    }
}

fn bytes<const N: usize>(hex: &str) -> Option<[u8; N]> {
    data_encoding::HEXLOWER
        .decode(hex.as_bytes())
        .ok()?
        .try_into()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificates_uid_reads_back() {
        let text = "000102030405060708090a0b0c0d0e0f.18446744073709551615";

        assert_eq!(CertificateUid::parse(text).unwrap().to_string(), text);
    }

    #[test]
    fn a_certificates_uid_has_one_form() {
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
}
