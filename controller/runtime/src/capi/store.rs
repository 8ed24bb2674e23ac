//! What was watched, by cluster, and found by what identifies a machine.
//!
//! No input or output. Objects may come in any order: a Machine before its Cluster. A `KubeadmConfig` is read when
//! something depends on it, and kept as long as a Machine or a pool refers to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::TokenId;

use super::objects::{BootstrapConfig, Cluster, Machine, MachinePool, ObjectKey, Reference};

/// The objects of all clusters.
#[derive(Debug, Default)]
pub(super) struct Store {
    clusters: BTreeMap<ObjectKey, Cluster>,
    /// By Cluster, whether it is there or not.
    members: HashMap<ObjectKey, Members>,
    /// The cluster of each Machine and pool, to find it after a deletion.
    machine_clusters: HashMap<ObjectKey, ObjectKey>,
    pool_clusters: HashMap<ObjectKey, ObjectKey>,
    configs: HashMap<ObjectKey, BootstrapConfig>,
    /// By namespace and token; a token belongs to one configuration, unless somebody wrote it.
    tokens: HashMap<(String, TokenId), BTreeSet<String>>,
    /// The configurations that write a Node's name out: namespace, name, configuration.
    written_names: BTreeSet<(String, String, String)>,
}

/// What a cluster has, by name.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) machines: BTreeMap<String, Machine>,
    pub(super) pools: BTreeMap<String, MachinePool>,
    provider_ids: HashMap<ProviderId, Holders>,
    /// How many Machines say that they are of a pool: by what they call it.
    pool_machines: HashMap<String, usize>,
    /// The Machines with bootstrap data whose `KubeadmConfig` was not read yet; those without a Node, which may be
    /// joining, are the first.
    unread: BTreeSet<(HasNode, String)>,
    configs: HashMap<String, Holders>,
    /// The digest of each name that a Machine gives its Node but for its own name, with the Machine. A
    /// digest is enough: whoever looks a name up compares the names.
    known_by: BTreeSet<(u64, String)>,
    digest: RandomState,
}

/// Whether Cluster API has found the Node of a Machine.
type HasNode = bool;

/// The Machines and pools that share a value.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Holders {
    pub(super) machines: BTreeSet<String>,
    pub(super) pools: BTreeSet<String>,
}

impl Holders {
    fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.pools.is_empty()
    }
}

/// Something that a [`Store`] keeps.
pub(super) trait Stored: Sized {
    /// Puts it in the place of what was there under its key.
    fn put(self, key: ObjectKey, store: &mut Store);

    /// Forgets what is there under this key.
    fn forget(key: &ObjectKey, store: &mut Store);

    /// The keys of all that is there.
    fn keys(store: &Store) -> BTreeSet<ObjectKey>;
}

impl Store {
    pub(super) fn cluster(&self, key: &ObjectKey) -> Option<&Cluster> {
        self.clusters.get(key)
    }

    pub(super) fn clusters(&self) -> impl Iterator<Item = (&ObjectKey, &Cluster)> {
        self.clusters.iter()
    }

    pub(super) fn members(&self, cluster: &ObjectKey) -> Option<&Members> {
        self.members.get(cluster)
    }

    /// The `KubeadmConfig` that is referred to from `namespace`.
    pub(super) fn config(&self, namespace: &str, config: &Reference) -> Option<&BootstrapConfig> {
        self.configs
            .get(&ObjectKey::new(namespace, config.name.as_str()))
    }

    /// Keeps a `KubeadmConfig` that was read for this cluster, in the place of the one that was there.
    pub(super) fn keep_config(&mut self, cluster: &ObjectKey, name: &str, config: BootstrapConfig) {
        let key = ObjectKey::new(cluster.namespace.as_str(), name);
        self.forget_config(&key);
        if let Some(token) = &config.token {
            let holder = (key.namespace.clone(), token.clone());
            let holders = self.tokens.entry(holder).or_default();
            holders.insert(key.name.clone());
        }
        if let Some(name) = &config.node_name {
            self.written_names.insert(written_name(&key, name));
        }
        if let Some(members) = self.members.get_mut(cluster)
            && let Some(holders) = members.configs.get(&key.name)
        {
            for machine in &holders.machines {
                for has_node in [false, true] {
                    members.unread.remove(&(has_node, machine.clone()));
                }
            }
        }
        self.configs.insert(key, config);
    }

    fn forget_config(&mut self, key: &ObjectKey) {
        let Some(config) = self.configs.remove(key) else {
            return;
        };
        if let Some(name) = &config.node_name {
            self.written_names.remove(&written_name(key, name));
        }
        let Some(token) = config.token else {
            return;
        };
        let holder = (key.namespace.clone(), token);
        if let Some(holders) = self.tokens.get_mut(&holder) {
            holders.remove(&key.name);
            if holders.is_empty() {
                self.tokens.remove(&holder);
            }
        }
    }

    /// Forgets a `KubeadmConfig` to which the cluster no longer refers. If another cluster does, it is read again.
    fn release_config(&mut self, cluster: &ObjectKey, config: Option<&String>) {
        let is_used = |config: &String| {
            let members = self.members.get(cluster);
            members.is_some_and(|members| members.configs.contains_key(config))
        };
        if let Some(config) = config.filter(|config| !is_used(config)) {
            let key = ObjectKey::new(cluster.namespace.as_str(), config.as_str());
            self.forget_config(&key);
        }
    }

    /// All Machines whose Nodes may have this name, and perhaps others. The cost does not grow with the
    /// number of Machines.
    pub(super) fn machines_known_by<'a>(
        &self,
        cluster: &ObjectKey,
        members: &'a Members,
        name: &str,
    ) -> BTreeMap<&'a String, &'a Machine> {
        let namespace = &cluster.namespace;
        let first = (namespace.clone(), name.to_owned(), String::new());
        let written = self.written_names.range(first..);
        let written = written.take_while(|(place, one, _)| place == namespace && one == name);
        let configs = written.filter_map(|(_, _, config)| members.configs.get(config));
        let digest = members.digest.hash_one(name);
        let known = members.known_by.range((digest, String::new())..);
        let known = known.take_while(|(one, _)| *one == digest);
        let known = known.map(|(_, machine)| machine.as_str());
        let machines = configs.flat_map(|holders| holders.machines.iter().map(String::as_str));
        let machines = machines.chain(known).chain([name]);
        machines
            .filter_map(|name| members.machines.get_key_value(name))
            .collect()
    }

    /// The Machines and pools whose `KubeadmConfig` has this token.
    pub(super) fn token_holders(&self, cluster: &ObjectKey, token: &TokenId) -> Holders {
        let key = (cluster.namespace.clone(), token.clone());
        let mut all = Holders::default();
        let Some(members) = self.members.get(cluster) else {
            return all;
        };
        for config in self.tokens.get(&key).into_iter().flatten() {
            if let Some(holders) = members.configs.get(config) {
                all.machines.extend(holders.machines.iter().cloned());
                all.pools.extend(holders.pools.iter().cloned());
            }
        }
        all
    }
}

/// A cluster without members.
pub(super) static NO_MEMBERS: LazyLock<Members> = LazyLock::new(Members::default);

impl Members {
    pub(super) fn provider_id_holders(&self, id: &ProviderId) -> Option<&Holders> {
        self.provider_ids.get(id)
    }

    /// The Machines with bootstrap data whose `KubeadmConfig` was not read yet, those without a Node first.
    pub(super) fn unread(&self) -> impl Iterator<Item = (HasNode, &Machine)> {
        let machine =
            |(has_node, name): &(HasNode, String)| Some((*has_node, self.machines.get(name)?));
        self.unread.iter().filter_map(machine)
    }

    /// Whether any Machine calls its pool this.
    pub(super) fn has_machines_of(&self, pool: &str) -> bool {
        self.pool_machines.contains_key(pool)
    }

    fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.pools.is_empty()
    }
}

/// The name of the `KubeadmConfig`, if that is what is referred to.
fn config_name(config: Option<&Reference>) -> Option<&String> {
    config
        .filter(|config| BootstrapConfig::is_one(config))
        .map(|config| &config.name)
}

impl Stored for Cluster {
    fn put(self, key: ObjectKey, store: &mut Store) {
        store.clusters.insert(key, self);
    }

    fn forget(key: &ObjectKey, store: &mut Store) {
        store.clusters.remove(key);
    }

    fn keys(store: &Store) -> BTreeSet<ObjectKey> {
        store.clusters.keys().cloned().collect()
    }
}

impl Stored for Machine {
    fn put(self, key: ObjectKey, store: &mut Store) {
        let before = remove_machine(&key, store);
        let cluster = ObjectKey::new(key.namespace.as_str(), self.cluster.as_str());
        let members = store.members.entry(cluster.clone()).or_default();
        if let Some(id) = &self.provider_id {
            let holders = members.provider_ids.entry(id.clone()).or_default();
            holders.machines.insert(key.name.clone());
        }
        if let Some(config) = config_name(self.config.as_ref()) {
            let holders = members.configs.entry(config.clone()).or_default();
            holders.machines.insert(key.name.clone());
            let config = ObjectKey::new(key.namespace.as_str(), config.as_str());
            if self.has_bootstrap_data && !store.configs.contains_key(&config) {
                members
                    .unread
                    .insert((self.node.is_some(), key.name.clone()));
            }
        }
        for name in self.names().filter(|name| *name != key.name) {
            let digest = members.digest.hash_one(name);
            members.known_by.insert((digest, key.name.clone()));
        }
        if let Some(pool) = &self.pool {
            let count = members.pool_machines.entry(pool.clone()).or_default();
            *count = count.saturating_add(1);
        }
        members.machines.insert(key.name.clone(), self);
        store.machine_clusters.insert(key, cluster);
        if let Some((cluster, machine)) = before {
            store.release_config(&cluster, config_name(machine.config.as_ref()));
        }
    }

    fn forget(key: &ObjectKey, store: &mut Store) {
        if let Some((cluster, machine)) = remove_machine(key, store) {
            store.release_config(&cluster, config_name(machine.config.as_ref()));
        }
    }

    fn keys(store: &Store) -> BTreeSet<ObjectKey> {
        store.machine_clusters.keys().cloned().collect()
    }
}

/// Removes a Machine, and returns it with its cluster. Its `KubeadmConfig` stays.
fn remove_machine(key: &ObjectKey, store: &mut Store) -> Option<(ObjectKey, Machine)> {
    let cluster = store.machine_clusters.remove(key)?;
    let members = store.members.get_mut(&cluster)?;
    let machine = members.machines.remove(&key.name)?;
    for name in machine.names() {
        let digest = members.digest.hash_one(name);
        members.known_by.remove(&(digest, key.name.clone()));
    }
    for has_node in [false, true] {
        members.unread.remove(&(has_node, key.name.clone()));
    }
    if let Some(pool) = &machine.pool
        && let Some(count) = members.pool_machines.get_mut(pool)
    {
        *count = count.saturating_sub(1);
        if *count == 0 {
            members.pool_machines.remove(pool);
        }
    }
    let without = |holders: &mut Holders| holders.machines.remove(&key.name);
    if let Some(id) = &machine.provider_id {
        leave(&mut members.provider_ids, id, without);
    }
    if let Some(config) = config_name(machine.config.as_ref()) {
        leave(&mut members.configs, config, without);
    }
    if members.is_empty() {
        store.members.remove(&cluster);
    }
    Some((cluster, machine))
}

impl Stored for MachinePool {
    fn put(self, key: ObjectKey, store: &mut Store) {
        let before = remove_pool(&key, store);
        let cluster = ObjectKey::new(key.namespace.as_str(), self.cluster.as_str());
        let members = store.members.entry(cluster.clone()).or_default();
        for id in &self.provider_ids {
            let holders = members.provider_ids.entry(id.clone()).or_default();
            holders.pools.insert(key.name.clone());
        }
        if let Some(config) = config_name(self.config.as_ref()) {
            let holders = members.configs.entry(config.clone()).or_default();
            holders.pools.insert(key.name.clone());
        }
        members.pools.insert(key.name.clone(), self);
        store.pool_clusters.insert(key, cluster);
        if let Some((cluster, pool)) = before {
            store.release_config(&cluster, config_name(pool.config.as_ref()));
        }
    }

    fn forget(key: &ObjectKey, store: &mut Store) {
        if let Some((cluster, pool)) = remove_pool(key, store) {
            store.release_config(&cluster, config_name(pool.config.as_ref()));
        }
    }

    fn keys(store: &Store) -> BTreeSet<ObjectKey> {
        store.pool_clusters.keys().cloned().collect()
    }
}

/// Removes a pool, and returns it with its cluster. Its `KubeadmConfig` stays.
fn remove_pool(key: &ObjectKey, store: &mut Store) -> Option<(ObjectKey, MachinePool)> {
    let cluster = store.pool_clusters.remove(key)?;
    let members = store.members.get_mut(&cluster)?;
    let pool = members.pools.remove(&key.name)?;
    let without = |holders: &mut Holders| holders.pools.remove(&key.name);
    for id in &pool.provider_ids {
        leave(&mut members.provider_ids, id, without);
    }
    if let Some(config) = config_name(pool.config.as_ref()) {
        leave(&mut members.configs, config, without);
    }
    if members.is_empty() {
        store.members.remove(&cluster);
    }
    Some((cluster, pool))
}

/// Has one holder leave what it held, and forgets what nobody holds.
fn leave<K: Eq + std::hash::Hash>(
    held: &mut HashMap<K, Holders>,
    what: &K,
    without: impl Fn(&mut Holders) -> bool,
) {
    if let Some(holders) = held.get_mut(what) {
        without(holders);
        if holders.is_empty() {
            held.remove(what);
        }
    }
}

fn written_name(config: &ObjectKey, name: &NodeName) -> (String, String, String) {
    let ObjectKey {
        namespace,
        name: config,
    } = config.clone();
    (namespace, name.as_str().to_owned(), config)
}
