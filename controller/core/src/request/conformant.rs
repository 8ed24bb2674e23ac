//! A request for what a kubelet may have.

use std::time::{Duration, SystemTime};

use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use super::{Asked, ParsedCsr};
use crate::lifetimes::Lifetimes;
use crate::policy::requester::Requester;
use crate::policy::{evidence, extensions, lifetime, requester, subject, usages};
use crate::refusal::{Denial, Refusal};
use crate::verifier::Verifier;

/// A request for a kubelet's client certificate, by somebody who may ask for one.
#[derive(Debug)]
pub struct ConformantClientCsr {
    asked: Asked,
    provider: Provider,
    requester: Requester,
    node_name: NodeName,
    provider_id: ProviderId,
    spki: Vec<u8>,
    evidence: Option<Vec<u8>>,
    lifetime: Duration,
    created: Option<SystemTime>,
    annotated_key: Option<String>,
}

impl ParsedCsr {
    /// Checks what is asked for, and by whom. Everything that can be refused without asking anybody
    /// is refused here.
    ///
    /// `verifier` is the one of the request's provider.
    ///
    /// # Errors
    ///
    /// A version of evidence that `verifier` does not read fails; everything else is a denial.
    pub fn conform_client(
        self,
        verifier: &dyn Verifier,
        lifetimes: &Lifetimes,
    ) -> Result<ConformantClientCsr, Refusal> {
        let raw = self.raw();
        let provider = self.provider().ok_or(Denial::SignerPurpose)?;
        let node_name = subject::node_name(self.csr())?;
        usages::exact(raw.usages())?;
        let provider_id = extensions::provider_id(self.csr())?;
        evidence::of_signer(provider, self.claimed_provider(), verifier)?;
        let requester = requester::accepted(raw.username(), raw.groups(), raw.uid(), &node_name)?;
        evidence::readable(self.evidence(), verifier)?;
        let expiration = raw.expiration();
        let lifetime = match raw.asked() {
            Asked::Client(_) => lifetime::granted(expiration, verifier, lifetimes),
            Asked::BuiltInClient | Asked::Serving(_) | Asked::BuiltInServing => {
                lifetime::signed_by_others(expiration, verifier, lifetimes)?
            }
        };
        Ok(ConformantClientCsr {
            asked: raw.asked().clone(),
            provider: provider.clone(),
            requester,
            node_name,
            provider_id,
            spki: self.csr().spki_der().to_vec(),
            evidence: self.evidence().map(<[u8]>::to_vec),
            lifetime,
            created: raw.created(),
            annotated_key: raw.annotated_key().map(str::to_owned),
        })
    }
}

impl ConformantClientCsr {
    /// The requested signer.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// The provider whose signer is asked, or whose evidence comes with a request to the built-in
    /// one.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// The requester.
    pub fn requester(&self) -> &Requester {
        &self.requester
    }

    /// The node name that is asked for.
    pub fn node_name(&self) -> &NodeName {
        &self.node_name
    }

    /// The provider ID that the request claims.
    pub fn provider_id(&self) -> &ProviderId {
        &self.provider_id
    }

    /// DER of the key's `SubjectPublicKeyInfo`.
    pub fn spki_der(&self) -> &[u8] {
        &self.spki
    }

    /// The evidence; `None` where the provider has none.
    pub fn evidence(&self) -> Option<&[u8]> {
        self.evidence.as_deref()
    }

    /// How long, from now, the certificate may be valid at most.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// When the API server got it; `None` for one that no API server has.
    pub fn asked_at(&self) -> Option<SystemTime> {
        self.created
    }

    /// What the annotation of an endorsement key says: the requester may have written it.
    pub(super) fn annotated_key(&self) -> Option<&str> {
        self.annotated_key.as_deref()
    }
}
