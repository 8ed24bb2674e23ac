//! `spec.request`: the certification request and, after it, the attestation blocks.
//!
//! The API server parses the first PEM block and stores the rest as it is; two parsers of the same
//! bytes must not see different requests. So there is one encoding: RFC 7468's strict form (64
//! columns, line feeds), the blocks in order.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use pem::{EncodeConfig, LineEnding, Pem};

use crate::ensure;
use crate::evidence::MAX_EVIDENCE_LEN;
use crate::names::Provider;

/// The most a request may have, in bytes: every node and every bootstrap token can list all of
/// them.
pub const MAX_REQUEST_LEN: usize = 64 * 1024;

const CSR: &str = "CERTIFICATE REQUEST";
const PROVIDER: &str = "KUBELET AUTHENTICATOR ATTESTATION PROVIDER";
const EVIDENCE: &str = "KUBELET AUTHENTICATOR ATTESTATION DATA";

/// The parts of a request. The request's own signature covers only the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// DER of the PKCS#10 certification request.
    pub csr: Vec<u8>,
    /// The provider of the evidence.
    pub provider: Option<Provider>,
    /// The evidence.
    pub evidence: Option<Vec<u8>>,
}

/// Bytes that are not an envelope in its only encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEnvelope {
    /// More than [`MAX_REQUEST_LEN`] bytes.
    #[error("the request has more than {MAX_REQUEST_LEN} bytes")]
    TooLarge,
    /// No PEM block at all.
    #[error("the request has no PEM block")]
    NoPem,
    /// The first block is another, or something stands before it.
    #[error("the request does not begin with a {CSR} block")]
    NotFirst,
    /// A second certification request.
    #[error("the request has two {CSR} blocks")]
    SecondRequest,
    /// A block that stands twice.
    #[error("the request has a block twice")]
    DuplicateBlock,
    /// A block that does not belong here.
    #[error("the request has an unknown block")]
    UnknownBlock,
    /// Evidence before its provider, or without one.
    #[error("the request has evidence that no provider block precedes")]
    EvidenceWithoutProvider,
    /// Text between or after the blocks.
    #[error("the request has text outside its blocks")]
    TextOutside,
    /// A PEM header, an odd line, an end that does not match, or text that is not base64.
    #[error("the request has a block that is not strict PEM")]
    NotStrict,
    /// The provider block does not hold a provider's name.
    #[error("the provider block holds no provider's name")]
    Provider,
    /// More than [`MAX_EVIDENCE_LEN`] bytes of evidence.
    #[error("the evidence has more than {MAX_EVIDENCE_LEN} bytes")]
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

    /// Reads `spec.request`, in time linear in its size.
    ///
    /// # Errors
    ///
    /// Everything but the one encoding of an envelope is refused; the error says by which rule.
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
        // The rules above say what is wrong; this one leaves nothing else to be wrong (carriage
        // returns, line lengths).
        ensure!(envelope.encode() == request, InvalidEnvelope::NotStrict);
        Ok(envelope)
    }
}

fn begin_label(line: &str) -> Option<&str> {
    line.strip_prefix("-----BEGIN ")?.strip_suffix("-----")
}

/// Reads up to the end of the block of this label.
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
