//! The data types that the node and the controller share: names, the request's envelope, evidence, key binding,
//! kubeconfigs, and the encoding of signed documents.
//!
//! The node creates these values and a verifier parses them, so each type has a single definition in this crate.
//!
//! # Guarantees
//!
//! - Pure: no I/O, no clock, no randomness, no async.
//! - Strict parsing: every accepted request envelope and certification request has exactly one encoding, so two parsers
//!   cannot read the same bytes differently.
//! - No verification: all values are the requester's claims until the controller has checked them.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `time`: differences between wall-clock times
//! - `backoff`: pauses between the attempts of an operation that fails
//! - `contract`: reasons and durations on which nodes and the controller must agree
//! - `text`: methods of types with validated text, and the sanitization of untrusted text for a terminal
//! - `framing`: length-prefixed fields, so that different lists of fields never have the same hash input
//! - `secret`: secret values that `Debug` does not show, and whose memory is overwritten with zeros
//! - `errors`: the text of an error with its causes
//! - `pages`: the URLs of the documentation, for texts that programs print
//! - `manual`: the parts of help texts and manual pages that the command-line parser does not generate
//! - `members`: JSON objects without duplicate names
//! - `version`: versions of the evidence format
//! - `names`: names of nodes, machines, providers, signers, clusters and requests
//! - `binding`: the key binding: the digest that ties evidence to one request
//! - `evidence`: the evidence of each provider, and the BER and CMS encodings of AWS identity documents
//! - `csr`: the request: its envelope, PKCS #10 request, subject and extension
//! - `kubeconfig`: the kubeconfig parser, with separate policies for machines and tenants

pub mod backoff;
pub mod binding;
pub mod contract;
pub mod csr;
pub mod errors;
pub mod evidence;
mod framing;
pub mod kubeconfig;
pub mod manual;
pub mod members;
pub mod names;
pub mod pages;
pub mod secret;
pub mod text;
pub mod time;
pub mod version;
