//! The values by which the objects of a cluster are found.

use std::borrow::Cow;
use std::net::IpAddr;

use kubelet_attestation::names::ProviderId;
use node_attestation_core::identifiers::TokenId;

/// The ground on which a machine's Node may have a name, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::capi) enum Ground {
    /// The `KubeadmConfig` has it.
    Written,
    /// The `InfraMachine` has it, or the infrastructure's list of a pool's members.
    InfraMachine,
    /// The Machine has it.
    Machine,
    /// Cluster API has found the Node of that name to be this machine's: by the provider ID that the Node
    /// gives itself.
    Node,
    /// The infrastructure reports it of the machine's host: by the word of the guest, with some
    /// providers.
    Reported,
}

impl Ground {
    /// All of them, the strongest first.
    pub(in crate::capi) const ALL: [Self; 5] = [
        Self::Written,
        Self::InfraMachine,
        Self::Machine,
        Self::Node,
        Self::Reported,
    ];
}

/// A value by which an object of a cluster is found.
#[derive(Hash)]
pub(super) enum Value<'a> {
    ProviderId(&'a ProviderId),
    Address(IpAddr),
    /// The name of its `KubeadmConfig`.
    Config(&'a str),
    /// A Machine with bootstrap data and this `KubeadmConfig`.
    Bootstrapped {
        config: &'a str,
        /// Whether Cluster API has found its Node.
        has_node: bool,
    },
    /// A name that its Node may have on this ground.
    NodeName(Ground, &'a str),
    /// The pool of a Machine, as the Machine calls it.
    Pool(&'a str),
    /// A pool with a long name, as the label of its Machines calls it.
    Label(Cow<'a, str>),
    /// The name of a member of a pool.
    Member(&'a str),
    Token(&'a TokenId),
}
