//! Verifies which TPM, and so which machine, asks for a kubelet certificate.
//!
//! The evidence comes in two requests with one key ([`kubelet_attestation::evidence::tpm`]). What it
//! proves: the TPM that is known to be the machine's vouched for the request's key, after this
//! controller asked it to, in the boot state that it quoted. What it does not prove: that the key
//! is in the TPM. It is a file that root can copy.
//!
//! # Guarantees
//!
//! - Which endorsement key is a machine's comes from its provider ID, an operator's lists or the
//!   [`platform`], and never from a request.
//! - There is no TPM library here, and nothing is asked but the lists and the platform.
//! - Every structure is read to its last byte, and what is read was verified first.
//!
//! # Modules
//!
//! Each imports only those above it.
//!
//! - `structure`: the encoding of TPM structures
//! - `kdf`: the key derivation functions of a TPM
//! - `denial`: the reasons to deny a TPM
//! - `public`: public keys of TPMs
//! - `credential`: `TPM2_MakeCredential` in software
//! - `invalid_settings`: errors of the settings
//! - `attest`: quotes
//! - `chain`: certificates of endorsement keys
//! - `registers`: PCR values with a meaning of their own
//! - `pcr_policy`: the accepted PCR values
//! - `challenge`: the challenge of a request
//! - `hosts`: endorsement keys by the name of the host
//! - `key_lists`: lists of hosts and their endorsement keys in config maps
//! - `trusted_ek`: the endorsement key of a machine
//! - `policy`: the policy of a cluster on TPMs
//! - `observations`: what evidence showed beside the answers
//! - `verifier`: the order of the checks
//!
//! [`platform`]: node_attestation_core::verifier::platform

mod attest;
mod chain;
pub mod challenge;
mod credential;
pub mod denial;
#[cfg(test)]
mod fixture;
mod hosts;
pub mod invalid_settings;
mod kdf;
pub mod key_lists;
pub mod observations;
mod pcr_policy;
pub mod policy;
mod public;
mod registers;
mod structure;
#[cfg(feature = "testing")]
pub mod testing;
mod trusted_ek;
pub mod verifier;
