//! A parsed request.

use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::names::Provider;

use super::raw::RawContents;
use super::{RawRequest, SignerKind};
use crate::policy::{encoding, key};
use crate::refusal::Denial;

/// A well-formed request, signed with its own key.
#[derive(Debug)]
pub struct ParsedCsr {
    raw: RawRequest,
    csr: CertificationRequest,
    claimed_provider: Option<Provider>,
    evidence: Option<Vec<u8>>,
}

impl RawRequest {
    /// Parses the request, which must be in canonical encoding, and checks its key and its signature.
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
    /// The provider to which the requested client signer belongs. For the built-in client signer, the provider in the
    /// provider block. `None` for serving signers.
    pub fn provider(&self) -> Option<&Provider> {
        match self.raw.signer_kind() {
            SignerKind::Client(provider) => Some(provider),
            SignerKind::BuiltInClient => self.claimed_provider(),
            SignerKind::Serving(_) | SignerKind::BuiltInServing | SignerKind::OwnBuiltInServing => {
                None
            }
        }
    }

    /// Whether the request contains evidence.
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
