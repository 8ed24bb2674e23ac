//! The subject.

use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::subject::{self, InvalidSubject};
use kubelet_attestation::names::NodeName;

use crate::refusal::Denial;

/// The node that the subject names, if it has its only form.
pub(crate) fn node_name(csr: &CertificationRequest) -> Result<NodeName, Denial> {
    subject::node_name(csr.subject()).map_err(|error| match error {
        InvalidSubject::Organization => Denial::SubjectOrganization,
        InvalidSubject::CommonNamePrefix => Denial::SubjectCommonName,
        InvalidSubject::NodeName => Denial::SubjectNodeName,
        InvalidSubject::ExtraAttribute => Denial::SubjectExtraAttribute,
        // No other form is accepted, whatever a later rule adds.
        InvalidSubject::NotCanonical | _ => Denial::SubjectNotCanonical,
    })
}
