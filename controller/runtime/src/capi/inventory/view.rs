//! The objects of one Cluster at one moment.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use data_encoding::BASE64URL_NOPAD;
use k8s_openapi::api::core::v1::ObjectReference;
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::{Machine, MachineState, TokenOwner};
use node_attestation_core::refusal::Unavailable;

use super::Recent;
use crate::capi::objects::{self, BootstrapConfig, MachinePool, ObjectKey, Reference};
use crate::capi::store::{Members, NO_MEMBERS, Store};

/// One cluster at one moment.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) cluster: &'a ObjectKey,
    pub(super) members: &'a Members,
    needed: &'a Needed<'a>,
}

/// The Machines or pools whose `KubeadmConfig`s may have an answer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// The Machines that may be joining.
    Joining,
    /// All Machines.
    All,
    /// The pools.
    Pools,
}

/// How many of the unread `KubeadmConfig`s are searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// The first, to know whether there is any.
    First,
    All,
}

/// The unread `KubeadmConfig`s that an answer depends on.
pub(super) struct Needed<'a> {
    /// Those that were read just now, which are not needed again.
    pub(super) recent: &'a Recent<()>,
    pub(super) wanted: Unread,
    pub(super) configs: RefCell<BTreeSet<Reference>>,
}

impl Needed<'_> {
    fn is_enough(&self) -> bool {
        self.wanted == Unread::First && !self.configs.borrow().is_empty()
    }

    fn add(&self, config: &Reference) {
        if !self.is_enough() && self.recent.get(config).is_none() {
            self.configs.borrow_mut().insert(config.clone());
        }
    }
}

impl<'a> View<'a> {
    pub(super) fn new(store: &'a Store, cluster: &'a ObjectKey, needed: &'a Needed<'a>) -> Self {
        Self {
            cluster,
            members: store.members.get(cluster).unwrap_or(&NO_MEMBERS),
            needed,
        }
    }

    /// The `KubeadmConfig` of the Machine. Before its bootstrap data were made it may change, and is not read.
    pub(super) fn config(self, machine: &objects::Machine) -> Option<&'a BootstrapConfig> {
        let reference = machine.config.as_ref()?;
        let found = self.members.config(&reference.name);
        if found.is_none() && self.has_bootstrap_data(machine) {
            self.needed.add(reference);
        }
        found
    }

    fn has_bootstrap_data(self, machine: &objects::Machine) -> bool {
        let pool = self.pool_name(machine);
        let pool = pool.and_then(|name| self.members.pools.get(&name));
        machine.has_bootstrap_data || pool.is_some_and(|pool| pool.has_bootstrap_data)
    }

    /// Marks these `KubeadmConfig`s to be read.
    pub(super) fn need(self, need: Need) {
        let unread = |has_node| {
            let mut unread = self.members.unread(has_node);
            unread.any(|machine| {
                self.config(machine);
                self.needed.is_enough()
            });
        };
        match need {
            Need::Joining => unread(false),
            Need::All => {
                unread(false);
                unread(true);
            }
            // Their tokens are replaced from time to time, so they are read again.
            Need::Pools => {
                let pools = self.members.pools.iter();
                let configs = pools.filter_map(|(_, pool)| pool.config.as_ref());
                configs.for_each(|config| self.needed.add(config));
            }
        }
    }

    /// The members of pools that no Machine stands for, and whose Node must have this name.
    pub(super) fn listed_named(self, wanted: &'a str) -> impl Iterator<Item = Machine> {
        let pools = self.members.pools.iter();
        let pools = pools.filter(move |(name, _)| !self.has_machines(name));
        pools.flat_map(move |(name, pool)| {
            let is_named = |id: &&ProviderId| {
                last_segment(id) == Some(wanted) && NodeName::parse(wanted).is_ok()
            };
            let named = pool.provider_ids.iter().filter(is_named);
            let named: Vec<_> = named.map(|id| self.listed_member(name, pool, id)).collect();
            named
        })
    }

    /// The machine with this ID; of a member of a pool without a Machine, the object that may create one too.
    pub(super) fn by_provider_id(
        self,
        id: &ProviderId,
    ) -> Result<Option<(Machine, Option<Reference>)>, Unavailable> {
        let holders = self.members.with_provider_id(id);
        let own_pool = holders
            .machines
            .first()
            .and_then(|(_, machine)| self.pool_name(machine));
        let machines = holders.machines.iter().map(|(name, _)| ("Machine", *name));
        let pools = holders.pools.iter().map(|(name, _)| ("MachinePool", *name));
        let pools = pools.filter(|(_, name)| Some(*name) != own_pool.as_deref());
        let mut all = machines.chain(pools);
        if let (Some(first), Some(second)) = (all.next(), all.next()) {
            return Err(ambiguous(first, second));
        }
        if let Some((name, machine)) = holders.machines.first() {
            return Ok(Some((self.machine(name, machine), None)));
        }
        // A member of a pool that no Machine stands for, or not yet.
        let listed = holders.pools.first().map(|(name, pool)| {
            let mut machine = self.listed_member(name, pool, id);
            if self.has_machines(name) {
                machine.state = waiting(machine.state);
                return (machine, None);
            }
            (machine, pool.infrastructure.clone())
        });
        Ok(listed)
    }

    /// Whether `machine` can be the one with this ID.
    pub(super) fn is_free(self, id: &ProviderId, machine: &Machine) -> Result<(), Unavailable> {
        let mut machines = self.members.with_provider_id(id).machines.into_iter();
        match machines.find(|(other, _)| *other != machine.name) {
            Some((other, _)) => Err(ambiguous(("Machine", &machine.name), ("Machine", other))),
            None => Ok(()),
        }
    }

    /// The owner of the token, if it has one; of a machine, its `InfraMachine` too.
    pub(super) fn owner(self, token: &TokenId) -> Option<(TokenOwner, Option<Reference>)> {
        let holders = self.members.with_token(token);
        match (&*holders.machines, &*holders.pools) {
            ([(name, machine)], []) => {
                let owner = TokenOwner::Machine(Box::new(self.machine(name, machine)));
                Some((owner, machine.infrastructure.clone()))
            }
            ([], [(name, pool)]) => {
                let owner = TokenOwner::Pool {
                    name: (*name).to_owned(),
                    object: Some(Box::new(self.reference("MachinePool", name, &pool.uid))),
                };
                Some((owner, None))
            }
            // Made for several, it tells nothing of any.
            _ => None,
        }
    }

    pub(super) fn by_address(self, address: IpAddr) -> Vec<Machine> {
        let machines = self.members.machines.iter();
        let found = machines.filter(|(_, machine)| machine.addresses.contains(&address));
        found
            .map(|(name, machine)| self.machine(name, machine))
            .collect()
    }

    pub(super) fn by_name(self, wanted: &str) -> Vec<Machine> {
        let known = self.members.known_by(wanted).into_iter();
        let named = known.filter(|(name, machine)| {
            let reported = machine.dns_names.iter().any(|own| own == wanted);
            reported || self.candidate(name, machine, wanted).is_some()
        });
        let named = named.map(|(name, machine)| self.machine(name, machine));
        named.chain(self.listed_named(wanted)).collect()
    }

    pub(super) fn machine(self, name: &str, machine: &objects::Machine) -> Machine {
        let config = self.config(machine);
        let pool = self.pool_name(machine);
        Machine {
            object: Some(self.reference("Machine", name, &machine.uid)),
            state: state(machine.deleting, self.has_bootstrap_data(machine)),
            provider_id: machine.provider_id.clone(),
            node_name: self.node_name(name, machine),
            node: self.node(name, machine),
            addresses: machine.addresses.clone(),
            dns_names: machine.dns_names.clone(),
            provisioning: !machine.provisioned,
            token_id: config.and_then(|config| config.token.clone()),
            assigned_token: machine.assigned_token.clone(),
            control_plane: machine.control_plane
                || config.is_some_and(|config| config.control_plane),
            pool,
            ..Machine::new(name)
        }
    }

    /// The pool, where the label has a digest of its name.
    fn pool_name(self, machine: &objects::Machine) -> Option<String> {
        let label = machine.pool.as_ref()?;
        let pools = &self.members.pools;
        let mut names = pools.iter().map(|(name, _)| name);
        let digested = || names.find(|name| label_value(name) == *label);
        let exact = pools.get(label).map(|_| label.as_str());
        Some(exact.or_else(digested).unwrap_or(label).to_owned())
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
            node_name: last_segment(id).and_then(|name| NodeName::parse(name).ok()),
            pool: Some(name.to_owned()),
            ..Machine::new(id.as_str())
        }
    }

    pub(super) fn reference(self, kind: &str, name: &str, uid: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some(objects::CORE_API_VERSION.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(self.cluster.namespace.clone()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }
}

/// The state of what is not ready before something else is there.
pub(super) fn waiting(state: MachineState) -> MachineState {
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

/// The name of a machine whose infrastructure gives it none: the last part of its ID.
fn last_segment(id: &ProviderId) -> Option<&str> {
    let (_, segment) = id.as_str().rsplit_once('/')?;
    Some(segment)
}

/// The error of two objects, each a kind and a name, with one provider ID.
fn ambiguous(first: (&str, &str), second: (&str, &str)) -> Unavailable {
    let [(kind, name), (other_kind, other)] = [first, second];
    Unavailable::new(format!(
        "{kind} {name} and {other_kind} {other} have the same provider ID"
    ))
}

/// The longest value of a label.
const MAX_LABEL_LEN: usize = 63;

/// A name as the value of a label: where it is too long, the FNV-1a of it (Cluster API,
/// `util/labels/format.MustFormatValue`).
pub(super) fn label_value(name: &str) -> String {
    if name.len() <= MAX_LABEL_LEN {
        return name.to_owned();
    }
    let digest = name.bytes().fold(0x811c_9dc5_u32, |digest, byte| {
        (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("hash_{}_z", BASE64URL_NOPAD.encode(&digest.to_be_bytes()))
}
