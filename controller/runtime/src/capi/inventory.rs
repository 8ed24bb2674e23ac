//! The machines of one Cluster.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::ApiResource;
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::{Inventory, Machine, Naming, TokenOwner};
use node_attestation_core::pace::yield_now;
use node_attestation_core::refusal::Unavailable;

use super::api_discovery::FetchError;
use super::cache::Objects;
use super::objects::{
    self, Attested, BootstrapConfig, InfraMachine, InfraMachinePool, ObjectKey, Reference,
};
use crate::shared::Turnstile;

mod fetched;
mod known;
mod names;
mod nodes;
mod recent;
mod tokens;
mod view;

use fetched::{Undecoded, unread};
pub(crate) use known::{KnownMachine, TokenMachine};
use recent::Recent;
use view::{Need, Needed, PageEnds, View, waiting};

/// The machines of one Cluster, from Cluster API objects.
///
/// # Guarantees
///
/// - Each answer about one machine is a consistent snapshot that is at most one minute old. For a paused Cluster, the
///   inventory is unavailable.
/// - The cost of an answer about one machine does not grow with the number of objects. Iteration over all Machines is
///   paged.
/// - If two machines have the same provider ID, the result is an error.
/// - If a limit truncates a pool, a lookup without a result is an error, because the pool has unknown members.
#[derive(Debug, Clone)]
pub struct CapiInventory {
    pub(super) objects: Objects,
    pub(super) cluster: ObjectKey,
    /// For each `InfraMachinePool`, whether its provider creates Machines for the members.
    makes_machines: Arc<Recent<bool>>,
    undecoded: Arc<Undecoded>,
    /// Held while `KubeadmConfig`s are read, so that concurrent requests for the Cluster share one read. The value is
    /// the place of the next page, so that unreadable configs do not delay other configs.
    reading: Arc<Turnstile<PageEnds>>,
}

/// The result of a lookup, with a page of the unread `KubeadmConfig`s that it needs.
struct Page<T> {
    unread: BTreeSet<Reference>,
    found: T,
    /// Whether the page begins with the first unread `KubeadmConfig`.
    is_whole: bool,
}

/// The maximum number of concurrent reads for one cluster.
const READS: usize = 8;

/// The maximum number of `KubeadmConfig`s in one batch of reads.
const UNREAD_AT_ONCE: usize = 64;

/// The maximum number of read batches for one answer. Together, the batches cover more `KubeadmConfig`s than any
/// cluster has.
const MAX_READS: usize = 1024;

/// The maximum number of lookups for one answer. After each lookup, the objects that were missing are read. Several
/// lookups are necessary, because new Machines can appear between them.
const MAX_LOOKS: usize = 4;

impl CapiInventory {
    /// Creates the inventory of this Cluster.
    pub fn new(objects: Objects, cluster: ObjectKey) -> Self {
        Self {
            objects,
            cluster,
            makes_machines: Arc::default(),
            undecoded: Arc::default(),
            reading: Arc::default(),
        }
    }

    /// A `MachinePool` or a Machine with unknown data, and the limit that truncated it. Also `None` while the inventory
    /// is unavailable.
    pub(crate) fn unknown_members(&self) -> Option<String> {
        let cut = self.look(|view| Ok(view.knows_all_names().err()));
        cut.ok()?.map(|cut| cut.to_string())
    }

    /// The objects of this Cluster that cannot be read, as in [`Objects::unreadable_members`].
    pub(crate) fn unreadable_members(&self) -> Option<String> {
        self.objects.unreadable_members(&self.cluster)
    }

    /// The API version in which Clusters are watched, with its group.
    pub(crate) fn cluster_version(&self) -> Option<String> {
        self.objects.cluster_version()
    }

    /// The Machines whose nodes need their own bootstrap token to rejoin.
    ///
    /// `None` while the inventory is unavailable. Excludes pool members, because they rejoin with the pool's token.
    /// Also excludes Machines with a token that an operator assigned, because they rejoin with that token.
    pub(crate) async fn token_machines(&self) -> Option<Vec<TokenMachine>> {
        let of = |view: View<'_>, name: &str, machine: &objects::Machine| {
            let is_own = machine.pool.is_none() && machine.assigned_token.is_none();
            (is_own && !machine.deleting).then_some(())?;
            Some(TokenMachine {
                name: name.to_owned(),
                token: view.config(machine)?.token.clone()?,
                provider_id: machine.provider_id.clone(),
                has_node: machine.node.is_some(),
            })
        };
        self.each(of).await.ok()
    }

    /// The Machines for which `chosen` returns a value. `None` while the inventory is unavailable.
    pub(crate) async fn chosen_machines<T>(
        &self,
        chosen: impl Fn(KnownMachine<'_>) -> Option<T>,
    ) -> Option<Vec<(ObjectReference, T)>> {
        let of = |view: View<'_>, name: &str, machine: &objects::Machine| {
            let chosen = chosen(KnownMachine {
                name,
                provider_id: machine.provider_id.as_ref()?,
                node: machine.node.as_ref(),
                attested: machine.attested,
            })?;
            Some((view.reference("Machine", name, &machine.uid), chosen))
        };
        self.each(of).await.ok()
    }

    /// Applies `next` to this Machine's condition. `None` if the Machine does not exist, or if the inventory is
    /// unavailable.
    pub(crate) fn by_condition<T>(
        &self,
        machine: &ObjectReference,
        next: impl FnOnce(Option<Attested>) -> Option<T>,
    ) -> Option<T> {
        let name = machine.name.as_deref()?;
        let of = |view: View<'_>| {
            let found = view.members.machines.get(name);
            let found = found.filter(|found| machine.uid.as_ref() == Some(&found.uid));
            Ok(found.and_then(|found| next(found.attested)))
        };
        self.look(of).ok()?
    }

    /// Makes a call about a Machine, like [`Objects::call_served`].
    pub(crate) async fn call_about_machine<T, C>(
        &self,
        call: impl FnOnce(ApiResource) -> C,
    ) -> kube::Result<T>
    where
        C: Future<Output = kube::Result<T>>,
    {
        let reference = Reference {
            group: objects::CORE_GROUP.to_owned(),
            version: None,
            kind: "Machine".to_owned(),
            name: String::new(),
        };
        let called = self
            .objects
            .call_served(&self.cluster.namespace, &reference, call);
        called.await.map_err(kube::Error::from)
    }

    /// Applies `of` to each Machine, page by page. First reads the `KubeadmConfig`s that `of` needs. If any of them
    /// cannot be decoded, also returns the error for one of them.
    async fn find_each<T>(
        &self,
        of: impl Fn(View<'_>, &str, &objects::Machine) -> Option<T>,
    ) -> Result<(Vec<T>, Option<Unavailable>), Unavailable> {
        let (mut all, mut undecoded, mut last) = (Vec::new(), None, None::<String>);
        loop {
            let next = self.find_readable(|view| Ok(view.next_machines(last.as_deref(), &of)));
            let ((found, next), error) = next.await?;
            all.extend(found);
            undecoded = undecoded.or(error);
            if next.is_none() {
                return Ok((all, undecoded));
            }
            last = next;
            yield_now().await;
        }
    }

    /// Applies `of` to each Machine in the cache, and returns the results. Other tasks run after each page.
    async fn each<T>(
        &self,
        of: impl Fn(View<'_>, &str, &objects::Machine) -> Option<T>,
    ) -> Result<Vec<T>, Unavailable> {
        let (mut all, mut last) = (Vec::new(), None::<String>);
        loop {
            let next = self.look(|view| Ok(view.next_machines(last.as_deref(), &of)));
            let (found, next) = next?;
            all.extend(found);
            if next.is_none() {
                return Ok(all);
            }
            last = next;
            yield_now().await;
        }
    }

    /// Returns the result of `look`, after reading the `KubeadmConfig`s that `look` needs.
    async fn find<T>(
        &self,
        look: impl Fn(View<'_>) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        match self.find_readable(look).await? {
            (found, None) => Ok(found),
            (_, Some(undecoded)) => Err(undecoded),
        }
    }

    /// Like [`find`](Self::find), but skips `KubeadmConfig`s that cannot be decoded. Returns the error for one of them
    /// if the result can depend on it. A `KubeadmConfig` that the result does not depend on delays only its owner.
    async fn find_readable<T>(
        &self,
        look: impl Fn(View<'_>) -> Result<T, Unavailable>,
    ) -> Result<(T, Option<Unavailable>), Unavailable> {
        let mut undecoded = BTreeMap::new();
        for _ in 0..MAX_LOOKS {
            let (unread, found) = self.needed((1, Instant::now()), &look)?;
            if unread.is_empty() {
                return Ok((found, None));
            }
            // The result contains copies of a tenant's objects, and a tenant can prolong the wait.
            drop(found);
            let mut places = self.reading.lock().await;
            // Reads each config that is due, unless another call has already read it.
            let now = Instant::now();
            for _ in 0..MAX_READS {
                let mut page = self.next_page((UNREAD_AT_ONCE, now), &mut places, &look)?;
                drop(page.found);
                page.unread.retain(|config| !undecoded.contains_key(config));
                if page.unread.is_empty() {
                    if page.is_whole {
                        break;
                    }
                } else {
                    undecoded.extend(self.read(page.unread).await?);
                }
                // The next call continues with the next page.
                if undecoded.len() >= UNREAD_AT_ONCE {
                    break;
                }
            }
            if undecoded.is_empty() {
                continue;
            }
            let (unread, found) = self.needed((1, now), &look)?;
            if !unread.is_empty()
                && let Some((_, error)) = undecoded.pop_first()
            {
                return Ok((found, Some(error)));
            }
        }
        Ok((self.look(look)?, None))
    }

    /// Reads these `KubeadmConfig`s. Returns the errors for the `KubeadmConfig`s that cannot be decoded, and keeps
    /// these unread.
    async fn read(
        &self,
        configs: impl IntoIterator<Item = Reference>,
    ) -> Result<Vec<(Reference, Unavailable)>, Unavailable> {
        let reads = stream::iter(configs).map(|config| async move {
            let Err(error) = self.try_read(&config).await else {
                return Ok(None);
            };
            let told = unread(&config, &error);
            match error {
                FetchError::Call(kube::Error::SerdeError(_)) => Ok(Some((config, told))),
                FetchError::Call(_) | FetchError::NotServed(_) => Err(told),
            }
        });
        let reads = reads.buffer_unordered(READS);
        let undecoded: Vec<Option<_>> = reads.try_collect().await?;
        Ok(undecoded.into_iter().flatten().collect())
    }

    async fn try_read(&self, config: &Reference) -> Result<(), FetchError> {
        let found = match self.try_fetch::<BootstrapConfig>(config).await {
            Ok(found) => Ok(found),
            // A tenant can write any version into a reference, so this error affects only the machines that have the
            // reference.
            Err(FetchError::NotServed(error)) => Err(error),
            Err(error @ FetchError::Call(_)) => return Err(error),
        };
        self.objects.read_config(&self.cluster, &config.name, found);
        Ok(())
    }

    /// Applies `look` to the objects in the cache.
    fn look<T>(
        &self,
        look: impl FnOnce(View<'_>) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        Ok(self.needed((1, Instant::now()), look)?.1)
    }

    /// Applies `look`, and also returns the unread `KubeadmConfig`s that it currently needs, up to a limit.
    fn needed<T>(
        &self,
        limit_and_now: (usize, Instant),
        look: impl FnOnce(View<'_>) -> Result<T, Unavailable>,
    ) -> Result<(BTreeSet<Reference>, T), Unavailable> {
        let page = self.next_page(limit_and_now, &mut PageEnds::new(), look)?;
        Ok((page.unread, page.found))
    }

    /// Like [`needed`](Self::needed), but begins after `places`, and then sets `places` to the ends of this page.
    fn next_page<T>(
        &self,
        (limit, now): (usize, Instant),
        places: &mut PageEnds,
        look: impl FnOnce(View<'_>) -> Result<T, Unavailable>,
    ) -> Result<Page<T>, Unavailable> {
        let needed = Needed {
            now,
            limit,
            places: RefCell::new(take(places)),
            is_whole: Cell::new(true),
            configs: RefCell::default(),
        };
        let cluster = &self.cluster;
        let found = self.objects.look(cluster, |known, members| {
            let Some(facts) = known.filter(|facts| self.objects.selects(facts)) else {
                let why = format!("Cluster {cluster} does not exist in the management cluster");
                return Err(Unavailable::new(why));
            };
            if facts.paused {
                return Err(Unavailable::new(format!("Cluster {cluster} is paused")));
            }
            look(View::new(cluster, members, &needed))
        });
        let found = found.unwrap_or_else(|| {
            let why = "the management cluster's objects have not been listed yet";
            Err(Unavailable::new(why))
        })?;
        if let Some(kind) = self.objects.unheard() {
            return Err(Unavailable::new(format!("the watch of {kind}s is delayed")));
        }
        *places = needed.places.into_inner();
        Ok(Page {
            unread: needed.configs.into_inner(),
            found,
            is_whole: needed.is_whole.get(),
        })
    }

    /// Whether the provider of this `InfraMachinePool` creates Machines. The result is cached, because a sweep calls
    /// this function for each member.
    async fn makes_machines(&self, reference: &Reference) -> Result<bool, Unavailable> {
        if let Some(makes) = self.makes_machines.get(reference) {
            return Ok(makes);
        }
        self.makes_machines.clean();
        let pool: Option<InfraMachinePool> = self.fetch(reference).await?;
        let makes = pool.is_some_and(|pool| pool.has_machines);
        self.makes_machines.note(reference.clone(), makes);
        Ok(makes)
    }
}

#[async_trait::async_trait]
impl Inventory for CapiInventory {
    /// If the pool's infrastructure provider creates Machines, a member without a Machine is pending. Such members
    /// exist, because after an upgrade, the provider can start to create Machines for an existing pool.
    async fn by_provider_id(&self, id: &ProviderId) -> Result<Option<Machine>, Unavailable> {
        let found = self.find(|view| view.by_provider_id(id)).await?;
        let Some((mut machine, makes_machines)) = found else {
            return Ok(None);
        };
        if let Some(reference) = makes_machines
            && self.makes_machines(&reference).await?
        {
            machine.state = waiting(machine.state);
        }
        Ok(Some(machine))
    }

    /// If the machine has no provider ID, its `InfraMachine` is read for the ID.
    async fn by_token(&self, token: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        let owner = |need| {
            self.find_readable(move |view| {
                let owner = view.owner(token);
                if owner.is_none() {
                    view.need(need);
                }
                Ok(owner)
            })
        };
        // Most tokens belong to a machine that is joining. After a reset, the token might belong to any machine. A pool
        // might have a new token.
        let (mut found, mut undecoded) = (None, None);
        for need in [Need::Joining, Need::All, Need::Pools] {
            if found.is_none() {
                let (owner, error) = owner(need).await?;
                found = owner;
                undecoded = undecoded.or(error);
            }
        }
        let Some((mut owner, infrastructure)) = found else {
            // The token can belong to the owner of the unreadable configuration.
            return undecoded.map_or(Ok(None), Err);
        };
        if let TokenOwner::Machine(machine) = &mut owner
            && machine.provider_id.is_none()
            && let Some(reference) = infrastructure
            && let Some(found) = self.fetch::<InfraMachine>(&reference).await?
        {
            if let Some(id) = &found.provider_id {
                self.look(|view| view.is_free(id, machine))?;
            }
            machine.provider_id = found.provider_id;
            machine.unnamed = found.unnamed;
        }
        Ok(Some(owner))
    }

    async fn by_address(&self, address: IpAddr) -> Result<Vec<Machine>, Unavailable> {
        self.find(|view| view.by_address(address)).await
    }

    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable> {
        self.find(|view| view.by_name(name)).await
    }

    async fn by_machine_name(&self, name: &str) -> Result<Option<Machine>, Unavailable> {
        let found = self.find(|view| {
            let found = view.members.machines.get(name);
            Ok(found.map(|machine| view.machine(name, machine)))
        });
        found.await
    }

    fn was_deleted(&self, name: &str) -> bool {
        let key = ObjectKey::new(self.cluster.namespace.as_str(), name);
        self.objects.departures().has(&key)
    }

    async fn naming(&self, machine: &Machine, asked: &NodeName) -> Result<Naming, Unavailable> {
        self.find(|view| view.naming(machine, asked)).await
    }
}

#[cfg(test)]
mod tests;
