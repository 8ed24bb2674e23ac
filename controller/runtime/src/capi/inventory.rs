//! The machines of one Cluster.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{FutureExt as _, ready};
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::{Inventory, Machine, Naming, TokenOwner};
use node_attestation_core::refusal::{Answer, Unavailable};

use super::cache::Objects;
use super::objects::{self, BootstrapConfig, InfraMachine, InfraMachinePool, ObjectKey, Reference};

mod names;
mod view;

use view::{Found, View, waiting};

/// The machines of one Cluster, as Cluster API has them.
///
/// # Guarantees
///
/// - Every answer is of one moment; nothing is answered for a Cluster that is paused.
/// - Two machines with one provider ID are an error, and never an answer.
#[derive(Debug, Clone)]
pub struct CapiInventory {
    objects: Objects,
    cluster: ObjectKey,
    /// Whether pools have Machines made, and when that was found out.
    asked: Arc<Mutex<HashMap<Reference, (Instant, bool)>>>,
}

/// How long it holds what an `InfraMachinePool` says of its members.
const ASKED_AGAIN: Duration = Duration::from_secs(30);

/// Nothing can be said of a cluster's machines now.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum InventoryError {
    #[error("the management cluster's objects have not been listed yet")]
    NotListed,
    #[error("the management cluster has no Cluster {0}")]
    NoCluster(ObjectKey),
    #[error("Cluster {0} is paused")]
    Paused(ObjectKey),
    #[error("{first} and {second} have the same provider ID")]
    Ambiguous { first: String, second: String },
    #[error("cannot read {kind} {name}")]
    Read {
        kind: String,
        name: String,
        source: Box<kube::Error>,
    },
}

impl CapiInventory {
    /// The machines of this Cluster.
    pub fn new(objects: Objects, cluster: ObjectKey) -> Self {
        Self {
            objects,
            cluster,
            asked: Arc::default(),
        }
    }

    /// The bootstrap tokens of the machines that are there to stay; `None` while nothing can be said
    /// of them. Not those of pools: the bootstrap provider replaces a pool's token once it has less
    /// than half of its time left, and would not where it is extended.
    pub fn tokens(&self) -> Option<BTreeSet<TokenId>> {
        let of = |view: View<'_>| {
            let machines = view.members.machines.values();
            let machines = machines.filter(|machine| !machine.deleting);
            let configs = machines.filter_map(|machine| machine.config.as_ref());
            let configs = configs.filter(|config| BootstrapConfig::is_one(config));
            let tokens = configs.filter_map(|config| {
                let config = view.store.config(&view.cluster.namespace, config)?;
                config.token.clone()
            });
            Ok(tokens.collect())
        };
        self.look(of).ok()
    }

    /// The names of the Nodes of the control plane; `None` while nothing can be said of them.
    pub fn control_plane_nodes(&self) -> Option<BTreeSet<NodeName>> {
        let of = |view: View<'_>| {
            let machines = view.members.machines.iter();
            let control_plane = machines.filter(|(_, machine)| machine.control_plane);
            let names = control_plane.filter_map(|(name, machine)| view.node(name, machine));
            Ok(names.collect())
        };
        self.look(of).ok()
    }

    /// The Nodes of which Machines tell, where `is_without` is true of every name that the Node may have;
    /// `None` while nothing can be said of them. A Machine tells of the Node that Cluster API has found for
    /// it, and one of the control plane also of the one that it will have.
    pub fn nodes_without(&self, is_without: impl Fn(&str) -> bool) -> Option<BTreeSet<String>> {
        let of = |view: View<'_>| {
            let machines = view.members.machines.iter();
            let nodes = machines.filter_map(|(name, machine)| {
                let expected = machine.control_plane.then(|| view.node(name, machine));
                let names = [machine.node.clone(), expected.flatten()];
                let mut names = names
                    .into_iter()
                    .flatten()
                    .map(|name| name.as_str().to_owned());
                let first = names.next()?;
                (is_without(&first) && names.all(|name| is_without(&name))).then_some(first)
            });
            Ok(nodes.collect())
        };
        self.look(of).ok()
    }

    /// What `look` finds, if anything may be said.
    fn look<T>(
        &self,
        look: impl FnOnce(View<'_>) -> Result<T, InventoryError>,
    ) -> Result<T, InventoryError> {
        let found = self.objects.store(|store| {
            let cluster = &self.cluster;
            let Some(facts) = store.cluster(cluster) else {
                return Err(InventoryError::NoCluster(cluster.clone()));
            };
            if facts.paused {
                return Err(InventoryError::Paused(cluster.clone()));
            }
            look(View::new(store, cluster))
        });
        found.unwrap_or(Err(InventoryError::NotListed))
    }

    /// The machine with this ID; of a pool that has Machines, one that is not ready before its own
    /// is there. It is not gone: a pool gets Machines when its provider learns to make them.
    async fn machine(&self, id: &ProviderId) -> Result<Option<Machine>, InventoryError> {
        let (mut machine, infrastructure) = match self.look(|view| view.by_provider_id(id))? {
            None => return Ok(None),
            Some(Found::Machine(machine)) => return Ok(Some(machine)),
            Some(Found::Listed {
                machine,
                infrastructure,
            }) => (machine, infrastructure),
        };
        if let Some(reference) = infrastructure
            && self.makes_machines(&reference).await?
        {
            machine.state = waiting(machine.state);
        }
        Ok(Some(machine))
    }

    /// Whether this `InfraMachinePool` has a Machine made for every member. A sweep asks once for
    /// each of them.
    async fn makes_machines(&self, reference: &Reference) -> Result<bool, InventoryError> {
        let asked = || self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let known = asked().get(reference).copied();
        if let Some((at, makes)) = known
            && at.elapsed() < ASKED_AGAIN
        {
            return Ok(makes);
        }
        let pool: Option<InfraMachinePool> = self.fetch(reference).await?;
        let makes = pool.is_some_and(|pool| pool.has_machines);
        let mut asked = asked();
        asked.retain(|_, (at, _)| at.elapsed() < ASKED_AGAIN);
        asked.insert(reference.clone(), (Instant::now(), makes));
        Ok(makes)
    }

    /// The token's owner; a machine that has no provider ID yet, with the one that its
    /// `InfraMachine` has already.
    async fn owner(&self, token: &TokenId) -> Result<Option<TokenOwner>, InventoryError> {
        let Some((mut owner, infrastructure)) = self.look(|view| Ok(view.owner(token)))? else {
            return Ok(None);
        };
        if let TokenOwner::Machine(machine) = &mut owner
            && machine.provider_id.is_none()
            && let Some(reference) = infrastructure
        {
            let found: Option<InfraMachine> = self.fetch(&reference).await?;
            if let Some(InfraMachine {
                provider_id,
                unnamed,
            }) = found
            {
                if let Some(id) = &provider_id {
                    self.look(|view| view.is_free(id, machine))?;
                }
                machine.provider_id = provider_id;
                machine.unnamed = unnamed;
            }
        }
        Ok(Some(owner))
    }

    async fn fetch<K: objects::Kept>(
        &self,
        reference: &Reference,
    ) -> Result<Option<K>, InventoryError> {
        let namespace = &self.cluster.namespace;
        let found = self.objects.fetch(namespace, reference).await;
        found.map_err(|source| InventoryError::Read {
            kind: reference.kind.clone(),
            name: reference.name.clone(),
            source: Box::new(source),
        })
    }
}

impl Inventory for CapiInventory {
    fn by_provider_id<'a>(&'a self, provider_id: &'a ProviderId) -> Answer<'a, Option<Machine>> {
        let machine = self.machine(provider_id);
        async move { machine.await.map_err(Unavailable::new) }.boxed()
    }

    fn by_token<'a>(&'a self, token: &'a TokenId) -> Answer<'a, Option<TokenOwner>> {
        let owner = self.owner(token);
        async move { owner.await.map_err(Unavailable::new) }.boxed()
    }

    fn by_address(&self, address: IpAddr) -> Answer<'_, Vec<Machine>> {
        let found = self.look(|view| Ok(view.by_address(address)));
        ready(found.map_err(Unavailable::new)).boxed()
    }

    fn by_name<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<Machine>> {
        let found = self.look(|view| Ok(view.by_name(name)));
        ready(found.map_err(Unavailable::new)).boxed()
    }

    fn by_machine_name<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Machine>> {
        let found = self.look(|view| {
            let found = view.members.machines.get(name);
            Ok(found.map(|machine| view.machine(name, machine)))
        });
        ready(found.map_err(Unavailable::new)).boxed()
    }

    fn naming<'a>(&'a self, machine: &'a Machine, asked: &'a NodeName) -> Answer<'a, Naming> {
        let found = self.look(|view| Ok(view.naming(machine, asked)));
        ready(found.map_err(Unavailable::new)).boxed()
    }
}

#[cfg(test)]
mod tests;
