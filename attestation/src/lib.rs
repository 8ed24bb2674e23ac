//! The words that both halves of kubelet authentication share: names, the request's envelope,
//! evidence, key binding, kubeconfigs, the encoding of signed documents.
//!
//! A node builds these and a verifier takes them apart, so each is defined once, here.
//!
//! # Guarantees
//!
//! - Pure: no input or output, no clock, no randomness, no async.
//! - Parsing is strict: for every accepted request envelope and certification request there is
//!   exactly one encoding, so no two parsers can read the same bytes differently.
//! - Nothing is verified. What a requester wrote stays a claim until the controller's checks have
//!   passed.

pub mod binding;
pub mod csr;
pub mod errors;
pub mod evidence;
mod framing;
pub mod kubeconfig;
pub mod members;
pub mod names;
pub mod secret;
mod text;
pub mod version;
