//! The issued certificate.

use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use super::{ApprovalReason, ClaimedCsr, CorroboratedCsr, SignerKind};
use crate::identifiers::{CertificateUid, KeyDigest};
use crate::ledger::GrantReason;
use crate::refusal::{Denial, Refusal};
use crate::signer::{CertificateContents, Purpose, Signer};
use crate::verifier::TpmBoot;

/// A certificate for a machine that passed every check. The request has not been approved, and the certificate has not
/// been published.
#[derive(Debug, derive_more::Deref)]
pub struct IssuedCertificate {
    issued: Issued,
}

/// A certificate, and data about its machine.
#[derive(Debug)]
#[non_exhaustive]
pub struct Issued {
    /// The reason for the approval.
    pub approval_reason: ApprovalReason,
    /// The node of the certificate.
    pub node_name: NodeName,
    /// The provider ID of the node's machine.
    pub provider_id: ProviderId,
    /// The UID and the generation of the node identity. A client certificate contains both values.
    pub uid: CertificateUid,
    /// The certificate as PEM, for `status.certificate`.
    pub pem: String,
    /// The certificate's serial number in lower-case hexadecimal.
    pub serial: String,
    /// The expiry time.
    pub not_after: SystemTime,
    /// The reason for the grant of a client certificate. `None` for a serving certificate.
    pub grant_reason: Option<GrantReason>,
    /// The endorsement key of the TPM that attested the key of a client certificate.
    pub endorsement_key: Option<KeyDigest>,
    /// The start counters and clock of that TPM.
    pub boot: Option<TpmBoot>,
}

impl ClaimedCsr {
    /// Signs a certificate with the cluster's CA. Only the key comes from the request. All other fields come from
    /// verified data.
    ///
    /// # Errors
    ///
    /// Fails or defers if the signer cannot sign.
    pub async fn sign(
        self,
        signer: &Signer,
        now: SystemTime,
    ) -> Result<IssuedCertificate, Refusal> {
        let contents = CertificateContents {
            node_name: &self.request().node_name,
            spki: &self.request().spki,
            not_after: self.grant().not_after,
            purpose: Purpose::Client {
                uid: self.grant().uid,
                provider_id: &self.identity().provider_id,
            },
        };
        let certificate = signer.sign(&contents, now).await?;
        let issued = Issued {
            approval_reason: ApprovalReason::NodeNameClaimed,
            node_name: self.request().node_name.clone(),
            provider_id: self.identity().provider_id.clone(),
            uid: self.grant().uid,
            pem: certificate.pem,
            serial: certificate.serial,
            not_after: certificate.not_after,
            grant_reason: Some(self.grant().reason.clone()),
            endorsement_key: self.identity().endorsement_key,
            boot: self.identity().boot,
        };
        Ok(IssuedCertificate { issued })
    }
}

impl CorroboratedCsr {
    /// Signs a serving certificate for exactly the corroborated names with the cluster's CA.
    ///
    /// # Errors
    ///
    /// The same errors as for [`ClaimedCsr::sign`]. Also denies a request to kube-controller-manager's signer, because
    /// only kube-controller-manager can sign it.
    pub async fn sign(
        self,
        signer: &Signer,
        now: SystemTime,
    ) -> Result<IssuedCertificate, Refusal> {
        is_ours(&self.request().signer_kind)?;
        let contents = CertificateContents {
            node_name: &self.request().node_name,
            spki: &self.request().spki,
            not_after: now + self.request().lifetime,
            purpose: Purpose::Serving(&self.request().names),
        };
        let certificate = signer.sign(&contents, now).await?;
        let issued = Issued {
            approval_reason: ApprovalReason::ServingNamesCorroborated,
            node_name: self.request().node_name.clone(),
            provider_id: self.identity().provider_id.clone(),
            uid: self.uid(),
            pem: certificate.pem,
            serial: certificate.serial,
            not_after: certificate.not_after,
            grant_reason: None,
            endorsement_key: None,
            boot: None,
        };
        Ok(IssuedCertificate { issued })
    }
}

fn is_ours(signer_kind: &SignerKind) -> Result<(), Denial> {
    match signer_kind {
        SignerKind::Client(_) | SignerKind::Serving(_) | SignerKind::OwnBuiltInServing => Ok(()),
        SignerKind::BuiltInClient | SignerKind::BuiltInServing => Err(Denial::SignerPurpose),
    }
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::names::Provider;

    use super::*;

    #[test]
    fn a_request_to_a_built_in_signer_is_left_to_that_signer() {
        for signer_kind in [SignerKind::BuiltInClient, SignerKind::BuiltInServing] {
            assert_eq!(is_ours(&signer_kind), Err(Denial::SignerPurpose));
        }
        for signer_kind in [
            SignerKind::Client(Provider::NULL),
            SignerKind::Serving(Provider::NULL),
            SignerKind::OwnBuiltInServing,
        ] {
            assert_eq!(is_ours(&signer_kind), Ok(()));
        }
    }
}
