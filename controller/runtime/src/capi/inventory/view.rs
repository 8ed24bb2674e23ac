//! A snapshot of the objects of one Cluster.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use k8s_openapi::api::core::v1::ObjectReference;
use kubelet_attestation::ensure;
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::{Machine, MachineState, TokenOwner};
use node_attestation_core::refusal::Unavailable;

use crate::capi::objects::{
    self, BootstrapConfig, ConfigReference, MachinePool, ObjectKey, Reference, label_value,
    last_segment,
};
use crate::capi::store::{Ground, Members, Referrer};
use crate::shared::PAGE;

/// The maximum number of machines that are visited for one name or address.
pub(super) const MAX_NAMESAKES: usize = 64;

/// A snapshot of one cluster.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) cluster: &'a ObjectKey,
    pub(super) members: &'a Members,
    needed: &'a Needed,
}

/// The Machines or pools whose `KubeadmConfig`s can affect the answer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// The Machines that could be joining.
    Joining,
    /// All Machines.
    All,
    /// The pools.
    Pools,
}

/// The ends of the last pages of due `KubeadmConfig`s. Configs that cannot be read stay due, so a page from the
/// beginning could contain only such configs.
pub(super) type PageEnds = BTreeMap<Referrer, String>;

/// The unread `KubeadmConfig`s that an answer depends on.
pub(super) struct Needed {
    pub(super) now: Instant,
    /// The maximum number of configs to collect.
    pub(super) limit: usize,
    /// The ends of the previous pages. [`View::need`] replaces each of them with the end of the current page.
    pub(super) places: RefCell<PageEnds>,
    /// Whether each page begins with the first due config.
    pub(super) is_whole: Cell<bool>,
    pub(super) configs: RefCell<BTreeSet<Reference>>,
}

impl Needed {
    fn missing(&self) -> usize {
        self.limit.saturating_sub(self.configs.borrow().len())
    }

    fn add(&self, members: &Members, config: &ConfigReference) {
        if self.missing() > 0 && members.is_due(&config.name, self.now) {
            self.configs.borrow_mut().insert(config.complete());
        }
    }
}

impl<'a> View<'a> {
    pub(super) fn new(cluster: &'a ObjectKey, members: &'a Members, needed: &'a Needed) -> Self {
        Self {
            cluster,
            members,
            needed,
        }
    }

    /// The `KubeadmConfig` of the Machine. The config is not read before the bootstrap data exists, because the config
    /// can change until then.
    pub(super) fn config(self, machine: &objects::Machine) -> Option<&'a BootstrapConfig> {
        let reference = machine.config.as_ref()?;
        let found = self.members.config(&reference.name);
        if found.is_none() && self.has_bootstrap_data(machine) {
            self.needed.add(self.members, reference);
        }
        found
    }

    fn has_bootstrap_data(self, machine: &objects::Machine) -> bool {
        let pool = || self.members.pool(machine.pool.as_deref()?);
        machine.has_bootstrap_data || pool().is_some_and(|(_, pool)| pool.has_bootstrap_data)
    }

    /// Marks these `KubeadmConfig`s for reading.
    pub(super) fn need(self, need: Need) {
        let referrers: &[Referrer] = match need {
            Need::Joining => &[Referrer::Joining],
            Need::All => &[Referrer::Joining, Referrer::Joined],
            Need::Pools => &[Referrer::Pool],
        };
        for referrer in referrers {
            let missing = self.needed.missing();
            if missing == 0 {
                return;
            }
            let after = self.needed.places.borrow_mut().remove(referrer);
            if after.is_some() {
                self.needed.is_whole.set(false);
            }
            let after = after.as_deref().unwrap_or_default();
            let due = self.members.due(*referrer, after, self.needed.now);
            let page: Vec<_> = due.take(missing).collect();
            for config in &page {
                self.needed.add(self.members, config);
            }
            // After the last page, the next page is the first one.
            if page.len() == missing
                && let Some(last) = page.last()
            {
                let mut places = self.needed.places.borrow_mut();
                places.insert(*referrer, last.name.clone());
            }
        }
    }

    /// Whether this `KubeadmConfig` must still be read for these referrers. Only the config of a pool is read again.
    pub(super) fn is_wanted(self, need: Need, config: &str) -> bool {
        match need {
            Need::Joining | Need::All => self.is_unread(config),
            Need::Pools => self.members.is_due(config, self.needed.now),
        }
    }

    /// The tokens of the next pools after this name, whether all of their configs have been read, and the name of the
    /// last of these pools.
    pub(super) fn next_pool_tokens(
        self,
        after: Option<&str>,
    ) -> (Vec<TokenId>, bool, Option<String>) {
        let (mut tokens, mut last, mut are_read) = (Vec::new(), None, true);
        for (name, pool) in self.members.pools.after(after).take(PAGE) {
            last = Some(name.to_owned());
            let Some(reference) = pool.config.as_ref().filter(|_| !pool.deleting) else {
                continue;
            };
            match self.members.config(&reference.name) {
                Some(config) => tokens.extend(config.token.clone()),
                None if pool.has_bootstrap_data => are_read &= !self.is_unread(&reference.name),
                None => {}
            }
        }
        (tokens, are_read, last)
    }

    /// Whether the `KubeadmConfig` of the Machine has data, and has not been read.
    pub(super) fn must_read(self, machine: &objects::Machine) -> bool {
        let config = machine.config.as_ref();
        config
            .is_some_and(|config| self.has_bootstrap_data(machine) && self.is_unread(&config.name))
    }

    /// Whether this `KubeadmConfig` is unread, and was not missing when it was last read.
    pub(super) fn is_unread(self, config: &str) -> bool {
        self.members.config(config).is_none() && self.members.is_due(config, self.needed.now)
    }

    /// Applies `of` to the next Machines after this name. Returns the results, and the name of the last of these
    /// Machines. `None` if there are no more Machines.
    pub(super) fn next_machines<T>(
        self,
        after: Option<&str>,
        of: impl Fn(Self, &'a str, &'a objects::Machine) -> Option<T>,
    ) -> (Vec<T>, Option<String>) {
        let (mut found, mut last) = (Vec::new(), None);
        for (name, machine) in self.members.machines.after(after).take(PAGE) {
            found.extend(of(self, name, machine));
            last = Some(name);
        }
        (found, last.map(ToOwned::to_owned))
    }

    /// Checks that the members of all pools are known. Otherwise, a value that no known machine has could belong to an
    /// unknown member. Unknown members exist: they must not lose their records, and their requests wait.
    ///
    /// # Errors
    ///
    /// Returns an error if a limit truncated a pool.
    pub(super) fn knows_all_members(self) -> Result<(), Unavailable> {
        match self.members.cut_pool() {
            None => Ok(()),
            Some((name, limit)) => Err(Unavailable::new(format!(
                "MachinePool {name}: {}",
                limit.reason()
            ))),
        }
    }

    /// Checks that the reported addresses of all Machines are known. Otherwise, an address could belong to a Machine
    /// with unknown addresses.
    ///
    /// # Errors
    ///
    /// Returns an error if a limit omitted the addresses and names that a Machine reports.
    pub(super) fn knows_all_reported(self) -> Result<(), Unavailable> {
        match self.members.cut_machine() {
            None => Ok(()),
            Some((name, limit)) => Err(Unavailable::new(format!(
                "Machine {name}: {}",
                limit.reason()
            ))),
        }
    }

    /// Checks that the names of all members and Machines are known.
    ///
    /// # Errors
    ///
    /// Like [`knows_all_members`](Self::knows_all_members) and [`knows_all_reported`](Self::knows_all_reported).
    pub(super) fn knows_all_names(self) -> Result<(), Unavailable> {
        self.knows_all_members()?;
        self.knows_all_reported()
    }

    /// The pool members without a Machine whose required Node name is this name.
    ///
    /// # Errors
    ///
    /// Returns an error if too many members have this required name.
    pub(super) fn listed_named(self, wanted: &str) -> Result<Vec<Machine>, Unavailable> {
        if NodeName::parse(wanted).is_err() {
            return Ok(Vec::new());
        }
        let mut pools = self.members.listing(wanted);
        let first = pools.by_ref().take(MAX_NAMESAKES);
        let first = first.filter(|(name, _)| !self.has_machines(name));
        let members = first.flat_map(|(name, pool)| {
            let named = pool.provider_ids.named(wanted);
            named.map(move |id| self.listed_member(name, pool, id))
        });
        let members: Vec<Machine> = members.take(MAX_NAMESAKES + 1).collect();
        let has_more = members.len() > MAX_NAMESAKES || pools.next().is_some();
        ensure!(!has_more, too_many(wanted));
        Ok(members)
    }

    /// The machine with this ID. For a pool member without a Machine, also the object whose provider can create the
    /// Machine.
    ///
    /// # Errors
    ///
    /// Returns an error if two machines have the ID, or if an unknown member can have it.
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
        if holders.pools.is_empty() {
            self.knows_all_members()?;
        }
        // A pool member that has no Machine, or whose Machine has not been created yet.
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

    /// Checks that only this machine has this ID.
    pub(super) fn is_free(self, id: &ProviderId, machine: &Machine) -> Result<(), Unavailable> {
        let mut machines = self.members.with_provider_id(id).machines.into_iter();
        match machines.find(|(other, _)| *other != machine.name) {
            Some((other, _)) => Err(ambiguous(("Machine", &machine.name), ("Machine", other))),
            None => Ok(()),
        }
    }

    /// The owner of the token. `None` if the token does not have an owner. If the owner is a machine, also its
    /// `InfraMachine`.
    pub(super) fn owner(self, token: &TokenId) -> Option<(TokenOwner, Option<Reference>)> {
        let holders = self.members.with_token(token);
        match (&*holders.machines, &*holders.pools) {
            ([(name, machine)], []) => {
                let owner = TokenOwner::Machine(Box::new(self.machine(name, machine)));
                Some((owner, machine.infrastructure.as_deref().cloned()))
            }
            ([], [(name, pool)]) => {
                let owner = TokenOwner::Pool {
                    name: (*name).to_owned(),
                    object: Some(Box::new(self.reference("MachinePool", name, &pool.uid))),
                };
                Some((owner, None))
            }
            // If several machines share a token, the token does not identify a machine.
            _ => None,
        }
    }

    /// The machines with this address, up to [`MAX_NAMESAKES`].
    ///
    /// # Errors
    ///
    /// Returns an error if an unknown address can be this address.
    pub(super) fn by_address(self, address: IpAddr) -> Result<Vec<Machine>, Unavailable> {
        self.knows_all_reported()?;
        let found = self.members.with_address(address).take(MAX_NAMESAKES);
        let found = found.map(|(name, machine)| self.machine(name, machine));
        Ok(found.collect())
    }

    /// The machines that can have this name, up to [`MAX_NAMESAKES`]. If many hosts only report the name, only the
    /// first hosts are returned.
    ///
    /// # Errors
    ///
    /// Returns an error if too many machines have the name on a stronger ground, or if only an unknown member can have
    /// it.
    pub(super) fn by_name(self, wanted: &str) -> Result<Vec<Machine>, Unavailable> {
        let listed = self.listed_named(wanted)?;
        let mut named = BTreeMap::new();
        for ground in Ground::ALL {
            let is_reported = ground == Ground::Reported;
            let left = MAX_NAMESAKES.saturating_sub(named.len() + listed.len());
            let most = if is_reported { left } else { MAX_NAMESAKES };
            let mut known = self.members.named(ground, wanted);
            for (name, machine) in known.by_ref().take(most) {
                let reported = machine.dns_names.iter().any(|own| own == wanted);
                if reported || self.candidate(name, machine, wanted).is_some() {
                    named.insert(name, machine);
                }
            }
            let has_more = known.next().is_some() || named.len() + listed.len() > MAX_NAMESAKES;
            ensure!(is_reported || !has_more, too_many(wanted));
        }
        let named = named.into_iter();
        let named = named.map(|(name, machine)| self.machine(name, machine));
        let all: Vec<Machine> = named.chain(listed).collect();
        if all.is_empty() {
            self.knows_all_names()?;
        }
        Ok(all)
    }

    pub(super) fn machine(self, name: &str, machine: &objects::Machine) -> Machine {
        let config = self.config(machine);
        let pool = self.pool_name(machine);
        Machine {
            object: Some(self.reference("Machine", name, &machine.uid)),
            state: self.state(machine),
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

    fn state(self, machine: &objects::Machine) -> MachineState {
        let config = machine.config.as_ref();
        let is_unread = config.is_some_and(|config| self.members.is_unserved(&config.name));
        let state = state(machine.deleting, self.has_bootstrap_data(machine));
        if is_unread && state == MachineState::Ready {
            MachineState::Unread
        } else {
            state
        }
    }

    /// The name of the pool. The Machine's label can contain a digest instead of the name.
    fn pool_name(self, machine: &objects::Machine) -> Option<String> {
        let label = machine.pool.as_deref()?;
        let found = self.members.pool(label);
        Some(found.map_or(label, |(name, _)| name).to_owned())
    }

    /// Whether the members of this pool have Machines.
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

/// The state of a machine that must wait for another object, and is therefore not ready.
pub(super) fn waiting(state: MachineState) -> MachineState {
    match state {
        MachineState::Ready | MachineState::Unread | MachineState::Pending => MachineState::Pending,
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

/// The error if two objects have the same provider ID. Each argument is a kind and a name.
fn ambiguous(first: (&str, &str), second: (&str, &str)) -> Unavailable {
    let [(kind, name), (other_kind, other)] = [first, second];
    Unavailable::new(format!(
        "{kind} {name} and {other_kind} {other} have the same provider ID"
    ))
}

/// The error if too many machines can have a name.
pub(super) fn too_many(name: &str) -> Unavailable {
    Unavailable::new(format!(
        "more than {MAX_NAMESAKES} machines can have the node name {name}"
    ))
}
