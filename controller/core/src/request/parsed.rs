//! A request that was read.

use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::names::Provider;

use super::raw::RawContents;
use super::{Asked, RawRequest};
use crate::policy::{encoding, key};
use crate::refusal::Denial;

/// A well-formed request, signed with the key that it is for.
#[derive(Debug)]
pub struct ParsedCsr {
    raw: RawRequest,
    csr: CertificationRequest,
    claimed_provider: Option<Provider>,
    evidence: Option<Vec<u8>>,
}

impl RawRequest {
    /// Reads the request in its only encoding, and checks its key and its signature.
    pub fn parse(self) -> Result<ParsedCsr, Denial> {
        let request = &self.contents().request;
        let envelope =
            Envelope::parse(request).map_err(|error| encoding::envelope(error, request.len()))?;
        let csr = CertificationRequest::from_der(&envelope.csr).map_err(encoding::request)?;
        let key = key::accepted(&csr)?;
        key::signed_by(&csr, &key)?;
        Ok(ParsedCsr {
            raw: self,
            csr,
            claimed_provider: envelope.provider,
            evidence: envelope.evidence,
        })
    }
}

impl ParsedCsr {
    /// The provider whose client signer is asked or, for the built-in one, whose evidence is said
    /// to be there; `None` where that is nobody.
    pub fn provider(&self) -> Option<&Provider> {
        match self.raw.asked() {
            Asked::Client(provider) => Some(provider),
            Asked::BuiltInClient => self.claimed_provider(),
            Asked::Serving(_) | Asked::BuiltInServing => None,
        }
    }

    /// Whether there are attestation blocks.
    pub fn is_attested(&self) -> bool {
        self.evidence.is_some()
    }

    pub(super) fn raw(&self) -> &RawContents {
        self.raw.contents()
    }

    pub(super) fn csr(&self) -> &CertificationRequest {
        &self.csr
    }

    pub(super) fn claimed_provider(&self) -> Option<&Provider> {
        self.claimed_provider.as_ref()
    }

    pub(super) fn evidence(&self) -> Option<&[u8]> {
        self.evidence.as_deref()
    }
}
