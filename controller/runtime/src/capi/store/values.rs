//! The values by which a cluster's objects are indexed.

use std::borrow::Cow;
use std::net::IpAddr;

use kubelet_attestation::names::ProviderId;
use node_attestation_core::identifiers::TokenId;

/// The ground on which a machine's Node can have a name: the place where the name was found. The strongest ground is
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::capi) enum Ground {
    /// The name is in the `KubeadmConfig`.
    Written,
    /// The name is the name of the `InfraMachine`, or is in the infrastructure's list of pool members.
    InfraMachine,
    /// The name is the name of the Machine.
    Machine,
    /// Cluster API matched the Node with this name to the machine, by the provider ID that the Node reports.
    Node,
    /// The infrastructure reports the name for the machine's host. With some infrastructure providers, the guest
    /// supplies the name.
    Reported,
}

impl Ground {
    /// All grounds, strongest first.
    pub(in crate::capi) const ALL: [Self; 5] = [
        Self::Written,
        Self::InfraMachine,
        Self::Machine,
        Self::Node,
        Self::Reported,
    ];
}

/// A value by which an object is indexed.
#[derive(Hash)]
pub(super) enum Value<'a> {
    ProviderId(&'a ProviderId),
    Address(IpAddr),
    /// The name of the `KubeadmConfig`.
    Config(&'a str),
    /// A Machine with bootstrap data and this `KubeadmConfig`.
    Bootstrapped {
        config: &'a str,
        /// Whether Cluster API has found the Machine's Node.
        has_node: bool,
    },
    /// A possible name of the Node, with the ground for it.
    NodeName(Ground, &'a str),
    /// The pool to which a Machine belongs, as written in the Machine's label.
    Pool(&'a str),
    /// A pool with a long name, as written in the label of its Machines.
    Label(Cow<'a, str>),
    /// The name of a pool member.
    Member(&'a str),
    Token(&'a TokenId),
    /// A pool with unknown members, or a Machine with unknown addresses and names.
    Cut,
}
