//! The controller's library: it decides about kubelet certificate requests, and answers them.
//!
//! An infrastructure provider can embed it: it brings a [`verifier::Verifier`] and an
//! [`inventory::Inventory`], and calls [`decide::decide`].
//!
//! # Guarantees
//!
//! - A certificate comes only out of [`request`]'s chain of types, each link of which is one check
//!   that was passed.
//! - A denial is a contradiction; an outage never ends in one.
//! - Nothing in a request is copied into a certificate but the public key; the rest is built from
//!   what was verified.

pub mod capi;
pub mod client;
pub mod clock;
pub mod cluster_states;
pub mod config_maps;
pub mod crd;
pub mod decide;
pub mod duties;
pub mod events;
pub mod fleet;
pub mod hardening;
pub mod identifiers;
pub mod identities;
pub mod inventory;
pub mod ledger;
pub mod lifetimes;
pub mod logs;
pub mod machine_list;
mod memory;
pub mod nodes;
pub mod pipeline;
mod policy;
pub mod preflight;
mod queue;
pub mod refusal;
pub mod request;
pub mod serving;
pub mod signer;
pub mod standalone;
pub mod status;
pub mod verifier;
pub mod watch;
pub mod worker;
