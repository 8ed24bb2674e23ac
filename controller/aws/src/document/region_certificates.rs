//! The certificates that sign the instance identity documents of each region.

mod file;

use std::collections::BTreeMap;

use aws_lc_rs::rsa::PublicEncryptingKey;
use aws_lc_rs::signature::{ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXUPPER;
use serde::Deserialize;

pub use file::InvalidSigners;

/// AWS's RSA-2048 document signing certificates, one for each region. They come from AWS's page of certificates for
/// instance identity document signatures, whose URL is in the file. The page does not list the isolated regions.
const AWS_SIGNERS: &str = include_str!("region_certificates/aws.json");

const KEY_BITS: usize = 2048;

/// A document signing key, which is pinned for one region by the issuer and serial number of its certificate.
///
/// The certificate is not a CA certificate. Its expiry is not checked, because AWS replaces a signer by publishing a
/// new certificate.
#[derive(Debug, Clone)]
pub struct Signer {
    issuer: String,
    serial: Vec<u8>,
    /// The public key for its signatures: PKCS #1 v1.5 with SHA-256.
    pub(super) key: ParsedPublicKey,
}

impl Signer {
    /// Creates a signer with this SPKI, issuer (RFC 4514) and serial number (without leading zeros). `None` if the key
    /// is not a 2048-bit RSA key.
    fn new(issuer: &str, serial: &[u8], spki: &[u8]) -> Option<Self> {
        let key = PublicEncryptingKey::from_der(spki).ok()?;
        if key.key_size_bits() != KEY_BITS {
            return None;
        }
        let key = ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, spki).ok()?;
        Some(Self {
            issuer: issuer.to_owned(),
            serial: serial.to_vec(),
            key,
        })
    }

    /// Whether this issuer and serial number in a message identify this signer.
    pub(super) fn is(&self, issuer: &str, serial: &[u8]) -> bool {
        self.issuer == issuer && self.serial == serial
    }

    fn spki(&self) -> &[u8] {
        self.key.as_ref()
    }
}

/// The signers for all known regions, and the accepted document versions in addition to AWS's two versions.
#[derive(Debug, Clone)]
pub struct Signers {
    by_region: BTreeMap<String, Vec<Signer>>,
    pub(super) extra_versions: Vec<String>,
}

#[derive(Deserialize)]
struct Table {
    signers: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    region: String,
    issuer: String,
    serial: String,
    spki: String,
}

impl Row {
    fn signer(&self) -> Option<Signer> {
        let serial = HEXUPPER.decode(self.serial.as_bytes()).ok()?;
        let spki = STANDARD.decode(&self.spki).ok()?;
        Signer::new(&self.issuer, &serial, &spki)
    }
}

impl Signers {
    /// AWS's signers, as they were published when this program was built.
    ///
    /// # Panics
    ///
    /// Does not panic, because the table is part of the program, and a test parses it.
    pub fn embedded() -> Self {
        #[expect(
            clippy::expect_used,
            reason = "the table is part of the program, and a test reads it"
        )]
        Self::of_table(AWS_SIGNERS).expect("the embedded signers can be read")
    }

    /// Adds the signers in an operator's file: for new or isolated regions, or for a region whose signer AWS has
    /// replaced. The file cannot remove a signer.
    ///
    /// The file contains PEM blocks as published by AWS. Before each certificate, a line contains its region. Empty
    /// lines and lines that begin with `#` are ignored:
    ///
    /// ```text
    /// Region: us-iso-east-1
    /// -----BEGIN CERTIFICATE-----
    /// ...
    /// -----END CERTIFICATE-----
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the file is malformed, has no certificate, or has a certificate whose key is not a 2048-bit
    /// RSA key. The file must not contradict a known signer either: it must not contain the key of another region, or a
    /// known name with a different key.
    pub fn with_file(self, file: &str) -> Result<Self, InvalidSigners> {
        let mut extended = self.clone();
        for entry in file::parse(file)? {
            self.has_no_other_region_for(&entry)?;
            extended.add(entry)?;
        }
        Ok(extended)
    }

    /// Also accepts documents with these versions. The fields in these versions must have the same meaning and format
    /// as in the known versions.
    #[must_use]
    pub fn with_versions(self, versions: &[String]) -> Self {
        Self {
            extra_versions: versions.to_vec(),
            ..self
        }
    }

    /// The signers of a region's documents. Empty for an unknown region.
    pub fn region(&self, region: &str) -> &[Signer] {
        self.by_region.get(region).map_or(&[], Vec::as_slice)
    }

    /// The known regions, in alphabetical order.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.by_region.keys().map(String::as_str)
    }

    fn of_table(table: &str) -> Option<Self> {
        let table: Table = serde_json::from_str(table).ok()?;
        let mut by_region: BTreeMap<String, Vec<Signer>> = BTreeMap::new();
        for row in table.signers {
            let signer = row.signer()?;
            by_region.entry(row.region).or_default().push(signer);
        }
        Some(Self {
            by_region,
            extra_versions: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests;
