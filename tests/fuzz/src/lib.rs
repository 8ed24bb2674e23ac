//! Fuzz targets of every parser of foreign bytes.
//!
//! A target reads its input as the programs do, and checks what the parser promises of what it accepts:
//! one encoding, limits, no secret in an error. `cargo fuzz` runs the programs in `fuzz_targets`; the
//! test `smoke` runs every target over its seeds and some thousands of changes of them.
//!
//! | module | parsers of |
//! | --- | --- |
//! | [`attestation`] | requests, evidence, challenges, names |
//! | [`node`] | client-go's question, kubeconfigs, the kubelet's arguments |
//! | [`store`] | the files of a node's state directory |
//! | [`api_server`] | an API server's answers to a node |
//! | [`aws`] | instance identity documents, and answers of STS and EC2 |
//! | [`tpm`] | structures of TPMs, and certificates of endorsement keys |
//! | [`controller`] | requests as the controller decides them, serving names, identifiers |
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

/// A parser, and what it promises.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of its program in `fuzz_targets`.
    pub name: &'static str,
    /// Reads the input; panics where a promise is broken.
    pub check: fn(&[u8]) -> Outcome,
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The parser's answer to an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The input is what it should be.
    Accepted,
    /// It is not.
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

/// Stands in seeds where credentials do.
const SECRET: &str = "q7x-credential-x7q";

/// Checks a text that promises to repeat no credential.
fn assert_keeps_secret(text: &str) {
    assert!(!text.contains(SECRET), "{text}");
}
