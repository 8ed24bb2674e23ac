//! `spec.request`: the certification request, followed by the attestation blocks.
//!
//! The API server parses only the first PEM block, and stores all bytes unchanged. Two parsers of the same bytes must
//! not see different requests. Therefore only one encoding is accepted: the strict form of RFC 7468 (64 columns, line
//! feeds), with the blocks in order.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use pem::{EncodeConfig, LineEnding, Pem};

use crate::ensure;
use crate::evidence::MAX_EVIDENCE_LEN;
use crate::names::Provider;

/// The maximum size of a request, in bytes. The limit matters because each holder of a bootstrap token, and each node,
/// can list all requests.
pub const MAX_REQUEST_LEN: usize = 64 * 1024;

const CSR: &str = "CERTIFICATE REQUEST";
const PROVIDER: &str = "KUBELET AUTHENTICATOR ATTESTATION PROVIDER";
const EVIDENCE: &str = "KUBELET AUTHENTICATOR ATTESTATION DATA";

/// The parts of a request. The signature of the PKCS#10 request covers only the first part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// DER of the PKCS#10 certification request.
    pub csr: Vec<u8>,
    /// The provider that created the evidence.
    pub provider: Option<Provider>,
    /// The evidence.
    pub evidence: Option<Vec<u8>>,
}

/// The reason why bytes are not a valid envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEnvelope {
    /// More than [`MAX_REQUEST_LEN`] bytes.
    #[error("the request is larger than {MAX_REQUEST_LEN} bytes")]
    TooLarge,
    /// The request does not contain a PEM block.
    #[error("the request has no PEM block")]
    NoPem,
    /// The first block has a different label, or text precedes it.
    #[error("the request does not begin with a {CSR} block")]
    NotFirst,
    /// The request contains a second certification request.
    #[error("the request contains two {CSR} blocks")]
    SecondRequest,
    /// A block occurs twice.
    #[error("the request contains a duplicate block")]
    DuplicateBlock,
    /// A block has an unknown label.
    #[error("the request contains an unknown block")]
    UnknownBlock,
    /// No provider block precedes the evidence.
    #[error("the request contains evidence without a provider block before it")]
    EvidenceWithoutProvider,
    /// Text occurs between or after the blocks.
    #[error("the request contains text outside its blocks")]
    TextOutside,
    /// A block has a PEM header, an invalid line or end line, or invalid base64.
    #[error("the request contains a block that is not in the required PEM encoding")]
    NotStrict,
    /// The provider block does not contain a provider name.
    #[error("the provider block does not contain a valid provider name")]
    Provider,
    /// The evidence exceeds [`MAX_EVIDENCE_LEN`] bytes.
    #[error("the evidence is larger than {MAX_EVIDENCE_LEN} bytes")]
    EvidenceTooLarge,
}

impl Envelope {
    /// The bytes of `spec.request`.
    pub fn encode(&self) -> Vec<u8> {
        let (provider, evidence) = (self.provider.as_ref(), self.evidence.clone());
        let blocks = [
            Some(Pem::new(CSR, self.csr.clone())),
            provider.map(|provider| Pem::new(PROVIDER, provider.as_str())),
            evidence.map(|evidence| Pem::new(EVIDENCE, evidence)),
        ];
        let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
        let blocks = blocks.iter().flatten();
        let blocks = blocks.map(|block| pem::encode_config(block, config));
        blocks.collect::<String>().into_bytes()
    }

    /// Parses `spec.request`, in time linear in its size.
    ///
    /// # Errors
    ///
    /// An envelope has only one encoding. Returns an error for any other text. The error identifies the violated rule.
    pub fn parse(request: &[u8]) -> Result<Self, InvalidEnvelope> {
        ensure!(request.len() <= MAX_REQUEST_LEN, InvalidEnvelope::TooLarge);
        let text = str::from_utf8(request).map_err(|_| InvalidEnvelope::NoPem)?;
        let mut lines = text.lines();
        match lines.next().and_then(begin_label) {
            Some(CSR) => {}
            Some(_) => return Err(InvalidEnvelope::NotFirst),
            None if text.lines().any(|line| begin_label(line).is_some()) => {
                return Err(InvalidEnvelope::NotFirst);
            }
            None => return Err(InvalidEnvelope::NoPem),
        }
        let mut envelope = Self {
            csr: body(&mut lines, CSR)?,
            provider: None,
            evidence: None,
        };
        while let Some(line) = lines.next() {
            match begin_label(line).ok_or(InvalidEnvelope::TextOutside)? {
                CSR => return Err(InvalidEnvelope::SecondRequest),
                PROVIDER if envelope.provider.is_some() => {
                    return Err(InvalidEnvelope::DuplicateBlock);
                }
                PROVIDER => envelope.provider = Some(provider(&body(&mut lines, PROVIDER)?)?),
                EVIDENCE if envelope.evidence.is_some() => {
                    return Err(InvalidEnvelope::DuplicateBlock);
                }
                EVIDENCE if envelope.provider.is_none() => {
                    return Err(InvalidEnvelope::EvidenceWithoutProvider);
                }
                EVIDENCE => envelope.evidence = Some(body(&mut lines, EVIDENCE)?),
                _ => return Err(InvalidEnvelope::UnknownBlock),
            }
        }
        let evidence = envelope.evidence.as_ref();
        if evidence.is_some_and(|evidence| evidence.len() > MAX_EVIDENCE_LEN) {
            return Err(InvalidEnvelope::EvidenceTooLarge);
        }
        // The rules above return precise errors. This rule detects all other deviations: carriage returns and line
        // lengths.
        ensure!(envelope.encode() == request, InvalidEnvelope::NotStrict);
        Ok(envelope)
    }
}

fn begin_label(line: &str) -> Option<&str> {
    line.strip_prefix("-----BEGIN ")?.strip_suffix("-----")
}

/// Decodes the block with this label, after its first line.
fn body<'a>(
    lines: &mut impl Iterator<Item = &'a str>,
    label: &str,
) -> Result<Vec<u8>, InvalidEnvelope> {
    let mut encoded = String::new();
    for line in lines {
        if let Some(end) = line.strip_prefix("-----END ") {
            return match end.strip_suffix("-----") {
                Some(end) if end == label => BASE64_STANDARD
                    .decode(encoded)
                    .map_err(|_| InvalidEnvelope::NotStrict),
                _ => Err(InvalidEnvelope::NotStrict),
            };
        }
        encoded.push_str(line);
    }
    Err(InvalidEnvelope::NotStrict)
}

fn provider(body: &[u8]) -> Result<Provider, InvalidEnvelope> {
    let name = str::from_utf8(body).map_err(|_| InvalidEnvelope::Provider)?;
    Provider::parse(name).map_err(|_| InvalidEnvelope::Provider)
}

#[cfg(test)]
mod tests;
