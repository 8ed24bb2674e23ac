//! A cache of the watched objects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use kube::core::ApiResource;
use kube::core::response::reason;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::api_discovery::{FetchError, NotServed, referred};
use super::departures::Departures;
use super::lookups::{Kind, Lookups};
use super::objects::{
    BootstrapConfig, Cluster, ClusterObserver, Fields, Kept, Machine, MachinePool, MemberLimit,
    ObjectKey, Raw, Reference, Watched as _,
};
use super::selection::Selection;
use super::store::{Effect, Members, Store, Stored};
use crate::shared::{Lock, Shared, Swept, page};
use crate::turns::{FairTurns, TurnLimits};
use crate::watch::{Heard, ReadAlone, required_one_of};

/// A cache of Cluster API objects.
///
/// # Guarantees
///
/// - The cache does not return results before it has listed each kind once. After that, a missing object does not
///   exist.
/// - If the API server is unavailable, the cache keeps the last known objects. Before a decision that depends on them,
///   the caller must check that recent events have arrived for every kind.
/// - The cache keeps only the fields that are used, and no secrets.
#[derive(derive_more::Debug, Clone)]
#[debug("Objects")]
pub struct Objects(Arc<Inner>);

struct Inner {
    client: Client,
    selection: Selection,
    store: Store,
    departures: Departures,
    observer: Option<Arc<dyn ClusterObserver>>,
    state: Shared<State>,
    /// The state of the watch for each of [`KINDS`].
    heard: [Heard; 3],
    resources: Lookups<ApiResource>,
    changes: watch::Sender<()>,
    cluster_changes: watch::Sender<()>,
    /// For each Cluster, the sender that notifies the waiting tasks.
    of_cluster: Shared<Swept<ObjectKey, watch::Sender<()>>>,
    slow_reads: FairTurns,
}

/// The limit on the number of clusters that run [slow reads](Objects::read_slowly) at the same time.
const SLOW_READS: TurnLimits = TurnLimits {
    all: 4,
    of_cluster: 1,
};

/// The deadline for the slow reads in one turn. The reads wait in their namespace's queue, and all clusters share the
/// turns. 50 reads take about a second.
const SLOW_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct State {
    /// The kinds that were listed.
    listed: BTreeSet<&'static str>,
    /// The API version, with its group, in which Clusters are watched.
    cluster_version: Option<String>,
}

/// The kinds that must be listed before the cache is ready.
const KINDS: [&str; 3] = [Cluster::KIND, Machine::KIND, MachinePool::KIND];

impl Objects {
    /// Creates a cache that no watch has filled yet. `observer` observes the Cluster watch.
    pub(super) fn empty(
        client: Client,
        selection: Selection,
        observer: Option<Arc<dyn ClusterObserver>>,
    ) -> Self {
        Self(Arc::new(Inner {
            client,
            selection,
            store: Store::default(),
            departures: Departures::default(),
            observer,
            state: Shared::new(Lock::Kinds, State::default()),
            heard: Default::default(),
            // If a version is no longer served, the next call detects it.
            resources: Lookups::new(Duration::MAX),
            changes: watch::Sender::default(),
            cluster_changes: watch::Sender::default(),
            of_cluster: Shared::new(Lock::ClusterWaiters, Swept::default()),
            slow_reads: FairTurns::new(SLOW_READS),
        }))
    }

    /// Whether each kind has been listed once.
    pub fn is_ready(&self) -> bool {
        self.read(State::is_ready)
    }

    /// Returns a kind for which no watch event arrived in the last minute.
    pub(super) fn unheard(&self) -> Option<&'static str> {
        let mut kinds = KINDS.iter().zip(&self.0.heard);
        let unheard = kinds.find(|(_, heard)| !heard.is_recent());
        unheard.map(|(kind, _)| *kind)
    }

    /// Records that the objects of this kind are current.
    pub(super) fn heard(&self, kind: &'static str) {
        self.heard_at(kind, Instant::now());
    }

    /// Records that the objects of this kind include all events that the API server sent until this time.
    pub(super) fn heard_at(&self, kind: &'static str, read: Instant) {
        let mut kinds = KINDS.iter().zip(&self.0.heard);
        if let Some((_, heard)) = kinds.find(|(known, _)| **known == kind) {
            heard.at(read);
        }
        if kind == Cluster::KIND
            && let Some(observer) = self.cluster_observer()
        {
            observer.heard();
        }
    }

    /// The observer of the Cluster watch.
    pub(super) fn cluster_observer(&self) -> Option<&dyn ClusterObserver> {
        self.0.observer.as_deref()
    }

    /// Notifies of each change to an object or to readiness.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Notifies of each change to a Cluster or to readiness.
    pub(crate) fn cluster_changes(&self) -> watch::Receiver<()> {
        self.0.cluster_changes.subscribe()
    }

    /// Notifies of each change to this Cluster or to readiness.
    pub(crate) fn changes_of(&self, cluster: &ObjectKey) -> watch::Receiver<()> {
        let key = cluster.clone();
        self.0.of_cluster.write(|waiting| {
            let is_dead = |_: &_, sender: &mut watch::Sender<()>| sender.is_closed();
            let sender = waiting.get_or_insert_with(key, is_dead, watch::Sender::default);
            sender.subscribe()
        })
    }

    /// Notifies the waiters for this Cluster.
    pub(super) fn cluster_changed(&self, cluster: &ObjectKey) {
        self.0.cluster_changes.send_replace(());
        self.0.of_cluster.write(|waiting| {
            if let Some(sender) = waiting.get(cluster)
                && sender.send(()).is_err()
            {
                waiting.remove(cluster);
            }
        });
    }

    /// Notifies the waiters for all Clusters.
    fn all_clusters_changed(&self) {
        self.0.cluster_changes.send_replace(());
        let mut last: Option<ObjectKey> = None;
        loop {
            let next = self.0.of_cluster.read(|waiting| {
                let next = page(waiting.entries(), last.as_ref());
                let told = next.map(|(cluster, sender)| {
                    // The send fails only if no task is waiting.
                    sender.send_replace(());
                    cluster
                });
                told.last().cloned()
            });
            if next.is_none() {
                return;
            }
            last = next;
        }
    }

    /// The selected Clusters, sorted. Empty until the cache [is ready](Objects::is_ready).
    pub fn clusters(&self) -> Vec<(ObjectKey, Cluster)> {
        let mut clusters = Vec::new();
        self.each_cluster(|key, cluster| clusters.push((key.clone(), cluster.clone())));
        clusters
    }

    /// Calls `look` for each selected Cluster, in sorted order. Has no effect until the cache [is
    /// ready](Objects::is_ready).
    pub(crate) fn each_cluster(&self, mut look: impl FnMut(&ObjectKey, &Cluster)) {
        let mut last = None;
        while self.is_ready() {
            let next = self.0.store.clusters_after(last.as_ref());
            last = next.last().map(|(key, _)| key.clone());
            if last.is_none() {
                return;
            }
            let selected = next.iter();
            let selected = selected.filter(|(_, cluster)| self.selects(cluster));
            selected.for_each(|(key, cluster)| look(key, cluster));
        }
    }

    /// The result of `look` for a selected Cluster. `None` if the Cluster does not exist, or until the cache [is
    /// ready](Objects::is_ready).
    pub(crate) fn with_cluster<T>(
        &self,
        key: &ObjectKey,
        look: impl FnOnce(&Cluster) -> T,
    ) -> Option<T> {
        let cluster = self.is_ready().then(|| self.0.store.cluster(key))??;
        self.selects(&cluster).then(|| look(&cluster))
    }

    /// A selected Cluster. `None` if the Cluster does not exist, or until the cache [is ready](Objects::is_ready).
    pub fn cluster(&self, key: &ObjectKey) -> Option<Cluster> {
        self.any_cluster(key)
            .filter(|cluster| self.selects(cluster))
    }

    /// A Cluster, regardless of the selection. `None` if the Cluster does not exist, or until the cache [is
    /// ready](Objects::is_ready).
    pub(crate) fn any_cluster(&self, key: &ObjectKey) -> Option<Cluster> {
        let cluster = self.is_ready().then(|| self.0.store.cluster(key))??;
        Some(Cluster::clone(&cluster))
    }

    /// The API version, with its group, in which Clusters are watched. Owner references use this version because it is
    /// served: an owner reference with an unserved version blocks the deletion of its object.
    pub(crate) fn cluster_version(&self) -> Option<String> {
        self.read(|state| state.cluster_version.clone())
    }

    /// Records the version in which Clusters are watched.
    pub(super) fn watches_clusters_in(&self, version: &str) {
        self.write(|state| state.cluster_version = Some(version.to_owned()));
        self.0.cluster_changes.send_replace(());
    }

    /// Whether the watch filter selects this Cluster.
    pub(crate) fn selects(&self, cluster: &Cluster) -> bool {
        let value = cluster.watch_filter.as_ref();
        self.0.selection.has_value(value)
    }

    /// Returns the result of `look` for a Cluster and its objects. `None` until the cache [is
    /// ready](Objects::is_ready).
    pub(super) fn look<T>(
        &self,
        cluster: &ObjectKey,
        look: impl FnOnce(Option<&Cluster>, &Members) -> T,
    ) -> Option<T> {
        self.is_ready().then(|| self.0.store.look(cluster, look))
    }

    /// Whether this Cluster exists, but none of its versions could be read.
    pub(crate) fn is_unreadable(&self, cluster: &ObjectKey) -> bool {
        let store = &self.0.store;
        store.has_unreadable(cluster) && store.cluster(cluster).is_none()
    }

    /// The first Cluster, Machine or `MachinePool` of this cluster that cannot be read, and the number of other objects
    /// that cannot be read. An object whose Cluster is unknown counts for each Cluster in its namespace. Also `None`
    /// until the cache [is ready](Objects::is_ready).
    pub(crate) fn unreadable_members(&self, cluster: &ObjectKey) -> Option<String> {
        let store = &self.0.store;
        let unread = self.is_ready().then(|| store.unreadable_members(cluster))?;
        unread.map(|unread| unread.to_string())
    }

    /// Stores the result of reading a `KubeadmConfig` for this cluster. `None` means that the `KubeadmConfig` does not
    /// exist.
    pub(super) fn read_config(
        &self,
        cluster: &ObjectKey,
        name: &str,
        config: Result<Option<BootstrapConfig>, NotServed>,
    ) {
        let now = std::time::Instant::now();
        self.0.store.read_config(cluster, name, config, now);
        self.0.changes.send_replace(());
    }

    /// Runs low-priority reads for this Cluster. Only a few clusters run them at the same time. Returns `None` after
    /// [`SLOW_DEADLINE`].
    pub(crate) async fn read_slowly<T>(
        &self,
        cluster: &ObjectKey,
        reads: impl Future<Output = T>,
    ) -> Option<T> {
        let _turn = self.0.slow_reads.line(cluster).turn().await;
        timeout(SLOW_DEADLINE, reads).await.ok()
    }

    pub(super) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Reads an object that is referenced from `namespace`. Returns `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the read failed, or if the API server does not serve the kind. In the second case, the
    /// object might still exist. A tenant who can write the reference can specify an unserved kind, so this error must
    /// affect only the object with the reference.
    pub(super) async fn fetch<K: Kept>(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<K>, FetchError>
    where
        Fields<K>: ReadAlone,
    {
        let called = self.call_served(namespace, reference, |resource| async move {
            let client = self.0.client.clone();
            let api: Api<Raw<K>> = Api::namespaced_with(client, namespace, &resource);
            match required_one_of(&api, &reference.name).await {
                Err(kube::Error::Api(status)) if status.reason == reason::NOT_FOUND => Ok(None),
                found => found.map(Some),
            }
        });
        let Some(found) = Box::pin(called).await? else {
            return Ok(None);
        };
        Ok(found.kept().map_err(kube::Error::from)?)
    }

    /// Makes a call about an object that is referenced from `namespace`, with the resource that the reference names.
    ///
    /// This is the only access to the resource, so no caller can mistake an unserved kind for a missing object. `call`
    /// is an ordinary closure, because the future of an `AsyncFnOnce` cannot be spawned.
    ///
    /// # Errors
    ///
    /// Returns an error if the call failed, if the API server does not serve the kind, or if it no longer serves the
    /// kind's version. The next call then looks up the kind again.
    pub(crate) async fn call_served<T, C>(
        &self,
        namespace: &str,
        reference: &Reference,
        call: impl FnOnce(ApiResource) -> C,
    ) -> Result<T, FetchError>
    where
        C: Future<Output = kube::Result<T>>,
    {
        let resource = self.resource(namespace, reference).await?;
        match call(resource.ok_or(NotServed)?).await {
            // The API server no longer serves the version. In this case, the 404 does not mean that the object is
            // missing.
            Err(kube::Error::Api(status))
                if status.code == 404 && status.reason != reason::NOT_FOUND =>
            {
                self.0.resources.forget(&kind_of(reference));
                Err(NotServed.into())
            }
            called => Ok(called?),
        }
    }

    /// The resource that this reference from `namespace` names. `None` if the API server does not serve it.
    async fn resource(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<ApiResource>, kube::Error> {
        let client = &self.0.client;
        let look_up = || Box::pin(referred((client, namespace), reference));
        let kind = kind_of(reference);
        self.0.resources.get(namespace, &kind, look_up).await
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        self.0.state.read(look)
    }

    /// The objects, even before the cache is ready.
    pub(super) fn store(&self) -> &Store {
        &self.0.store
    }

    /// The Machines whose deletion was observed.
    pub(super) fn departures(&self) -> &Departures {
        &self.0.departures
    }

    /// Stores an object, or removes it. If the object equals the stored object, no task is notified. Returns the limit
    /// that prevented storing a part of the object, if any.
    pub(super) fn put<W: Stored>(&self, key: &ObjectKey, object: Option<W>) -> Option<MemberLimit> {
        let Effect { is_change, cut } = W::put(&self.0.store, key, object);
        if is_change {
            self.0.changes.send_replace(());
            if W::IS_CLUSTER {
                self.cluster_changed(key);
            }
        }
        cut
    }

    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = self.0.state.write(change);
        self.0.changes.send_replace(());
        changed
    }

    pub(super) fn listed(&self, kind: &'static str) {
        self.heard(kind);
        let is_new = self.write(|state| state.listed.insert(kind));
        if is_new || kind == Cluster::KIND {
            self.all_clusters_changed();
        }
    }
}

impl State {
    fn is_ready(&self) -> bool {
        KINDS.iter().all(|kind| self.listed.contains(kind))
    }
}

fn kind_of(reference: &Reference) -> Kind {
    let Reference {
        group,
        version,
        kind,
        ..
    } = reference;
    (group.clone(), version.clone(), kind.clone())
}

#[cfg(test)]
mod tests;
