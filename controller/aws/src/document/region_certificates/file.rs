//! The operator's file of further signers.

use kubelet_attestation::evidence::aws::is_region;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

use super::{Signer, Signers};

/// All certificates of AWS together are 60 KiB.
const MAX_FILE_SIZE: usize = 1024 * 1024;
const REGION: &str = "Region:";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The file of further signers cannot be taken; says which line, counted from 1, is to blame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSigners {
    /// More than a megabyte: its size.
    #[error("it has {0} bytes, and at most {MAX_FILE_SIZE} are read")]
    TooLarge(usize),
    /// It has no certificate.
    #[error("it has no signer")]
    Empty,
    /// A line, this one, is neither of a region nor of a certificate.
    #[error("line {0} is neither \"Region: <name>\" nor part of a certificate in PEM")]
    Line(usize),
    /// A certificate has no line before it that names its region, or a region no certificate after
    /// it.
    #[error("line {0}: each certificate follows its own line \"Region: <name>\"")]
    Unpaired(usize),
    /// This line does not have the name of a region.
    #[error("line {0} does not name a region")]
    Region(usize),
    /// The certificate of a region cannot be read as PEM.
    #[error("line {line}: the certificate of {region} is not PEM")]
    Pem {
        /// Where it begins.
        line: usize,
        /// Whose it is.
        region: String,
        /// The reason.
        source: pem::PemError,
    },
    /// The certificate of a region cannot be read.
    #[error("line {line}: the certificate of {region} cannot be read")]
    Certificate {
        /// Where it begins.
        line: usize,
        /// Whose it is.
        region: String,
        /// The reason.
        source: x509_cert::der::Error,
    },
    /// The key of a certificate is not RSA of 2048 bits: AWS publishes others beside it, for other
    /// signatures.
    #[error("line {line}: the key of {region} is not RSA of 2048 bits")]
    Key {
        /// Where its certificate begins.
        line: usize,
        /// Whose it is.
        region: String,
    },
    /// The key is known, as the one of another region.
    #[error("line {line}: the key that is given for {region} is the one of {other}")]
    KeyOfAnotherRegion {
        /// Where its certificate begins.
        line: usize,
        /// Whose it should be.
        region: String,
        /// Whose it is.
        other: String,
    },
    /// The region has a signer of this issuer and serial number, with another key.
    #[error("line {line}: {region} has a signer of this issuer and serial number with another key")]
    AnotherKey {
        /// Where its certificate begins.
        line: usize,
        /// Whose it is.
        region: String,
    },
}

/// A signer, and where it stands.
#[derive(Debug)]
pub(super) struct Entry {
    line: usize,
    region: String,
    signer: Signer,
}

/// The signers of a file, in order.
pub(super) fn parse(file: &str) -> Result<Vec<Entry>, InvalidSigners> {
    if file.len() > MAX_FILE_SIZE {
        return Err(InvalidSigners::TooLarge(file.len()));
    }
    let mut entries = Vec::new();
    let mut region: Option<(usize, &str)> = None;
    let mut lines = file.lines().map(str::trim_end).zip(1..);
    while let Some((text, line)) = lines.next() {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some(name) = text.strip_prefix(REGION) {
            if region.is_some() {
                return Err(InvalidSigners::Unpaired(line));
            }
            region = Some((line, region_name(line, name.trim())?));
        } else if text == BEGIN {
            let (_, region) = region.take().ok_or(InvalidSigners::Unpaired(line))?;
            let rest = lines.by_ref().map(|(text, _)| text);
            entries.push(entry(line, region, rest)?);
        } else {
            return Err(InvalidSigners::Line(line));
        }
    }
    match region {
        Some((line, _)) => Err(InvalidSigners::Unpaired(line)),
        None if entries.is_empty() => Err(InvalidSigners::Empty),
        None => Ok(entries),
    }
}

fn region_name(line: usize, name: &str) -> Result<&str, InvalidSigners> {
    if is_region(name) {
        Ok(name)
    } else {
        Err(InvalidSigners::Region(line))
    }
}

/// The signer whose certificate begins in `line`, before `rest`.
fn entry<'a>(
    line: usize,
    region: &str,
    rest: impl Iterator<Item = &'a str>,
) -> Result<Entry, InvalidSigners> {
    let mut text = String::from(BEGIN);
    for line in rest {
        text.push('\n');
        text.push_str(line);
        if line == END {
            break;
        }
    }
    let pem = pem::parse(text).map_err(|source| InvalidSigners::Pem {
        line,
        region: region.to_owned(),
        source,
    });
    let signer = signer(pem?.contents()).map_err(|source| InvalidSigners::Certificate {
        line,
        region: region.to_owned(),
        source,
    })?;
    let region = region.to_owned();
    match signer {
        Some(signer) => Ok(Entry {
            line,
            region,
            signer,
        }),
        None => Err(InvalidSigners::Key { line, region }),
    }
}

/// The signer of a certificate; `None` where its key is not RSA of 2048 bits.
fn signer(der: &[u8]) -> Result<Option<Signer>, x509_cert::der::Error> {
    let certificate = Certificate::from_der(der)?;
    let contents = certificate.tbs_certificate();
    let spki = contents.subject_public_key_info().to_der()?;
    let serial = contents.serial_number().as_bytes();
    let serial = serial.strip_prefix(&[0]).unwrap_or(serial);
    let issuer = contents.issuer().to_string();
    Ok(Signer::new(&issuer, serial, &spki))
}

impl Signers {
    /// The key of `entry` is not one that is known as another region's: a certificate that was
    /// copied below the wrong line.
    pub(super) fn has_no_other_region_for(&self, entry: &Entry) -> Result<(), InvalidSigners> {
        let is_same = |known: &Signer| known.spki() == entry.signer.spki();
        let mut others = self
            .by_region
            .iter()
            .filter(|(name, _)| **name != entry.region);
        match others.find(|(_, signers)| signers.iter().any(is_same)) {
            None => Ok(()),
            Some((other, _)) => Err(InvalidSigners::KeyOfAnotherRegion {
                line: entry.line,
                region: entry.region.clone(),
                other: other.clone(),
            }),
        }
    }

    /// Adds a signer; one that is known stays as it is.
    pub(super) fn add(&mut self, entry: Entry) -> Result<(), InvalidSigners> {
        let Entry {
            line,
            region,
            signer,
        } = entry;
        let known = self.by_region.entry(region.clone()).or_default();
        let same_name = known
            .iter()
            .find(|known| known.is(&signer.issuer, &signer.serial));
        match same_name {
            None => known.push(signer),
            Some(same) if same.spki() == signer.spki() => {}
            Some(_) => return Err(InvalidSigners::AnotherKey { line, region }),
        }
        Ok(())
    }
}
