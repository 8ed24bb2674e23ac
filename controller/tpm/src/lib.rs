//! Verifies which TPM, and therefore which machine, requests a kubelet certificate.
//!
//! The evidence consists of two requests with the same key ([`kubelet_attestation::evidence::tpm`]). The evidence shows
//! that the machine's known TPM attested the key in the request, after a challenge from this controller, while the
//! machine was in the quoted boot state. The evidence does not show that the key is in the TPM: the key is a file,
//! which root can copy.
//!
//! # Guarantees
//!
//! - The trusted endorsement key of a machine comes from its provider ID, an operator's lists or the [`platform`], and
//!   never from a request.
//! - The package requires no TPM software stack (TSS), and calls only the lists and the platform.
//! - Every structure is parsed up to its last byte. Signed data is parsed only after its signature has been verified.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `structure`: strict parsing of the TPM encoding
//! - `kdf`: the key derivation functions of a TPM
//! - `denial`: the reasons to deny a TPM
//! - `public`: public keys in TPMs
//! - `credential`: `TPM2_MakeCredential` in software
//! - `invalid_settings`: errors in the settings
//! - `attest`: quotes: signed statements of a TPM about its PCRs
//! - `chain`: endorsement key certificates and their chains
//! - `registers`: PCR values that have a special meaning
//! - `pcr_policy`: the allowed boot states of machines, as PCR values
//! - `challenge`: the challenge for a request
//! - `hosts`: endorsement keys by host
//! - `key_lists`: lists of hosts and their endorsement keys in `ConfigMap`s
//! - `trusted_ek`: the trusted endorsement key of a machine
//! - `policy`: a cluster's policy for TPMs
//! - `observations`: facts from evidence that do not affect a decision
//! - `verifier`: the verifier of TPM evidence, and the order of its checks
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
