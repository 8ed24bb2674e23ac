//! A cache of the watched objects.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kube::Client;
use kube::api::Api;
use kube::core::ApiResource;
use kube::core::response::reason;
use parking_lot::{Mutex, RwLock};
use serde::de::Error as _;
use tokio::sync::{OnceCell, Semaphore, watch};

use super::api_discovery::referred;
use super::objects::{
    BootstrapConfig, Cluster, Kept, Machine, MachinePool, ObjectKey, Raw, Reference, Watched as _,
};
use super::store::Store;
use super::watch::{Selection, watch_all};
use crate::metrics::Metrics;
use crate::watch::Heard;

/// A cache of Cluster API's objects.
///
/// # Guarantees
///
/// - Nothing is answered before every kind was listed once: what is missing is then not there.
/// - An API server that is away changes nothing; what it last told holds until it is back. Whoever decides by it asks
///   which kind was not heard of.
/// - Only the fields that are used are kept, and no secret.
#[derive(derive_more::Debug, Clone)]
#[debug("Objects")]
pub struct Objects(Arc<Inner>);

struct Inner {
    client: Client,
    selection: Selection,
    state: RwLock<State>,
    /// The watches of [`KINDS`].
    heard: [Heard; 3],
    resources: Mutex<HashMap<Kind, Lookup>>,
    changes: watch::Sender<()>,
    cluster_changes: watch::Sender<()>,
    /// By Cluster, for its waiters.
    of_cluster: Mutex<HashMap<ObjectKey, watch::Sender<()>>>,
    slow_reads: Semaphore,
}

/// The limit of clusters whose [slow reads](Objects::read_slowly) run at a time.
const SLOW_READS: usize = 4;

/// The lookup of a kind: its resource, or `None` if it is not served.
type Lookup = Arc<OnceCell<Option<ApiResource>>>;

/// A group, a version where the reference has one, and a kind.
type Kind = (String, Option<String>, String);

#[derive(Default)]
pub(super) struct State {
    pub(super) store: Store,
    /// The kinds that were listed.
    listed: BTreeSet<&'static str>,
    /// The version in which Clusters are watched, with its group.
    cluster_version: Option<String>,
}

/// The kinds that must be listed first.
const KINDS: [&str; 3] = [Cluster::KIND, Machine::KIND, MachinePool::KIND];

impl Objects {
    /// The objects that `selection` has on the management cluster that `client` speaks to; and their watches, which
    /// never end. Nothing is known of the objects while these do not run.
    pub fn new(
        client: Client,
        selection: Selection,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let objects = Self(Arc::new(Inner {
            client,
            selection: selection.clone(),
            state: RwLock::default(),
            heard: Default::default(),
            resources: Mutex::default(),
            changes: watch::Sender::default(),
            cluster_changes: watch::Sender::default(),
            of_cluster: Mutex::default(),
            slow_reads: Semaphore::new(SLOW_READS),
        }));
        let watches = watch_all(objects.clone(), selection, metrics.clone());
        (objects, watches)
    }

    /// Whether everything was listed once.
    pub fn is_ready(&self) -> bool {
        self.read(State::is_ready)
    }

    /// A kind whose watch was not heard of for a minute.
    pub(super) fn unheard(&self) -> Option<&'static str> {
        let mut kinds = KINDS.iter().zip(&self.0.heard);
        let unheard = kinds.find(|(_, heard)| !heard.is_recent());
        unheard.map(|(kind, _)| *kind)
    }

    /// Notes an answer of the API server on the watch of this kind.
    pub(super) fn heard(&self, kind: &'static str) {
        let mut kinds = KINDS.iter().zip(&self.0.heard);
        if let Some((_, heard)) = kinds.find(|(known, _)| **known == kind) {
            heard.now();
        }
    }

    /// Changes whenever an object or readiness does.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Changes whenever a Cluster or readiness does.
    pub(crate) fn cluster_changes(&self) -> watch::Receiver<()> {
        self.0.cluster_changes.subscribe()
    }

    /// Changes whenever this Cluster or readiness does.
    pub(crate) fn changes_of(&self, cluster: &ObjectKey) -> watch::Receiver<()> {
        let mut waiting = self.0.of_cluster.lock();
        if !waiting.contains_key(cluster) && waiting.len() == waiting.capacity() {
            // Entries of deleted clusters make room before the map grows.
            waiting.retain(|_, sender| !sender.is_closed());
        }
        let sender = waiting.entry(cluster.clone()).or_default();
        sender.subscribe()
    }

    /// Notifies the waiters for this Cluster.
    pub(super) fn cluster_changed(&self, cluster: &ObjectKey) {
        self.0.cluster_changes.send_replace(());
        let mut waiting = self.0.of_cluster.lock();
        if let Some(sender) = waiting.get(cluster)
            && sender.send(()).is_err()
        {
            waiting.remove(cluster);
        }
    }

    /// Notifies the waiters for all Clusters.
    fn all_clusters_changed(&self) {
        self.0.cluster_changes.send_replace(());
        self.0
            .of_cluster
            .lock()
            .retain(|_, sender| sender.send(()).is_ok());
    }

    /// The selected Clusters, in order; none before [`Objects::is_ready`].
    pub fn clusters(&self) -> Vec<(ObjectKey, Cluster)> {
        let clusters = self.store(|store| {
            let all = store.clusters.iter();
            let selected = all.filter(|(_, cluster)| self.selects(cluster));
            let selected = selected.map(|(key, cluster)| (key.clone(), cluster.clone()));
            selected.collect()
        });
        clusters.unwrap_or_default()
    }

    /// A selected Cluster; `None` where there is none, or before [`Objects::is_ready`].
    pub fn cluster(&self, key: &ObjectKey) -> Option<Cluster> {
        self.any_cluster(key)
            .filter(|cluster| self.selects(cluster))
    }

    /// A Cluster, selected or not; `None` where there is none, or before [`Objects::is_ready`].
    pub(crate) fn any_cluster(&self, key: &ObjectKey) -> Option<Cluster> {
        self.store(|store| store.clusters.get(key).cloned())?
    }

    /// The API version in which Clusters are watched, with its group: one that is served. An owner reference in a version
    /// that is not served keeps its object from being deleted.
    pub(crate) fn cluster_version(&self) -> Option<String> {
        self.read(|state| state.cluster_version.clone())
    }

    /// Notes this version.
    pub(super) fn watches_clusters_in(&self, version: &str) {
        self.write(|state| state.cluster_version = Some(version.to_owned()));
        self.0.cluster_changes.send_replace(());
    }

    /// Whether the watch filter selects this Cluster.
    pub(crate) fn selects(&self, cluster: &Cluster) -> bool {
        self.0.selection.has_label(Some(&cluster.labels))
    }

    /// The result of `look`; `None` before [`Objects::is_ready`].
    pub(super) fn store<T>(&self, look: impl FnOnce(&Store) -> T) -> Option<T> {
        self.read(|state| state.is_ready().then(|| look(&state.store)))
    }

    /// Keeps a `KubeadmConfig` that was read for this cluster.
    pub(super) fn keep_config(&self, cluster: &ObjectKey, name: &str, config: BootstrapConfig) {
        self.write(|state| {
            if let Some(members) = state.store.members.get_mut(cluster) {
                members.keep_config(name, config);
            }
        });
    }

    /// Runs reads of low priority; those of few clusters run at a time.
    pub(super) async fn read_slowly<T>(&self, reads: impl Future<Output = T>) -> T {
        // The semaphore is never closed.
        let _permit = self.0.slow_reads.acquire().await;
        reads.await
    }

    pub(super) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Reads an object that is referred to from `namespace`; `None` where it is not there.
    pub(super) async fn fetch<K: Kept>(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<K>, kube::Error> {
        let Some(resource) = self.resource(reference).await? else {
            return Ok(None);
        };
        let client = self.0.client.clone();
        let api: Api<Raw<K>> = Api::namespaced_with(client, namespace, &resource);
        let found = match api.get(&reference.name).await {
            Ok(found) => found,
            Err(kube::Error::Api(status)) if status.reason == reason::NOT_FOUND => return Ok(None),
            Err(error) => {
                // The API server does not serve the version any more: the 404 is about no object.
                if matches!(&error, kube::Error::Api(status) if status.code == 404) {
                    self.forget(&kind_of(reference));
                }
                return Err(error);
            }
        };
        let kept = found.kept();
        kept.map_err(|error| kube::Error::SerdeError(serde_json::Error::custom(error)))
    }

    /// The resource that this reference is to; `None` where the API server has none such.
    pub async fn resource(
        &self,
        reference: &Reference,
    ) -> Result<Option<ApiResource>, kube::Error> {
        let kind = kind_of(reference);
        let lookup = self.lookup(kind.clone());
        // Concurrent callers share one lookup.
        let found = lookup.get_or_try_init(|| referred(&self.0.client, reference));
        let found = found.await.cloned();
        if !matches!(found, Ok(Some(_))) {
            // The kind may be served later.
            let mut resources = self.0.resources.lock();
            if resources
                .get(&kind)
                .is_some_and(|own| Arc::ptr_eq(own, &lookup))
            {
                resources.remove(&kind);
            }
        }
        found
    }

    /// Has the next caller look the kind up again.
    fn forget(&self, kind: &Kind) {
        self.0.resources.lock().remove(kind);
    }

    fn lookup(&self, kind: Kind) -> Lookup {
        let mut resources = self.0.resources.lock();
        if !resources.contains_key(&kind) && resources.len() == resources.capacity() {
            // Lookups that were dropped make room before the map grows.
            resources.retain(|_, lookup| lookup.initialized() || Arc::strong_count(lookup) > 1);
        }
        resources.entry(kind).or_default().clone()
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.0.state.read())
    }

    /// The result of `look`, before readiness too.
    #[cfg(test)]
    pub(super) fn kept<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        self.read(|state| look(&state.store))
    }

    pub(super) fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.state.write();
        let changed = change(&mut state);
        drop(state);
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
