//! The operator's file of additional signers.

use kubelet_attestation::ensure;
use kubelet_attestation::evidence::aws::is_region;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

use super::{Signer, Signers};

/// The maximum size of the file, in bytes. AWS's certificates are 60 KiB long in total.
const MAX_FILE_SIZE: usize = 1024 * 1024;
const REGION: &str = "Region:";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Invalid file of additional signers, with the line that causes the error, counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSigners {
    /// The file is larger than 1 MiB. The value is its size.
    #[error("it is {0} bytes long (limit: {MAX_FILE_SIZE})")]
    TooLarge(usize),
    /// The file has no certificate.
    #[error("it does not contain a certificate")]
    Empty,
    /// This line is neither a region nor part of a certificate.
    #[error("line {0} is neither \"Region: <name>\" nor part of a PEM certificate")]
    Line(usize),
    /// A certificate has no region line before it, or a region line has no certificate after it.
    #[error("line {0}: a separate line \"Region: <name>\" must precede each certificate")]
    Unpaired(usize),
    /// This line does not contain a region name.
    #[error("line {0} does not contain a region name")]
    Region(usize),
    /// The certificate that begins in this line, for this region, is not PEM.
    #[error("line {0}: the certificate for {1} is not PEM")]
    Pem(usize, String, #[source] pem::PemError),
    /// The certificate that begins in this line, for this region, cannot be parsed.
    #[error("line {0}: cannot parse the certificate for {1}")]
    Certificate(usize, String, #[source] x509_cert::der::Error),
    /// The key of the certificate that begins in this line, for this region, is not RSA with 2048 bits: AWS also
    /// publishes certificates for other signatures.
    #[error("line {0}: the key for {1} is not a 2048-bit RSA key")]
    Key(usize, String),
    /// The key of the certificate that begins in this line, for this region, is already known as the key of another
    /// region.
    #[error(
        "line {0}: the certificate for region {1} has the same key as the certificate for region {2}"
    )]
    KeyOfAnotherRegion(usize, String, String),
    /// The certificate that begins in this line has the issuer and serial number of a known signer of this region, but
    /// a different key.
    #[error(
        "line {0}: region {1} already has a certificate with the same issuer and serial number, but a different key"
    )]
    AnotherKey(usize, String),
}

/// A signer, and its line in the file.
#[derive(Debug)]
pub(super) struct Entry {
    line: usize,
    region: String,
    signer: Signer,
}

/// Parses the signers in a file, in order.
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
            ensure!(region.is_none(), InvalidSigners::Unpaired(line));
            let name = Some(name.trim()).filter(|name| is_region(name));
            region = Some((line, name.ok_or(InvalidSigners::Region(line))?));
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

/// Parses the signer whose certificate begins in `line`, before `rest`.
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
    let region = region.to_owned();
    let pem = match pem::parse(text) {
        Ok(pem) => pem,
        Err(source) => return Err(InvalidSigners::Pem(line, region, source)),
    };
    match signer(pem.contents()) {
        Ok(Some(signer)) => Ok(Entry {
            line,
            region,
            signer,
        }),
        Ok(None) => Err(InvalidSigners::Key(line, region)),
        Err(source) => Err(InvalidSigners::Certificate(line, region, source)),
    }
}

/// Parses the signer in a certificate. `None` if its key is not a 2048-bit RSA key.
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
    /// Checks that the key of `entry` is not known for another region. A key is known for another region, for example,
    /// if a certificate was copied below the wrong region line.
    pub(super) fn has_no_other_region_for(&self, entry: &Entry) -> Result<(), InvalidSigners> {
        let is_same = |known: &Signer| known.spki() == entry.signer.spki();
        let mut others = self
            .by_region
            .iter()
            .filter(|(name, _)| **name != entry.region);
        match others.find(|(_, signers)| signers.iter().any(is_same)) {
            None => Ok(()),
            Some((other, _)) => {
                let (region, other) = (entry.region.clone(), other.clone());
                Err(InvalidSigners::KeyOfAnotherRegion(
                    entry.line, region, other,
                ))
            }
        }
    }

    /// Adds a signer. A known signer is not changed.
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
            Some(_) => return Err(InvalidSigners::AnotherKey(line, region)),
        }
        Ok(())
    }
}
