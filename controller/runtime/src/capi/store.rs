//! The watched objects by cluster, with an index by the identities of machines.
//!
//! No input or output. Objects may come in any order: a Machine before its Cluster. A `KubeadmConfig` is read when
//! something depends on it, and kept as long as a Machine or a pool refers to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::LazyLock;

use kubelet_attestation::names::ProviderId;
use node_attestation_core::identifiers::TokenId;

use super::objects::{BootstrapConfig, Cluster, Machine, MachinePool, ObjectKey, Watched};
use crate::table::{Indexed, Table};

/// The objects of all clusters.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) clusters: BTreeMap<ObjectKey, Cluster>,
    /// By Cluster, whether it is there or not.
    pub(super) members: HashMap<ObjectKey, Members>,
    /// The name of the cluster of each Machine and pool, to find it after a deletion; by kind.
    clusters_of: HashMap<(&'static str, ObjectKey), String>,
}

/// The objects of a cluster.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) machines: Table<Machine>,
    pub(super) pools: Table<MachinePool>,
    configs: Table<BootstrapConfig>,
}

/// A cluster without members.
pub(super) static NO_MEMBERS: LazyLock<Members> = LazyLock::new(Members::default);

/// A value by which an object of a cluster is found.
#[derive(Hash)]
enum Value<'a> {
    ProviderId(&'a ProviderId),
    /// The name of its `KubeadmConfig`.
    Config(&'a str),
    /// A name that its Node may have.
    NodeName(&'a str),
    /// The pool of a Machine, as the Machine calls it.
    Pool(&'a str),
    /// A Machine with bootstrap data whose `KubeadmConfig` was not read yet.
    Unread {
        /// Whether Cluster API has found its Node.
        has_node: bool,
    },
    Token(&'a TokenId),
}

/// The Machines and pools that share a value, with their names.
#[derive(Default)]
pub(super) struct Holders<'a> {
    pub(super) machines: Vec<(&'a str, &'a Machine)>,
    pub(super) pools: Vec<(&'a str, &'a MachinePool)>,
}

/// Something that a [`Store`] keeps.
pub(super) trait Stored: Watched {
    /// Stores the object under this key, or removes it.
    fn put(store: &mut Store, key: &ObjectKey, object: Option<Self>);

    /// The keys of all objects.
    fn keys(store: &Store) -> BTreeSet<ObjectKey>;
}

/// A Machine or a pool.
trait Member: Watched + Indexed {
    /// The name of its cluster.
    fn cluster(&self) -> &str;

    /// The name of its `KubeadmConfig`.
    fn config(&self) -> Option<&str>;

    fn table(members: &mut Members) -> &mut Table<Self>;
}

impl Members {
    /// The `KubeadmConfig` of this name, if it was read.
    pub(super) fn config(&self, name: &str) -> Option<&BootstrapConfig> {
        self.configs.get(name)
    }

    pub(super) fn with_provider_id(&self, id: &ProviderId) -> Holders<'_> {
        let machines = self.machines.with(Value::ProviderId(id));
        let pools = self.pools.with(Value::ProviderId(id));
        Holders {
            machines: machines
                .filter(|(_, machine)| machine.provider_id.as_ref() == Some(id))
                .collect(),
            pools: pools
                .filter(|(_, pool)| pool.provider_ids.contains(id))
                .collect(),
        }
    }

    fn with_config(&self, config: &str) -> Holders<'_> {
        let machines = self.machines.with(Value::Config(config));
        let pools = self.pools.with(Value::Config(config));
        Holders {
            machines: machines
                .filter(|(_, machine)| machine.config() == Some(config))
                .collect(),
            pools: pools
                .filter(|(_, pool)| pool.config() == Some(config))
                .collect(),
        }
    }

    /// The machines and pools whose `KubeadmConfig` has this token, and the machines that it is assigned to: one, unless
    /// a person wrote the token.
    pub(super) fn with_token(&self, token: &TokenId) -> Holders<'_> {
        let mut all = Holders::default();
        let configs = self.configs.with(Value::Token(token));
        for (name, _) in configs.filter(|(_, config)| config.token.as_ref() == Some(token)) {
            let holders = self.with_config(name);
            all.machines.extend(holders.machines);
            all.pools.extend(holders.pools);
        }
        let assigned = self.machines.with(Value::Token(token));
        for (name, machine) in assigned {
            let is_assigned = machine.assigned_token.as_ref() == Some(token);
            if is_assigned && !all.machines.iter().any(|(known, _)| *known == name) {
                all.machines.push((name, machine));
            }
        }
        all
    }

    /// All Machines whose Nodes may have this name, and perhaps others.
    pub(super) fn known_by<'a>(&'a self, name: &'a str) -> BTreeMap<&'a str, &'a Machine> {
        let configs = self.configs.with(Value::NodeName(name));
        let configured = configs.flat_map(|(config, _)| self.with_config(config).machines);
        let known = self.machines.with(Value::NodeName(name));
        let called = self.machines.get(name).map(|machine| (name, machine));
        configured.chain(known).chain(called).collect()
    }

    /// The Machines with bootstrap data whose `KubeadmConfig` was not read yet, by whether they have a Node.
    pub(super) fn unread(&self, has_node: bool) -> impl Iterator<Item = &Machine> {
        let unread = self.machines.with(Value::Unread { has_node });
        unread.map(|(_, machine)| machine)
    }

    /// Whether any Machine calls its pool this.
    pub(super) fn has_machines_of(&self, pool: &str) -> bool {
        let mut machines = self.machines.with(Value::Pool(pool));
        machines.any(|(_, machine)| machine.pool.as_deref() == Some(pool))
    }

    /// Keeps a `KubeadmConfig` that was read, unless nothing refers to it any more.
    pub(super) fn keep_config(&mut self, name: &str, config: BootstrapConfig) {
        // Its Machines may be gone since the read began; then nothing would ever remove it.
        let holders = self.with_config(name);
        if holders.machines.is_empty() && holders.pools.is_empty() {
            return;
        }
        let machines = holders.machines.into_iter();
        let machines: Vec<String> = machines.map(|(machine, _)| machine.to_owned()).collect();
        for machine in machines {
            was_read(&mut self.machines, &machine);
        }
        self.configs.put(name, config);
    }

    fn put<M: Member>(&mut self, name: &str, member: M) {
        let config = member.config();
        let is_read = config.is_some_and(|config| self.config(config).is_some());
        let before = M::table(self).put(name, member);
        if is_read {
            was_read(M::table(self), name);
        }
        // After the new object was stored: mostly it refers to the same one.
        self.release_config(before.as_deref());
    }

    fn remove<M: Member>(&mut self, name: &str) {
        let before = M::table(self).remove(name);
        self.release_config(before.as_deref());
    }

    /// Removes the `KubeadmConfig` of the former object, if nothing refers to it any more.
    fn release_config<M: Member>(&mut self, before: Option<&M>) {
        if let Some(config) = before.and_then(Member::config) {
            let holders = self.with_config(config);
            if holders.machines.is_empty() && holders.pools.is_empty() {
                self.configs.remove(config);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.pools.is_empty()
    }
}

/// Marks the `KubeadmConfig` of this object as read.
fn was_read<M: Indexed>(table: &mut Table<M>, name: &str) {
    for has_node in [false, true] {
        table.forget_value(name, Value::Unread { has_node });
    }
}

impl Stored for Cluster {
    fn put(store: &mut Store, key: &ObjectKey, cluster: Option<Self>) {
        match cluster {
            Some(cluster) => store.clusters.insert(key.clone(), cluster),
            None => store.clusters.remove(key),
        };
    }

    fn keys(store: &Store) -> BTreeSet<ObjectKey> {
        store.clusters.keys().cloned().collect()
    }
}

impl<M: Member> Stored for M {
    fn put(store: &mut Store, key: &ObjectKey, member: Option<Self>) {
        let within = |cluster: &str| ObjectKey::new(key.namespace.as_str(), cluster);
        let cluster = member.as_ref().map(|member| member.cluster().to_owned());
        let place = (Self::KIND, key.clone());
        let former = match &cluster {
            Some(cluster) => store.clusters_of.insert(place, cluster.clone()),
            None => store.clusters_of.remove(&place),
        };
        if let Some(member) = member {
            let members = store.members.entry(within(member.cluster()));
            members.or_default().put(&key.name, member);
        }
        // It is gone, or another cluster's now.
        if let Some(former) = former.filter(|former| Some(former) != cluster.as_ref())
            && let Some(members) = store.members.get_mut(&within(&former))
        {
            members.remove::<Self>(&key.name);
            if members.is_empty() {
                store.members.remove(&within(&former));
            }
        }
    }

    fn keys(store: &Store) -> BTreeSet<ObjectKey> {
        let places = store.clusters_of.keys();
        let own = places.filter(|(kind, _)| *kind == Self::KIND);
        own.map(|(_, key)| key.clone()).collect()
    }
}

impl Member for Machine {
    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn config(&self) -> Option<&str> {
        self.config.as_ref().map(|config| config.name.as_str())
    }

    fn table(members: &mut Members) -> &mut Table<Self> {
        &mut members.machines
    }
}

impl Indexed for Machine {
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = impl Hash> {
        let id = self.provider_id.iter().map(Value::ProviderId);
        let config = self.config();
        let has_node = self.node.is_some();
        let unread = config.filter(|_| self.has_bootstrap_data);
        let unread = unread.map(|_| Value::Unread { has_node });
        let pool = self.pool.as_deref().map(Value::Pool);
        // Its own name leads to it anyway.
        let names = self.names().filter(move |known| *known != name);
        let names = names.map(Value::NodeName);
        let token = self.assigned_token.iter().map(Value::Token);
        let values = id.chain(config.map(Value::Config)).chain(token);
        values.chain(unread).chain(pool).chain(names)
    }
}

impl Member for MachinePool {
    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn config(&self) -> Option<&str> {
        self.config.as_ref().map(|config| config.name.as_str())
    }

    fn table(members: &mut Members) -> &mut Table<Self> {
        &mut members.pools
    }
}

impl Indexed for MachinePool {
    fn values<'a>(&'a self, _name: &'a str) -> impl Iterator<Item = impl Hash> {
        let ids = self.provider_ids.iter().map(Value::ProviderId);
        ids.chain(self.config().map(Value::Config))
    }
}

impl Indexed for BootstrapConfig {
    fn values<'a>(&'a self, _name: &'a str) -> impl Iterator<Item = impl Hash> {
        let token = self.token.iter().map(Value::Token);
        let name = self.node_name.iter();
        token.chain(name.map(|name| Value::NodeName(name.as_str())))
    }
}
