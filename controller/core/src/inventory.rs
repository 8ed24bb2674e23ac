//! The machines of a cluster, from a source that nodes cannot write.

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
/// An error means that the inventory is unavailable, and results in
/// [`Deferral::InventoryUnavailable`](crate::refusal::Deferral::InventoryUnavailable). `None` means that the machine
/// does not exist.
#[async_trait::async_trait]
pub trait Inventory: Debug + Send + Sync {
    /// Finds the machine to which the infrastructure assigned this provider ID.
    async fn by_provider_id(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Machine>, Unavailable>;

    /// Finds the owner of this bootstrap token. `None` if it has no owner.
    async fn by_token(&self, token: &TokenId) -> Result<Option<TokenOwner>, Unavailable>;

    /// Finds all machines, in any state, with this address according to the infrastructure.
    async fn by_address(&self, address: IpAddr) -> Result<Vec<Machine>, Unavailable>;

    /// Finds all machines, in any state, with this DNS name according to the infrastructure, or with this possible Node
    /// name. `name` is in lower case.
    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable>;

    /// Finds the machine with this name ([`Machine::name`]). The machine is found even if it has no provider ID yet.
    /// Returns `None` also if machines in the inventory do not have names that are separate from their Nodes' names.
    async fn by_machine_name(&self, _name: &str) -> Result<Option<Machine>, Unavailable> {
        Ok(None)
    }

    /// Whether the inventory observed the deletion of the machine with this name ([`Machine::name`]), which means that
    /// the removal was intended. `false` if the inventory does not observe deletions, or has already dropped this
    /// deletion.
    fn was_deleted(&self, _name: &str) -> bool {
        false
    }

    /// Whether the machine's Node can have the name `asked` when it joins.
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
        /// The name of the pool.
        name: String,
        /// The object for Events about the pool.
        object: Option<Box<ObjectReference>>,
    },
}

/// A machine of the cluster, as its infrastructure reports it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// The name of the Machine, which can differ from the name of its Node.
    pub name: String,
    /// The object for Events about the machine. `None` if it has no object.
    pub object: Option<ObjectReference>,
    /// The state.
    pub state: MachineState,
    /// The provider ID. `None` until the infrastructure provider sets it.
    pub provider_id: Option<ProviderId>,
    /// Whether the provider ID is still missing after the controller has just read it from the infrastructure.
    pub unnamed: bool,
    /// The required name of the machine's Node. If several names are possible ([`Inventory::naming`]), the first
    /// possible name. `None` until the name is known.
    pub node_name: Option<NodeName>,
    /// The name of the machine's Node or, before the Node exists, its required name ([`node_name`](Self::node_name)).
    /// This field is used only for machines that have joined, and not for a machine that joins.
    pub node: Option<NodeName>,
    /// The addresses that the infrastructure reports.
    pub addresses: Vec<IpAddr>,
    /// The DNS names that the infrastructure reports, in lower case.
    pub dns_names: Vec<String>,
    /// Whether the infrastructure is still being provisioned, and can therefore report more addresses and names later.
    pub provisioning: bool,
    /// The bootstrap token that belongs only to this machine. `None` if the machine shares a token, or has no token.
    pub token_id: Option<TokenId>,
    /// The bootstrap token that an operator assigned to the machine.
    pub assigned_token: Option<TokenId>,
    /// The pool of the machine.
    pub pool: Option<String>,
    /// Whether the machine belongs to the control plane.
    pub control_plane: bool,
}

impl Machine {
    /// Creates a machine that can join, and sets only its name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Whether the machine's Node has this name or, before the Node exists, is required to have this name.
    pub(crate) fn is_of_node(&self, name: &NodeName) -> bool {
        self.node.as_ref().or(self.node_name.as_ref()) == Some(name)
    }

    /// Whether the infrastructure reports this DNS name, or the machine's Node is required to have this name.
    pub fn is_called(&self, name: &str) -> bool {
        let node_name = self.node_name.as_ref().map(NodeName::as_str);
        node_name == Some(name) || self.dns_names.iter().any(|own| own == name)
    }
}

/// The state of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MachineState {
    /// The machine has no bootstrap data yet, so it cannot be the requester.
    Pending,
    /// The machine can join, and renew.
    #[default]
    Ready,
    /// The machine has bootstrap data, but its bootstrap configuration cannot be read, because the API server does not
    /// serve the configuration's version. The machine's own token is therefore unknown. The machine can renew, but not
    /// join.
    Unread,
    /// The machine is being deleted.
    Deleting,
}

/// An inventory with a fixed list of machines.
#[derive(Debug, Clone, Default)]
pub struct StaticInventory {
    machines: Vec<Machine>,
}

/// Two machines in a list have the same value in a unique field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("machines {first} and {second} have the same {field}")]
pub struct AmbiguousMachines {
    /// The name of one machine.
    pub first: String,
    /// The name of the other machine.
    pub second: String,
    /// The name of the field.
    pub field: &'static str,
}

impl StaticInventory {
    /// Creates the inventory of these machines, whose names, provider IDs, node names and tokens must be unique.
    pub fn new(machines: Vec<Machine>) -> Result<Self, AmbiguousMachines> {
        // A single pass, because this function runs after every change, while requests wait.
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

/// The values of a machine that must be unique in a list of machines.
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
