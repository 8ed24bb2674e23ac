//! The certificate.

use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::ledger::CertificateUid;

/// A certificate for a machine that passed every check; not yet approved nor published.
#[derive(Debug)]
pub struct IssuedCertificate {
    pem: String,
    node_name: NodeName,
    provider_id: ProviderId,
    uid: CertificateUid,
    not_after: SystemTime,
}

impl IssuedCertificate {
    /// The certificate as PEM, for `status.certificate`.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The node that it names.
    pub fn node_name(&self) -> &NodeName {
        &self.node_name
    }

    /// The machine that it names.
    pub fn provider_id(&self) -> &ProviderId {
        &self.provider_id
    }

    /// The ledger's record, as the certificate carries it.
    pub fn uid(&self) -> CertificateUid {
        self.uid
    }

    /// When it ends.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }
}
