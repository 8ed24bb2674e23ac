//! The chain that a request goes through: parse, don't validate.
//!
//! Each link takes its predecessor by move, makes its check itself, and has no other constructor;
//! the module of a link is its wall. A later link therefore proves that every earlier check has
//! passed, and signing anything but a [`ClaimedCsr`] does not compile. A retry begins again with
//! the object.
//!
//! | from | step | to |
//! | --- | --- | --- |
//! | the object | [`RawRequest::triage`] | [`RawRequest`] |
//! | [`RawRequest`] | [`parse`](RawRequest::parse) | [`ParsedCsr`] |
//! | [`ParsedCsr`] | [`conform_client`](ParsedCsr::conform_client) | [`ConformantClientCsr`] |
//! | [`ConformantClientCsr`] | [`locate`](ConformantClientCsr::locate) | [`LocatedCsr`] |
//! | [`LocatedCsr`] | [`attest`](LocatedCsr::attest) | [`AttestedCsr`] |
//! | [`AttestedCsr`] | [`settle`](AttestedCsr::settle) | [`SettledCsr`] |
//! | [`SettledCsr`] | [`claim`](SettledCsr::claim) | [`ClaimedCsr`] |
//! | [`ClaimedCsr`] | [`sign`](ClaimedCsr::sign) | [`IssuedCertificate`] |

mod attested;
mod claimed;
mod conformant;
mod issued;
mod located;
mod parsed;
mod raw;
mod settled;

pub use attested::AttestedCsr;
pub use claimed::ClaimedCsr;
pub use conformant::{ConformantClientCsr, Requester};
pub use issued::IssuedCertificate;
pub use located::LocatedCsr;
pub use parsed::ParsedCsr;
pub use raw::{Dismissal, RawRequest};
pub use settled::SettledCsr;

#[cfg(test)]
pub(crate) mod forge;
