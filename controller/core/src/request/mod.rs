//! The chain that a request goes through: parse, don't validate.
//!
//! Each link takes its predecessor by move, makes its check itself, and has no other constructor;
//! the module of a link is its wall. A later link therefore proves that every earlier check has
//! passed, and signing anything but a [`ClaimedCsr`] does not compile. What can be read of a link
//! can be read of those after it (`Deref`), and a step cannot be taken twice. A retry begins again
//! with the object.
//!
//! | from | step | to |
//! | --- | --- | --- |
//! | the object | [`RawRequest::triage`] | [`RawRequest`] |
//! | [`RawRequest`] | [`parse`](RawRequest::parse) | [`ParsedCsr`] |
//! | [`ParsedCsr`] | [`conform_client`](ParsedCsr::conform_client) | [`ConformantClientCsr`] |
//! | [`ConformantClientCsr`] | [`locate`](ConformantClientCsr::locate) | [`LocatedCsr`] |
//! | [`LocatedCsr`] | [`attest`](LocatedCsr::attest) | [`AttestedCsr`] |
//! | [`AttestedCsr`] | [`check_node_name`](AttestedCsr::check_node_name) | [`NamedCsr`] |
//! | [`NamedCsr`] | [`claim`](NamedCsr::claim) | [`ClaimedCsr`] |
//! | [`ClaimedCsr`] | [`sign`](ClaimedCsr::sign) | [`IssuedCertificate`] |
//!
//! For a serving certificate, from [`ParsedCsr`]:
//!
//! | from | step | to |
//! | --- | --- | --- |
//! | [`ParsedCsr`] | [`conform_serving`](ParsedCsr::conform_serving) | [`ConformantServingCsr`] |
//! | [`ConformantServingCsr`] | [`corroborate`](ConformantServingCsr::corroborate) | [`CorroboratedCsr`] |
//! | [`CorroboratedCsr`] | [`sign`](CorroboratedCsr::sign) | [`IssuedCertificate`] |
//! | [`CorroboratedCsr`] | [`approve`](CorroboratedCsr::approve) | [`Approval`] |
//!
//! And for a control-plane machine's certificate of kubeadm:
//!
//! | from | step | to |
//! | --- | --- | --- |
//! | [`ParsedCsr`] | [`renew_control_plane`](ParsedCsr::renew_control_plane) | [`ControlPlaneRenewal`] |
//! | [`ControlPlaneRenewal`] | [`approve`](ControlPlaneRenewal::approve) | [`Approval`] |

mod approval;
mod attested;
mod claimed;
mod conformant;
mod conformant_serving;
mod control_plane;
mod corroborated;
mod issued;
mod located;
mod named;
mod parsed;
mod raw;

pub use crate::policy::requester::Requester;
pub use approval::{Approval, ApprovalReason};
pub use attested::AttestedCsr;
pub use claimed::ClaimedCsr;
pub use conformant::{ClientRequest, ConformantClientCsr};
pub use conformant_serving::{ConformantServingCsr, ServingRequest};
pub use control_plane::ControlPlaneRenewal;
pub use corroborated::CorroboratedCsr;
pub use issued::{Issued, IssuedCertificate};
pub use located::LocatedCsr;
pub use named::NamedCsr;
pub use parsed::ParsedCsr;
pub(crate) use raw::signers;
pub use raw::{Asked, RawRequest, TriageError};
