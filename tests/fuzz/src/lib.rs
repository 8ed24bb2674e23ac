//! Fuzz targets for every parser of untrusted bytes.
//!
//! A target parses its input as the programs do, and checks the parser's guarantees about accepted inputs: one
//! encoding, limits, and no secret in an error. `cargo fuzz` runs the programs in `fuzz_targets`; the test `smoke` runs
//! every target with its seeds and several thousand mutations.
//!
//! | module | parsers of |
//! | --- | --- |
//! | [`attestation`] | requests, evidence, challenges, names |
//! | [`node`] | client-go's input, kubeconfigs, the kubelet's arguments |
//! | [`store`] | the files of a node's state directory |
//! | [`api_server`] | an API server's responses to a node |
//! | [`aws`] | instance identity documents, and responses from STS and EC2 |
//! | [`tpm`] | TPM structures, and endorsement key certificates |
//! | [`controller`] | decisions on requests, serving names, identifiers |
//! | [`tenant`] | a tenant's kubeconfig, CA, bootstrap tokens and API server |

pub mod api_server;
pub mod attestation;
pub mod aws;
pub mod controller;
pub mod node;
pub mod store;
mod targets;
pub mod tenant;
pub mod tpm;

pub use targets::TARGETS;

/// A parser with its guarantees.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the target's program in `fuzz_targets`.
    pub name: &'static str,
    /// Parses the input. Panics if a guarantee is violated.
    pub check: fn(&[u8]) -> Outcome,
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The parser's result for an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The input is valid.
    Accepted,
    /// The input is invalid.
    Refused,
}

impl Outcome {
    fn of(accepted: bool) -> Self {
        if accepted {
            Self::Accepted
        } else {
            Self::Refused
        }
    }
}

/// The value of each credential in the seeds.
const SECRET: &str = "q7x-credential-x7q";

/// Asserts that a text does not contain a credential.
fn assert_keeps_secret(text: &str) {
    assert!(!text.contains(SECRET), "{text}");
}
