//! The machines of one Cluster.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use data_encoding::BASE64URL_NOPAD;
use futures::future::{BoxFuture, FutureExt as _, ready};
use k8s_openapi::api::core::v1::ObjectReference;
use kubelet_attestation::names::{NodeName, ProviderId};

use super::known::Objects;
use super::objects::{
    self, BootstrapConfig, InfraMachine, InfraMachinePool, MachinePool, ObjectKey, Reference,
};
use super::store::{Holders, Members, NO_MEMBERS, Store};
use crate::inventory::{Inventory, Machine, MachineState, TokenId, TokenOwner};
use crate::refusal::Unavailable;

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
enum NotNow {
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

    /// The bootstrap tokens of the machines and pools that are there to stay; `None` while nothing
    /// can be said of them.
    pub fn tokens(&self) -> Option<BTreeSet<TokenId>> {
        let of = |view: View<'_>| {
            let machines = view.members.machines.values();
            let machines = machines.filter(|machine| !machine.deleting);
            let pools = view.members.pools.values().filter(|pool| !pool.deleting);
            let configs = machines
                .filter_map(|machine| machine.config.as_ref())
                .chain(pools.filter_map(|pool| pool.config.as_ref()));
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
            let names = control_plane.filter_map(|(name, machine)| view.node_name(name, machine));
            Ok(names.collect())
        };
        self.look(of).ok()
    }

    /// What `look` finds, if anything may be said.
    fn look<T>(&self, look: impl FnOnce(View<'_>) -> Result<T, NotNow>) -> Result<T, NotNow> {
        let found = self.objects.store(|store| {
            let cluster = &self.cluster;
            let Some(facts) = store.cluster(cluster) else {
                return Err(NotNow::NoCluster(cluster.clone()));
            };
            if facts.paused {
                return Err(NotNow::Paused(cluster.clone()));
            }
            let members = store.members(cluster);
            let view = View {
                store,
                cluster,
                members: members.unwrap_or(&NO_MEMBERS),
            };
            look(view)
        });
        found.unwrap_or(Err(NotNow::NotListed))
    }

    /// The machine with this ID; of a pool that has Machines, one that is not ready before its own
    /// is there. It is not gone: a pool gets Machines when its provider learns to make them.
    async fn machine(&self, id: &ProviderId) -> Result<Option<Machine>, NotNow> {
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
    async fn makes_machines(&self, reference: &Reference) -> Result<bool, NotNow> {
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
    async fn owner(&self, token: &TokenId) -> Result<Option<TokenOwner>, NotNow> {
        let Some((mut owner, infrastructure)) = self.look(|view| Ok(view.owner(token)))? else {
            return Ok(None);
        };
        if let TokenOwner::Machine(machine) = &mut owner
            && machine.provider_id.is_none()
            && let Some(reference) = infrastructure
        {
            let found: Option<InfraMachine> = self.fetch(&reference).await?;
            let id = found.and_then(|machine| machine.provider_id);
            if let Some(id) = &id {
                self.look(|view| view.is_free(id, machine))?;
            }
            machine.provider_id = id;
        }
        Ok(Some(owner))
    }

    async fn fetch<K: objects::Kept>(&self, reference: &Reference) -> Result<Option<K>, NotNow> {
        let namespace = &self.cluster.namespace;
        let found = self.objects.fetch(namespace, reference).await;
        found.map_err(|source| NotNow::Read {
            kind: reference.kind.clone(),
            name: reference.name.clone(),
            source: Box::new(source),
        })
    }
}

impl Inventory for CapiInventory {
    fn by_provider_id<'a>(
        &'a self,
        provider_id: &'a ProviderId,
    ) -> BoxFuture<'a, Result<Option<Machine>, Unavailable>> {
        let machine = self.machine(provider_id);
        async move { machine.await.map_err(Unavailable::new) }.boxed()
    }

    fn by_token<'a>(
        &'a self,
        token: &'a TokenId,
    ) -> BoxFuture<'a, Result<Option<TokenOwner>, Unavailable>> {
        let owner = self.owner(token);
        async move { owner.await.map_err(Unavailable::new) }.boxed()
    }

    fn by_address(&self, address: IpAddr) -> BoxFuture<'_, Result<Vec<Machine>, Unavailable>> {
        let found = self.look(|view| Ok(view.by_address(address)));
        ready(found.map_err(Unavailable::new)).boxed()
    }

    fn by_name<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<Machine>, Unavailable>> {
        let found = self.look(|view| Ok(view.by_name(name)));
        ready(found.map_err(Unavailable::new)).boxed()
    }

    fn awaits_provider_id<'a>(
        &'a self,
        machine: &'a str,
    ) -> BoxFuture<'a, Result<bool, Unavailable>> {
        let awaits = self.look(|view| {
            let found = view.members.machines.get(machine);
            Ok(found.is_some_and(|machine| machine.provider_id.is_none()))
        });
        ready(awaits.map_err(Unavailable::new)).boxed()
    }
}

/// One cluster at one moment.
#[derive(Clone, Copy)]
struct View<'a> {
    store: &'a Store,
    cluster: &'a ObjectKey,
    members: &'a Members,
}

/// Whom a provider ID leads to.
enum Found {
    /// A Machine.
    Machine(Machine),
    /// A member of a pool that no Machine stands for, and what may have one made.
    Listed {
        machine: Machine,
        infrastructure: Option<Reference>,
    },
}

impl View<'_> {
    fn by_provider_id(self, id: &ProviderId) -> Result<Option<Found>, NotNow> {
        let Some(holders) = self.members.provider_id_holders(id) else {
            return Ok(None);
        };
        let mut machines = holders.machines.iter();
        let (first, second) = (machines.next(), machines.next());
        if let (Some(first), Some(second)) = (first, second) {
            return Err(ambiguous("Machine", first, "Machine", second));
        }
        let Some(name) = first else {
            return self.listed(id, holders);
        };
        let Some(machine) = self.members.machines.get(name) else {
            return Ok(None);
        };
        let pool = self.pool_name(machine);
        if let Some(other) = holders.pools.iter().find(|one| Some(*one) != pool.as_ref()) {
            return Err(ambiguous("Machine", name, "MachinePool", other));
        }
        Ok(Some(Found::Machine(self.machine(name, machine))))
    }

    /// A member of a pool that no Machine stands for.
    fn listed(self, id: &ProviderId, holders: &Holders) -> Result<Option<Found>, NotNow> {
        let mut pools = holders.pools.iter();
        let (first, second) = (pools.next(), pools.next());
        if let (Some(first), Some(second)) = (first, second) {
            return Err(ambiguous("MachinePool", first, "MachinePool", second));
        }
        let pool = first.and_then(|name| Some((name, self.members.pools.get(name)?)));
        Ok(pool.map(|(name, pool)| {
            let mut machine = self.listed_member(name, pool, id);
            if self.has_machines(name) {
                machine.state = waiting(machine.state);
                return Found::Machine(machine);
            }
            Found::Listed {
                machine,
                infrastructure: pool.infrastructure.clone(),
            }
        }))
    }

    /// Whether `machine` can be the one with this ID.
    fn is_free(self, id: &ProviderId, machine: &Machine) -> Result<(), NotNow> {
        let holders = self.members.provider_id_holders(id);
        let mut machines = holders.into_iter().flat_map(|holders| &holders.machines);
        match machines.find(|other| **other != machine.name) {
            Some(other) => Err(ambiguous("Machine", &machine.name, "Machine", other)),
            None => Ok(()),
        }
    }

    /// Whom the token was made for, if it was for one; of a machine, its `InfraMachine` too.
    fn owner(self, token: &TokenId) -> Option<(TokenOwner, Option<Reference>)> {
        let holders = self.store.token_holders(self.cluster, token);
        let mut machines = holders.machines.iter();
        let mut pools = holders.pools.iter();
        match (machines.next(), machines.next(), pools.next(), pools.next()) {
            (Some(name), None, None, None) => {
                let machine = self.members.machines.get(name)?;
                let owner = TokenOwner::Machine(Box::new(self.machine(name, machine)));
                Some((owner, machine.infrastructure.clone()))
            }
            (None, None, Some(name), None) => Some((TokenOwner::Pool { name: name.clone() }, None)),
            // Made for several, it tells nothing of any.
            _ => None,
        }
    }

    fn by_address(self, address: IpAddr) -> Vec<Machine> {
        self.machines_with(|_, machine| machine.addresses.contains(&address))
    }

    fn by_name(self, wanted: &str) -> Vec<Machine> {
        let is_wanted = |name: &NodeName| name.as_str() == wanted;
        let mut found = self.machines_with(|name, machine| {
            let reported = machine.dns_names.iter().any(|own| own == wanted);
            reported
                || self
                    .node_name(name, machine)
                    .as_ref()
                    .is_some_and(is_wanted)
        });
        for (name, pool) in &self.members.pools {
            if self.has_machines(name) {
                continue;
            }
            let ids = pool.provider_ids.iter();
            let named = ids.filter(|id| last_segment(id).as_ref().is_some_and(is_wanted));
            found.extend(named.map(|id| self.listed_member(name, pool, id)));
        }
        found
    }

    fn machines_with(self, has: impl Fn(&str, &objects::Machine) -> bool) -> Vec<Machine> {
        let machines = self.members.machines.iter();
        machines
            .filter(|(name, machine)| has(name, machine))
            .map(|(name, machine)| self.machine(name, machine))
            .collect()
    }

    fn machine(self, name: &str, machine: &objects::Machine) -> Machine {
        let config = self.config(machine);
        let pool = self.pool_name(machine);
        let pool_has_data = pool
            .as_ref()
            .and_then(|name| self.members.pools.get(name))
            .is_some_and(|pool| pool.has_bootstrap_data);
        let has_data = machine.has_bootstrap_data || pool_has_data;
        Machine {
            object: Some(self.reference("Machine", name, &machine.uid)),
            state: state(machine.deleting, has_data),
            provider_id: machine.provider_id.clone(),
            node_name: self.node_name(name, machine),
            addresses: machine.addresses.clone(),
            dns_names: machine.dns_names.clone(),
            token_id: config.and_then(|config| config.token.clone()),
            control_plane: machine.control_plane
                || config.is_some_and(|config| config.control_plane),
            pool,
            ..Machine::new(name)
        }
    }

    /// The name that is written out in the `KubeadmConfig`, else the `InfraMachine`'s, else its
    /// own; none while the `KubeadmConfig` is not known.
    fn node_name(self, name: &str, machine: &objects::Machine) -> Option<NodeName> {
        if let Some(reference) = &machine.config
            && BootstrapConfig::is_one(reference)
            && let Some(name) = self.config(machine)?.node_name.clone()
        {
            return Some(name);
        }
        let infrastructure = machine.infrastructure.as_ref();
        let name = infrastructure.map_or(name, |infrastructure| &infrastructure.name);
        NodeName::parse(name).ok()
    }

    fn config(&self, machine: &objects::Machine) -> Option<&BootstrapConfig> {
        let reference = machine.config.as_ref()?;
        BootstrapConfig::is_one(reference)
            .then(|| self.store.config(&self.cluster.namespace, reference))?
    }

    /// The pool, where the label has a digest of its name.
    fn pool_name(self, machine: &objects::Machine) -> Option<String> {
        let label = machine.pool.as_ref()?;
        let pools = &self.members.pools;
        let digested = || pools.keys().find(|name| label_value(name) == *label);
        if pools.contains_key(label) {
            Some(label.clone())
        } else {
            Some(digested().unwrap_or(label).clone())
        }
    }

    /// Whether Machines stand for the members of this pool.
    fn has_machines(self, pool: &str) -> bool {
        self.members.has_machines_of(pool) || self.members.has_machines_of(&label_value(pool))
    }

    fn listed_member(self, name: &str, pool: &MachinePool, id: &ProviderId) -> Machine {
        Machine {
            object: Some(self.reference("MachinePool", name, &pool.uid)),
            state: state(pool.deleting, pool.has_bootstrap_data),
            provider_id: Some(id.clone()),
            node_name: last_segment(id),
            pool: Some(name.to_owned()),
            ..Machine::new(id.as_str())
        }
    }

    fn reference(self, kind: &str, name: &str, uid: &str) -> ObjectReference {
        ObjectReference {
            // Of the contract that is served longest; whoever reads it asks for the kind anyway.
            api_version: Some(format!("{}/v1beta2", objects::CORE_GROUP)),
            kind: Some(kind.to_owned()),
            namespace: Some(self.cluster.namespace.clone()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }
}

/// The state of what is not ready before something else is there.
fn waiting(state: MachineState) -> MachineState {
    match state {
        MachineState::Ready | MachineState::Pending => MachineState::Pending,
        MachineState::Deleting => MachineState::Deleting,
    }
}

fn state(deleting: bool, has_bootstrap_data: bool) -> MachineState {
    if deleting {
        MachineState::Deleting
    } else if has_bootstrap_data {
        MachineState::Ready
    } else {
        MachineState::Pending
    }
}

/// What an infrastructure that has no name for a machine calls it: the last part of its ID.
fn last_segment(id: &ProviderId) -> Option<NodeName> {
    let (_, segment) = id.as_str().rsplit_once('/')?;
    NodeName::parse(segment).ok()
}

fn ambiguous(first_kind: &str, first: &str, second_kind: &str, second: &str) -> NotNow {
    NotNow::Ambiguous {
        first: format!("{first_kind} {first}"),
        second: format!("{second_kind} {second}"),
    }
}

/// The longest value of a label.
const MAX_LABEL_LEN: usize = 63;

/// A name as the value of a label: where it is too long, the FNV-1a of it (Cluster API,
/// `util/labels/format.MustFormatValue`).
fn label_value(name: &str) -> String {
    if name.len() <= MAX_LABEL_LEN {
        return name.to_owned();
    }
    let digest = name.bytes().fold(0x811c_9dc5_u32, |digest, byte| {
        (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("hash_{}_z", BASE64URL_NOPAD.encode(&digest.to_be_bytes()))
}

#[cfg(test)]
mod tests;
