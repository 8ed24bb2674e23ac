//! The machines that a cluster has, from a source that no node can write.

use std::collections::HashMap;
use std::fmt::Debug;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ObjectReference;
use kubelet_attestation::names::{NodeName, ProviderId};

use crate::identifiers::TokenId;
use crate::refusal::Unavailable;

mod naming;

pub use naming::Naming;

/// Finds the machines of one cluster.
///
/// An error is an outage, and ends in
/// [`Deferral::InventoryUnavailable`](crate::refusal::Deferral::InventoryUnavailable); a machine
/// that is not there is `None`.
#[async_trait::async_trait]
pub trait Inventory: Debug + Send + Sync {
    /// The machine to which the infrastructure gave this provider ID.
    async fn by_provider_id(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Machine>, Unavailable>;

    /// The owner of this bootstrap token; `None` if it has none.
    async fn by_token(&self, token: &TokenId) -> Result<Option<TokenOwner>, Unavailable>;

    /// Every machine, in whatever state, that its infrastructure reports this address of.
    async fn by_address(&self, address: IpAddr) -> Result<Vec<Machine>, Unavailable>;

    /// Every machine, in whatever state, that its infrastructure reports this DNS name of, or whose
    /// Node may have it as its name. `name` is in lower case.
    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable>;

    /// The machine of this name ([`Machine::name`]), which may have no provider ID yet; `None` also
    /// where machines have no names of their own.
    async fn by_machine_name(&self, _name: &str) -> Result<Option<Machine>, Unavailable> {
        Ok(None)
    }

    /// Whether the machine's Node may have the name `asked` when it joins.
    async fn naming(&self, machine: &Machine, asked: &NodeName) -> Result<Naming, Unavailable> {
        Ok(Naming::only(machine.node_name.as_ref(), asked))
    }
}

/// The owner of a bootstrap token.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenOwner {
    /// One machine.
    Machine(Box<Machine>),
    /// All machines of a pool ([`Machine::pool`]).
    Pool {
        /// The pool's name.
        name: String,
        /// The object that people look at for it.
        object: Option<Box<ObjectReference>>,
    },
}

/// A machine of the cluster, as its infrastructure reports it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// The Machine's own name, which need not be its Node's.
    pub name: String,
    /// The object that people look at for it, and that events are about; `None` where there is
    /// none.
    pub object: Option<ObjectReference>,
    /// Its state.
    pub state: MachineState,
    /// Its provider ID; `None` until its infrastructure has set one.
    pub provider_id: Option<ProviderId>,
    /// Whether its infrastructure was asked for the provider ID just now, and has none yet.
    pub unnamed: bool,
    /// The name that its Node must have or, where it may have several ([`Inventory::naming`]), the
    /// first of them; `None` until it is known.
    pub node_name: Option<NodeName>,
    /// The name of the Node that it has, or [`node_name`](Self::node_name): of use for a machine that
    /// has joined, and not for a join.
    pub node: Option<NodeName>,
    /// The addresses that its infrastructure reports.
    pub addresses: Vec<IpAddr>,
    /// The DNS names that its infrastructure reports, in lower case.
    pub dns_names: Vec<String>,
    /// Whether its infrastructure is still provisioned, so that it may report more addresses and names.
    pub provisioning: bool,
    /// Its own bootstrap token; `None` if it shares one, or has none.
    pub token_id: Option<TokenId>,
    /// The bootstrap token that an operator assigned to it.
    pub assigned_token: Option<TokenId>,
    /// The pool that it is a member of.
    pub pool: Option<String>,
    /// Whether it is of the cluster's control plane.
    pub control_plane: bool,
}

impl Machine {
    /// A machine that may join, of which nothing is known but its name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Whether its Node has this name: the Node that it has or, before there is one, must have.
    pub(crate) fn is_of_node(&self, name: &NodeName) -> bool {
        self.node.as_ref().or(self.node_name.as_ref()) == Some(name)
    }

    /// Whether this is a DNS name that its infrastructure reports, or the one its Node must have.
    pub fn is_called(&self, name: &str) -> bool {
        let node_name = self.node_name.as_ref().map(NodeName::as_str);
        node_name == Some(name) || self.dns_names.iter().any(|own| own == name)
    }
}

/// The state of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MachineState {
    /// Its bootstrap data has not been made, so it cannot be the one asking.
    Pending,
    /// It may join, and stay.
    #[default]
    Ready,
    /// It is being deleted.
    Deleting,
}

/// A list of machines that does not change.
#[derive(Debug, Clone, Default)]
pub struct StaticInventory {
    machines: Vec<Machine>,
}

/// Two machines of a list claim the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("machines {first} and {second} have the same {field}")]
pub struct AmbiguousMachines {
    /// One machine's name.
    pub first: String,
    /// The other's.
    pub second: String,
    /// The field with the same value in both.
    pub field: &'static str,
}

impl StaticInventory {
    /// The inventory of these machines, no two of which share a name, provider ID, node name or
    /// token.
    pub fn new(machines: Vec<Machine>) -> Result<Self, AmbiguousMachines> {
        // Once through the list: it is read anew with every change, while requests wait for it.
        let mut seen = HashMap::new();
        for second in &machines {
            for (field, value) in named_by(second) {
                if let Some(first) = seen.insert((field, value), second) {
                    return Err(AmbiguousMachines {
                        first: first.name.clone(),
                        second: second.name.clone(),
                        field,
                    });
                }
            }
        }
        Ok(Self { machines })
    }

    fn all(&self, wanted: impl Fn(&Machine) -> bool) -> Vec<Machine> {
        let wanted = self.machines.iter().filter(|machine| wanted(machine));
        wanted.cloned().collect()
    }

    fn find(&self, wanted: impl Fn(&Machine) -> bool) -> Option<Machine> {
        self.machines
            .iter()
            .find(|machine| wanted(machine))
            .cloned()
    }
}

/// The names that no other machine of a list may have.
fn named_by(machine: &Machine) -> impl Iterator<Item = (&'static str, &str)> {
    [
        ("name", Some(machine.name.as_str())),
        (
            "provider ID",
            machine.provider_id.as_ref().map(ProviderId::as_str),
        ),
        (
            "node name",
            machine.node_name.as_ref().map(NodeName::as_str),
        ),
        ("token", machine.token_id.as_ref().map(TokenId::as_str)),
        (
            "token",
            machine.assigned_token.as_ref().map(TokenId::as_str),
        ),
    ]
    .into_iter()
    .filter_map(|(field, value)| Some((field, value?)))
}

#[async_trait::async_trait]
impl Inventory for StaticInventory {
    async fn by_provider_id(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Machine>, Unavailable> {
        let found = self.find(|machine| machine.provider_id.as_ref() == Some(provider_id));
        Ok(found)
    }

    async fn by_token(&self, token: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        let found = self.find(|machine| {
            let tokens = [&machine.token_id, &machine.assigned_token];
            tokens.into_iter().flatten().any(|own| own == token)
        });
        Ok(found.map(|machine| TokenOwner::Machine(Box::new(machine))))
    }

    async fn by_address(&self, address: IpAddr) -> Result<Vec<Machine>, Unavailable> {
        let found = self.all(|machine| machine.addresses.contains(&address));
        Ok(found)
    }

    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable> {
        Ok(self.all(|machine| machine.is_called(name)))
    }

    async fn by_machine_name(&self, name: &str) -> Result<Option<Machine>, Unavailable> {
        Ok(self.find(|machine| machine.name == name))
    }
}

#[cfg(test)]
mod tests;
