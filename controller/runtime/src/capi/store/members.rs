//! The objects of one cluster.

use std::hash::Hash;
use std::net::IpAddr;
use std::time::Instant;

use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::TokenId;

use super::Member;
use super::configs::{Configs, Referrer};
use super::values::{Ground, Value};
use crate::capi::api_discovery::NotServed;
use crate::capi::objects::{
    BootstrapConfig, ConfigReference, Machine, MachinePool, MemberLimit, label_value, last_segment,
};
use crate::table::{Indexed, Table};

/// The maximum number of objects in an answer about one value. Callers only need to know whether there is more than
/// one. The limit is three, because one of the pools can be the Machine's own pool.
const SEVERAL: usize = 3;

/// The objects of a cluster.
#[derive(Debug, Default)]
pub(in crate::capi) struct Members {
    pub(in crate::capi) machines: Table<Machine>,
    pub(in crate::capi) pools: Table<MachinePool>,
    configs: Configs,
}

/// Machines and pools that share a value, with their names, up to a limit.
#[derive(Default)]
pub(in crate::capi) struct Holders<'a> {
    pub(in crate::capi) machines: Vec<(&'a str, &'a Machine)>,
    pub(in crate::capi) pools: Vec<(&'a str, &'a MachinePool)>,
}

impl Members {
    /// The `KubeadmConfig` with this name, if it was read.
    pub(in crate::capi) fn config(&self, name: &str) -> Option<&BootstrapConfig> {
        self.configs.get(name)
    }

    /// Whether this `KubeadmConfig` must be read if an answer depends on it.
    pub(in crate::capi) fn is_due(&self, config: &str, now: Instant) -> bool {
        self.configs.is_due(config, now)
    }

    /// The `KubeadmConfig`s that must be read for this type of referrer. A config that was never read is included only
    /// if its name comes after `after`.
    pub(in crate::capi) fn due(
        &self,
        referrer: Referrer,
        after: &str,
        now: Instant,
    ) -> impl Iterator<Item = &ConfigReference> {
        let due = self.configs.due(referrer, after, now);
        due.filter_map(|config| {
            let machines = self.with_config(config);
            let of_machine = machines.map(|(_, machine)| machine.config.as_ref());
            let pools = self.pools_with_config(config);
            let of_pool = pools.map(|(_, pool)| pool.config.as_ref());
            of_machine.chain(of_pool).next()?
        })
    }

    pub(in crate::capi) fn with_provider_id(&self, id: &ProviderId) -> Holders<'_> {
        let machines = self.machines.with(Value::ProviderId(id));
        let machines = machines.filter(|(_, machine)| machine.provider_id.as_ref() == Some(id));
        let pools = self.pools.with(Value::ProviderId(id));
        let pools = pools.filter(|(_, pool)| pool.provider_ids.contains(id));
        Holders {
            machines: machines.take(SEVERAL).collect(),
            pools: pools.take(SEVERAL).collect(),
        }
    }

    /// The machines and pools whose `KubeadmConfig` has this token, and the machines with this assigned token. Only one
    /// of them has the token, unless a user set the token.
    pub(in crate::capi) fn with_token(&self, token: &TokenId) -> Holders<'_> {
        let mut all = Holders::default();
        for config in self.configs.with_token(token).take(SEVERAL) {
            let machines = self.with_config(config).take(SEVERAL);
            all.machines.extend(machines);
            let pools = self.pools_with_config(config).take(SEVERAL);
            all.pools.extend(pools);
        }
        let assigned = self.machines.with(Value::Token(token));
        let assigned =
            assigned.filter(|(_, machine)| machine.assigned_token.as_ref() == Some(token));
        for (name, machine) in assigned.take(SEVERAL) {
            if !all.machines.iter().any(|(known, _)| *known == name) {
                all.machines.push((name, machine));
            }
        }
        all
    }

    /// All Machines with this address.
    pub(in crate::capi) fn with_address(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (&str, &Machine)> {
        let machines = self.machines.with(Value::Address(address));
        machines.filter(move |(_, machine)| machine.addresses.contains(&address))
    }

    /// The Machines for which `ground` permits a Node with this name. The result can also contain other Machines.
    pub(in crate::capi) fn named<'a>(
        &'a self,
        ground: Ground,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Machine)> {
        let is_written = ground == Ground::Written;
        let written = is_written.then(|| self.configs.named(name));
        let written = written.into_iter().flatten();
        let written = written.flat_map(|config| self.with_config(config));
        // The index does not contain a Machine's own name.
        let own = (!is_written).then(|| self.machines.get_with_name(name));
        let own = own.flatten();
        let known = self.machines.with(Value::NodeName(ground, name));
        written.chain(own).chain(known)
    }

    /// The pool with this name, or with this digest of its name.
    pub(in crate::capi) fn pool(&self, label: &str) -> Option<(&str, &MachinePool)> {
        let mut digested = self.pools.with(Value::Label(label.into()));
        let digested = digested.find(|(name, _)| label_value(name) == label);
        self.pools.get_with_name(label).or(digested)
    }

    /// The pools that have members with this name.
    pub(in crate::capi) fn listing(
        &self,
        member: &str,
    ) -> impl Iterator<Item = (&str, &MachinePool)> {
        self.pools.with(Value::Member(member))
    }

    /// A pool with unknown members, and the limit that truncated it.
    pub(in crate::capi) fn cut_pool(&self) -> Option<(&str, MemberLimit)> {
        let mut pools = self.pools.with(Value::Cut);
        pools.find_map(|(name, pool)| Some((name, pool.cut?)))
    }

    /// A Machine whose reported addresses and names are unknown, and the limit that caused them to be omitted.
    pub(in crate::capi) fn cut_machine(&self) -> Option<(&str, MemberLimit)> {
        let mut machines = self.machines.with(Value::Cut);
        machines.find_map(|(name, machine)| Some((name, machine.cut?)))
    }

    /// Whether a Machine refers to this pool.
    pub(in crate::capi) fn has_machines_of(&self, pool: &str) -> bool {
        let mut machines = self.machines.with(Value::Pool(pool));
        machines.any(|(_, machine)| machine.pool.as_deref() == Some(pool))
    }

    fn with_config<'a>(&'a self, config: &'a str) -> impl Iterator<Item = (&'a str, &'a Machine)> {
        // The index does not contain a Machine's own name.
        let own = self.machines.get_with_name(config).into_iter();
        let machines = own.chain(self.machines.with(Value::Config(config)));
        machines.filter(move |(_, machine)| machine.config() == Some(config))
    }

    fn pools_with_config<'a>(
        &'a self,
        config: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a MachinePool)> {
        let pools = self.pools.with(Value::Config(config));
        pools.filter(move |(_, pool)| pool.config() == Some(config))
    }

    /// Whether the last read of this `KubeadmConfig` found that its version is not served.
    pub(in crate::capi) fn is_unserved(&self, config: &str) -> bool {
        self.configs.is_unserved(config)
    }

    /// Stores the result of reading a `KubeadmConfig`.
    pub(super) fn read_config(
        &mut self,
        name: &str,
        config: Result<Option<BootstrapConfig>, NotServed>,
        now: Instant,
    ) {
        let is_of_pool = self.pools_with_config(name).next().is_some();
        // A config without Machines is not stored, because it would never be removed. Its Machines can be deleted while
        // it is read.
        if is_of_pool || self.with_config(name).next().is_some() {
            self.configs.put(name, config, is_of_pool, now);
            self.queue_config(name);
        }
    }

    /// Stores a member. Returns whether it differs from the previous member.
    pub(super) fn put<M: Member>(&mut self, name: &str, member: M) -> bool {
        if M::table(self).get(name) == Some(&member) {
            return false;
        }
        let config = member.config().map(ToOwned::to_owned);
        let before = M::table(self).put(name, member);
        if let Some(config) = &config {
            self.queue_config(config);
        }
        // The previous config is released after the new object is stored, because the new object usually refers to the
        // same config.
        let before = before.as_deref().and_then(Member::config);
        if let Some(former) = before.filter(|former| config.as_deref() != Some(*former)) {
            self.release_config(former);
        }
        true
    }

    pub(super) fn remove<M: Member>(&mut self, name: &str) {
        let before = M::table(self).remove(name);
        if let Some(config) = before.as_deref().and_then(Member::config) {
            self.release_config(config);
        }
    }

    /// Removes the `KubeadmConfig` if it has no more referrers.
    fn release_config(&mut self, config: &str) {
        let is_of_machine = self.with_config(config).next().is_some();
        if is_of_machine || self.pools_with_config(config).next().is_some() {
            self.queue_config(config);
        } else {
            self.configs.remove(config);
        }
    }

    /// Queues the `KubeadmConfig` for its current referrers.
    fn queue_config(&mut self, config: &str) {
        let is_unknown = self.config(config).is_none();
        let is_of_machine = |has_node| {
            let value = Value::Bootstrapped { config, has_node };
            is_unknown && self.machines.with(value).next().is_some()
        };
        let wanted = [
            (Referrer::Joining, is_of_machine(false)),
            (Referrer::Joined, is_of_machine(true)),
            (
                Referrer::Pool,
                self.pools_with_config(config).next().is_some(),
            ),
        ];
        self.configs.queue(config, wanted);
    }

    /// The number of values that were added to or removed from the indexes of Machines and pools.
    #[cfg(test)]
    pub(in crate::capi) fn indexed(&self) -> usize {
        self.machines.indexed + self.pools.indexed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.pools.is_empty()
    }
}

impl Indexed for Machine {
    /// The values without the Machine's own name, because the Machine can be found by its own name without an index.
    /// Most Machines have the same name as their `KubeadmConfig` and their `InfraMachine`.
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = impl Hash> {
        let id = self.provider_id.iter().map(Value::ProviderId);
        let addresses = self.addresses.iter().copied().map(Value::Address);
        let config = self.config();
        let has_node = self.node.is_some();
        let bootstrapped = config.filter(|_| self.has_bootstrap_data);
        let bootstrapped = bootstrapped.map(|config| Value::Bootstrapped { config, has_node });
        let pool = self.pool.as_deref().map(Value::Pool);
        let token = self.assigned_token.iter().map(Value::Token);
        let config = config.filter(|config| *config != name);
        let values = id.chain(addresses).chain(config.map(Value::Config));
        let values = values.chain(bootstrapped).chain(pool).chain(token);
        let names = names(self).filter(move |(_, own)| *own != name);
        let cut = self.cut.map(|_| Value::Cut);
        let values = values.chain(names.map(|(ground, name)| Value::NodeName(ground, name)));
        values.chain(cut)
    }
}

/// The names of a Machine's host and Node that have a ground other than the Machine's own name.
fn names(machine: &Machine) -> impl Iterator<Item = (Ground, &str)> {
    let infrastructure = machine.infra_name.iter();
    let infrastructure = infrastructure.map(|name| (Ground::InfraMachine, name.as_str()));
    let node = machine.node.iter();
    let node = node.map(|node| (Ground::Node, node.as_str()));
    let host = machine.host_names.iter().map(NodeName::as_str);
    let reported = host.chain(machine.dns_names.iter().map(String::as_str));
    let reported = reported.map(|name| (Ground::Reported, name));
    infrastructure.chain(node).chain(reported)
}

impl Indexed for MachinePool {
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = impl Hash> {
        let ids = self.provider_ids.iter();
        let ids = ids.flat_map(|id| {
            let member = last_segment(id).map(Value::Member);
            [Value::ProviderId(id)].into_iter().chain(member)
        });
        let label = label_value(name);
        let label = (label != name).then_some(Value::Label(label));
        let cut = self.cut.map(|_| Value::Cut);
        let values = ids.chain(self.config().map(Value::Config));
        values.chain(label).chain(cut)
    }
}

impl Indexed for BootstrapConfig {
    fn values<'a>(&'a self, _name: &'a str) -> impl Iterator<Item = impl Hash> {
        let token = self.token.iter().map(Value::Token);
        let name = self.node_name.iter();
        let name = name.map(|name| Value::NodeName(Ground::Written, name.as_str()));
        token.chain(name)
    }
}
