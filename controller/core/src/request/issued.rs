//! The certificate.

use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use super::{ApprovalReason, Asked, ClaimedCsr, CorroboratedCsr};
use crate::identifiers::{CertificateUid, KeyDigest};
use crate::ledger::GrantReason;
use crate::refusal::{Denial, Refusal};
use crate::signer::{CertificateContents, Purpose, Signer};
use crate::verifier::TpmBoot;

/// A certificate for a machine that passed every check; neither approved nor published yet.
#[derive(Debug)]
pub struct IssuedCertificate {
    basis: ApprovalReason,
    node_name: NodeName,
    provider_id: ProviderId,
    uid: CertificateUid,
    pem: String,
    serial: String,
    not_after: SystemTime,
    opening: Option<GrantReason>,
    endorsement_key: Option<KeyDigest>,
    boot: Option<TpmBoot>,
}

impl ClaimedCsr {
    /// Has the CA sign a certificate that is built from what was verified; of the request it
    /// carries only the key.
    ///
    /// # Errors
    ///
    /// A request to kube-controller-manager's signer denies: only that may sign it.
    pub fn sign(self, signer: &Signer, now: SystemTime) -> Result<IssuedCertificate, Refusal> {
        is_ours(&self.request().asked)?;
        let contents = CertificateContents {
            node_name: &self.request().node_name,
            spki: &self.request().spki,
            not_after: self.not_after(),
            purpose: Purpose::Client {
                uid: self.uid(),
                provider_id: &self.identity().provider_id,
            },
        };
        let certificate = signer.sign(&contents, now)?;
        Ok(IssuedCertificate {
            basis: ApprovalReason::NodeNameClaimed,
            node_name: self.request().node_name.clone(),
            provider_id: self.identity().provider_id.clone(),
            uid: self.uid(),
            pem: certificate.pem,
            serial: certificate.serial,
            not_after: certificate.not_after,
            opening: Some(self.opening().clone()),
            endorsement_key: self.identity().endorsement_key,
            boot: self.identity().boot,
        })
    }
}

impl CorroboratedCsr {
    /// Has the CA sign a serving certificate for exactly the names that were corroborated.
    ///
    /// # Errors
    ///
    /// As [`ClaimedCsr::sign`].
    pub fn sign(self, signer: &Signer, now: SystemTime) -> Result<IssuedCertificate, Refusal> {
        is_ours(&self.request().asked)?;
        let contents = CertificateContents {
            node_name: &self.request().node_name,
            spki: &self.request().spki,
            not_after: now + self.request().lifetime,
            purpose: Purpose::Serving(&self.request().names),
        };
        let certificate = signer.sign(&contents, now)?;
        Ok(IssuedCertificate {
            basis: ApprovalReason::ServingNamesCorroborated,
            node_name: self.request().node_name.clone(),
            provider_id: self.identity().provider_id.clone(),
            uid: self.uid(),
            pem: certificate.pem,
            serial: certificate.serial,
            not_after: certificate.not_after,
            opening: None,
            endorsement_key: None,
            boot: None,
        })
    }
}

fn is_ours(asked: &Asked) -> Result<(), Denial> {
    match asked {
        Asked::Client(_) | Asked::Serving(_) => Ok(()),
        Asked::BuiltInClient | Asked::BuiltInServing => Err(Denial::SignerPurpose),
    }
}

impl IssuedCertificate {
    /// On what ground it is issued.
    pub fn basis(&self) -> ApprovalReason {
        self.basis
    }

    /// The certificate as PEM, for `status.certificate`.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its serial number in lower-case hexadecimal.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// When it ends.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The node that it names.
    pub fn node_name(&self) -> &NodeName {
        &self.node_name
    }

    /// The machine that it is for.
    pub fn provider_id(&self) -> &ProviderId {
        &self.provider_id
    }

    /// The ledger's record. A client certificate carries it.
    pub fn uid(&self) -> CertificateUid {
        self.uid
    }

    /// The endorsement key of the TPM that vouched for a client certificate's key.
    pub fn endorsement_key(&self) -> Option<KeyDigest> {
        self.endorsement_key
    }

    /// How far that TPM had come.
    pub fn boot(&self) -> Option<TpmBoot> {
        self.boot
    }

    /// How a client certificate came to be granted; `None` of a serving certificate.
    pub fn opening(&self) -> Option<&GrantReason> {
        self.opening.as_ref()
    }
}
