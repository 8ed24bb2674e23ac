//! The chain of types that a request passes through: parse, don't validate.
//!
//! Each link consumes its predecessor, performs its check, and has no other constructor. The module of a link hides its
//! fields. Therefore, the existence of a link shows that the request passed all earlier checks. Code that signs any
//! type other than [`ClaimedCsr`] and [`CorroboratedCsr`] does not compile. Later links provide access to the data of
//! earlier links, and a step cannot be repeated. A retry starts again with the Kubernetes object.
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
//! For the renewal of an exempt Node:
//!
//! | from | step | to |
//! | --- | --- | --- |
//! | [`ParsedCsr`] | [`renew_exempt`](ParsedCsr::renew_exempt) | [`ExemptRenewal`] |
//! | [`ExemptRenewal`] | [`approve`](ExemptRenewal::approve) | [`Approval`] |

mod approval;
mod approval_reason;
mod attested;
mod claimed;
mod conformant;
mod conformant_serving;
mod corroborated;
mod exempt;
mod issued;
mod located;
mod named;
mod parsed;
mod raw;

pub use crate::policy::requester::Requester;
pub use approval::Approval;
pub use approval_reason::ApprovalReason;
pub use attested::AttestedCsr;
pub(crate) use attested::has_provider_id;
pub use claimed::ClaimedCsr;
pub use conformant::{ClientRequest, ConformantClientCsr};
pub use conformant_serving::{ConformantServingCsr, ServingRequest};
pub use corroborated::CorroboratedCsr;
pub use exempt::ExemptRenewal;
pub use issued::{Issued, IssuedCertificate};
pub use located::LocatedCsr;
pub(crate) use located::existing_machine;
pub use named::NamedCsr;
pub(crate) use named::naming;
pub use parsed::ParsedCsr;
pub(crate) use raw::{KubeletServing, triage};
pub use raw::{RawRequest, SignerKind, TriageError, signers};
