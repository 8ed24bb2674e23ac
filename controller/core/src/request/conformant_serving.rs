//! A request for a serving certificate with content that is valid for a kubelet.

use std::time::Duration;

use kubelet_attestation::names::NodeName;

use super::{ParsedCsr, SignerKind};
use crate::identifiers::{CertificateUid, ServingName};
use crate::policy::{extensions, lifetime, requester, serving_names, subject, usages};
use crate::refusal::{Denial, Refusal};
use crate::serving::ServingPolicy;

/// A request for a kubelet serving certificate. The node itself sent it, and all names can belong to a machine.
#[derive(Debug)]
pub struct ConformantServingCsr {
    request: ServingRequest,
}

/// The content of a request for a serving certificate.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServingRequest {
    /// The requested signer.
    pub signer_kind: SignerKind,
    /// The requesting node.
    pub node_name: NodeName,
    /// The UID in the requester's certificate.
    pub uid: CertificateUid,
    /// The names and addresses for the certificate, without duplicates.
    pub names: Vec<ServingName>,
    /// DER of the key's `SubjectPublicKeyInfo`.
    pub spki: Vec<u8>,
    /// The maximum validity of the certificate, if this controller signs it.
    pub lifetime: Duration,
}

impl ParsedCsr {
    /// Checks the content of the request, and the requester. These checks require no calls to other services.
    ///
    /// # Errors
    ///
    /// All errors are denials.
    pub fn conform_serving(
        self,
        policy: &ServingPolicy,
        longest_lifetime: Duration,
    ) -> Result<ConformantServingCsr, Refusal> {
        let raw = self.raw();
        match raw.signer_kind {
            SignerKind::Serving(_) | SignerKind::BuiltInServing | SignerKind::OwnBuiltInServing => {
            }
            SignerKind::Client(_) | SignerKind::BuiltInClient => {
                return Err(Denial::SignerPurpose.into());
            }
        }
        let node_name = subject::node_name(self.csr())?;
        usages::exact_serving(&raw.usages)?;
        if self.claimed_provider().is_some() {
            return Err(Denial::AttestationUnexpected.into());
        }
        let names = serving_names::parse(extensions::alternative_names(self.csr())?)?;
        for name in &names {
            serving_names::not_reserved(name, policy)?;
            serving_names::in_range(name, policy)?;
        }
        requester::is_node(&raw.username, &raw.groups, &node_name)?;
        if raw.signer_kind == SignerKind::BuiltInServing {
            lifetime::served_by_others(raw.expiration, longest_lifetime)?;
        }
        let uid = CertificateUid::parse(raw.uid.as_deref().unwrap_or_default());
        let uid = uid.map_err(|_| Denial::RequesterUidMissing)?;
        let request = ServingRequest {
            signer_kind: raw.signer_kind.clone(),
            node_name,
            uid,
            names,
            spki: self.csr().spki_der().to_vec(),
            lifetime: lifetime::at_most(longest_lifetime, raw.expiration),
        };
        Ok(ConformantServingCsr { request })
    }
}

impl ConformantServingCsr {
    /// The requested certificate.
    pub fn request(&self) -> &ServingRequest {
        &self.request
    }
}
