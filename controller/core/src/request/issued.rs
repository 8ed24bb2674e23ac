//! The certificate.

use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use super::ClaimedCsr;
use crate::ledger::CertificateUid;
use crate::refusal::Refusal;
use crate::signer::Signer;

/// A certificate for a machine that passed every check; neither approved nor published yet.
#[derive(Debug)]
pub struct IssuedCertificate {
    csr: Box<ClaimedCsr>,
    pem: String,
    serial: String,
    not_after: SystemTime,
}

impl ClaimedCsr {
    /// Has the CA sign a certificate that is built from what was verified; of the request it
    /// carries only the key.
    pub fn sign(self, signer: &Signer, now: SystemTime) -> Result<IssuedCertificate, Refusal> {
        let certificate = signer.certificate(&self, now)?;
        Ok(IssuedCertificate {
            csr: Box::new(self),
            pem: certificate.pem,
            serial: certificate.serial,
            not_after: certificate.not_after,
        })
    }
}

impl IssuedCertificate {
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
        self.csr.request().node_name()
    }

    /// The machine that it names.
    pub fn provider_id(&self) -> &ProviderId {
        &self.csr.identity().provider_id
    }

    /// The ledger's record, as the certificate carries it.
    pub fn uid(&self) -> CertificateUid {
        self.csr.uid()
    }
}
