//! Facts about one Machine.

use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::TokenId;

use crate::capi::objects::Attested;

/// A Machine with a provider ID.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownMachine<'a> {
    pub(crate) name: &'a str,
    pub(crate) provider_id: &'a ProviderId,
    /// The Node that Cluster API has found for the Machine.
    pub(crate) node: Option<&'a NodeName>,
    /// Its condition [`NODE_ATTESTED`](crate::capi::NODE_ATTESTED).
    pub(crate) attested: Option<Attested>,
}

/// A Machine with its own bootstrap token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenMachine {
    pub(crate) name: String,
    pub(crate) token: TokenId,
    pub(crate) provider_id: Option<ProviderId>,
    /// Whether Cluster API has found the Machine's Node.
    pub(crate) has_node: bool,
}
