//! A request for a client certificate with content that is valid for a kubelet.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use super::{ParsedCsr, SignerKind};
use crate::policy::requester::Requester;
use crate::policy::{evidence, extensions, lifetime, requester, subject, usages};
use crate::refusal::{Denial, Refusal};
use crate::verifier::Verifier;

/// A request for a kubelet client certificate, from an accepted requester.
#[derive(Debug)]
pub struct ConformantClientCsr {
    request: ClientRequest,
    verifier: Arc<dyn Verifier>,
}

/// The content of a request for a client certificate.
#[derive(Debug)]
#[non_exhaustive]
pub struct ClientRequest {
    /// The provider of the requested signer.
    pub provider: Provider,
    /// The requester.
    pub requester: Requester,
    /// The requested node name.
    pub node_name: NodeName,
    /// The provider ID that the request claims.
    pub provider_id: ProviderId,
    /// DER of the key's `SubjectPublicKeyInfo`.
    pub spki: Vec<u8>,
    /// The evidence. `None` if the provider does not require evidence.
    pub evidence: Option<Vec<u8>>,
    /// The maximum validity of the certificate, starting now.
    pub lifetime: Duration,
    /// The time at which the API server created the request. `None` without an API server.
    pub created: Option<SystemTime>,
    /// The annotation with an endorsement key, possibly written by the requester.
    pub(super) annotated_key: Option<String>,
}

impl ParsedCsr {
    /// Checks the content of the request, and the requester. These checks require no calls to other services.
    ///
    /// `verifier` is the verifier for the request's provider. A later step uses it to appraise the evidence.
    ///
    /// # Errors
    ///
    /// Fails if `verifier` does not support the evidence version. All other errors are denials.
    pub fn conform_client(
        self,
        verifier: &Arc<dyn Verifier>,
        longest_lifetime: Duration,
    ) -> Result<ConformantClientCsr, Refusal> {
        let raw = self.raw();
        let SignerKind::Client(provider) = &raw.signer_kind else {
            return Err(Denial::SignerPurpose.into());
        };
        let node_name = subject::node_name(self.csr())?;
        usages::exact(&raw.usages)?;
        let provider_id = extensions::provider_id(self.csr())?;
        evidence::of_signer(provider, self.claimed_provider(), verifier.as_ref())?;
        let requester =
            requester::accepted(&raw.username, &raw.groups, raw.uid.as_deref(), &node_name)?;
        evidence::readable(self.evidence(), verifier.as_ref())?;
        let request = ClientRequest {
            provider: provider.clone(),
            requester,
            node_name,
            provider_id,
            spki: self.csr().spki_der().to_vec(),
            evidence: self.evidence().map(<[u8]>::to_vec),
            lifetime: lifetime::at_most(longest_lifetime, raw.expiration),
            created: raw.created,
            annotated_key: raw.annotated_key.clone(),
        };
        Ok(ConformantClientCsr {
            request,
            verifier: verifier.clone(),
        })
    }
}

impl ConformantClientCsr {
    /// The requested certificate.
    pub fn request(&self) -> &ClientRequest {
        &self.request
    }

    /// The verifier for the request's provider.
    pub(super) fn verifier(&self) -> &dyn Verifier {
        &*self.verifier
    }
}
