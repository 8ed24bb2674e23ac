//! The subject of the certification request.

use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::subject::{self, InvalidSubject};
use kubelet_attestation::names::NodeName;

use crate::refusal::Denial;

/// Returns the node name from the subject, which must be in canonical form.
pub(crate) fn node_name(csr: &CertificationRequest) -> Result<NodeName, Denial> {
    subject::node_name(csr.subject()).map_err(|error| match error {
        InvalidSubject::Organization => Denial::SubjectOrganization,
        InvalidSubject::CommonNamePrefix => Denial::SubjectCommonName,
        InvalidSubject::NodeName => Denial::SubjectNodeName,
        InvalidSubject::ExtraAttribute => Denial::SubjectExtraAttribute,
        // A new variant of the error also means that the form is invalid.
        InvalidSubject::NotCanonical | _ => Denial::SubjectNotCanonical,
    })
}
