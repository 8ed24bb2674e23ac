//! A single watch for the records of many clusters.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::Event;
use kube::{Client, Resource as _, ResourceExt as _};
use node_attestation_core::crd::{CLUSTER_NAME_LABEL, NodeIdentity};
use tokio::time::Instant;

use super::cache::{Cache, Entry, RecordWatch, entry};
use super::index::{Index, IndexLimits, RecordPut};
use super::kube::KubeRecords;
use crate::capi::ObjectKey;
use crate::metrics::Metrics;
use crate::shared::{Lent, Loan, Lock, Shared, Swept, page};
use crate::table::Table;
use crate::watch::{
    Lenient, Recovery, RecoveryStep, Skipped, WatchLog, heard_config, listening, on_management,
    pages_of,
};

/// The `NodeIdentity` objects of many clusters, from one watch.
#[derive(derive_more::Debug, Clone)]
#[debug("RecordsWatch")]
pub struct RecordsWatch {
    client: Client,
    caches: Arc<Caches>,
    metrics: Metrics,
}

/// The caches for all clusters, keyed by the cluster's key.
struct Caches {
    clusters: Shared<Swept<ObjectKey, Lent<Cache>>>,
    watched: Arc<RecordWatch>,
}

/// The minimum time between two log lines about the limits of one namespace.
const BETWEEN_LINES: Duration = Duration::from_mins(10);

/// The additional state of the watch.
struct Watching {
    /// The objects that a list in progress has returned so far.
    listing: Listing,
    /// The cluster of each record.
    index: Index,
    limits: IndexLimits,
    /// The lists that recover records.
    recovery: Recovery<Lenient<NodeIdentity>>,
    /// The namespaces for which a log line about the limits was written recently.
    logged: HashMap<String, Instant>,
    skipped: Skipped,
}

/// A list in progress.
struct Listing {
    records: HashMap<ObjectKey, Table<Entry>>,
    index: Index,
}

impl RecordsWatch {
    /// Creates the records of all clusters, or of the clusters in `namespace`, if it is set.
    ///
    /// The returned future runs the watch, and never ends. The records are unknown until that future runs.
    ///
    /// The client's user needs permission to get, list, watch, create, patch and delete `nodeidentities`, and to patch
    /// their status.
    pub fn new(
        client: Client,
        namespace: Option<&str>,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        Self::selected(client, namespace, CLUSTER_NAME_LABEL, metrics)
    }

    /// Creates access to the records that have these labels, like [`new`](Self::new).
    pub(super) fn selected(
        client: Client,
        namespace: Option<&str>,
        labels: &str,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let caches = Arc::new(Caches::default());
        let mut watching = Watching::new(IndexLimits::of_process());
        let (measured, watched) = (metrics.watch("NodeIdentity"), caches.watched.clone());
        let log = WatchLog::new("NodeIdentity").measured_by(measured.clone());
        let listening = listening(client.clone(), move |read| {
            watched.heard.at(read);
            measured.heard();
        });
        let api: Api<Lenient<NodeIdentity>> = match namespace {
            Some(namespace) => Api::namespaced(listening, namespace),
            None => Api::all(listening),
        };
        let config = heard_config().labels(labels);
        let (told, mut log) = (caches.clone(), log);
        let events = on_management(api, config);
        let wanted = ListParams::default().labels(labels);
        let lists = client.clone();
        let watch = async move {
            let mut events = pin!(events);
            loop {
                tokio::select! {
                    step = watching.recovery.step() => match step {
                        RecoveryStep::Due(namespace) => {
                            let api: Api<Lenient<NodeIdentity>> =
                                Api::namespaced(lists.clone(), &namespace);
                            let pages = pages_of(api, wanted.clone());
                            watching.recovery.begin(namespace, pages);
                        }
                        RecoveryStep::Page(objects) => told.recovered(objects, &mut watching),
                        RecoveryStep::End => watching.plan_list(),
                    },
                    event = events.next() => {
                        let Some(event) = event else { return };
                        log.observe(&event, || {});
                        if let Ok(event) = event {
                            told.apply(event, &mut watching);
                        }
                    }
                }
            }
        };
        let records = Self {
            client,
            caches,
            metrics: metrics.clone(),
        };
        (records, watch)
    }

    /// The records of this cluster.
    pub fn of_cluster(&self, cluster: &ObjectKey) -> KubeRecords {
        let cache = self.caches.cache(cluster);
        KubeRecords::new(self.client.clone(), cluster, cache, self.metrics.clone())
    }
}

impl KubeRecords {
    /// Starts watching the records of the Cluster with this name in `namespace`. [`RecordsWatch::new`] watches the
    /// records of many Clusters.
    pub fn start(client: Client, namespace: &str, cluster: &str, metrics: &Metrics) -> Self {
        let (mut records, watch) = Self::of_one(client, namespace, cluster, metrics);
        records.run(watch);
        records
    }

    /// Creates the records of one Cluster, like [`start`](Self::start).
    ///
    /// The returned future runs the watch, and never ends. The records are unknown until that future runs.
    pub(crate) fn of_one(
        client: Client,
        namespace: &str,
        cluster: &str,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let label = format!("{CLUSTER_NAME_LABEL}={cluster}");
        let (records, watch) = RecordsWatch::selected(client, Some(namespace), &label, metrics);
        let records = records.of_cluster(&ObjectKey::new(namespace, cluster));
        (records, watch)
    }
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            clusters: Shared::new(Lock::RecordCaches, Swept::default()),
            watched: Arc::default(),
        }
    }
}

impl Watching {
    fn new(limits: IndexLimits) -> Self {
        Self {
            listing: Listing::new(limits),
            index: Index::new(limits),
            limits,
            recovery: Recovery::default(),
            logged: HashMap::new(),
            skipped: Skipped::new("NodeIdentity"),
        }
    }

    /// Plans to list a namespace, if there is now space for its records that were dropped.
    fn plan_list(&mut self) {
        self.recovery.plan(self.index.due());
    }

    /// Logs that a namespace has too many records, at most once per [`BETWEEN_LINES`].
    fn log_limit(&mut self, namespace: &str) {
        let now = Instant::now();
        self.logged
            .retain(|_, logged| now.duration_since(*logged) < BETWEEN_LINES);
        if self.logged.insert(namespace.to_owned(), now).is_none() {
            let IndexLimits {
                records, clusters, ..
            } = self.limits;
            tracing::warn!(
                namespace,
                records,
                clusters,
                "the namespace has too many node identities; the requests of the namespace wait"
            );
        }
    }
}

impl Listing {
    fn new(limits: IndexLimits) -> Self {
        Self {
            records: HashMap::new(),
            index: Index::new(limits),
        }
    }
}

impl Caches {
    fn apply(&self, event: Event<Lenient<NodeIdentity>>, watching: &mut Watching) {
        match event {
            Event::Init => {
                watching.listing = Listing::new(watching.limits);
                watching.recovery.stop();
                self.watched.heard.outdated();
            }
            Event::InitApply(object) => {
                let Some(cluster) = watching.cluster_of(&object) else {
                    return;
                };
                let Watching {
                    listing,
                    index: before,
                    skipped,
                    ..
                } = watching;
                let Listing { records, index } = listing;
                let name = name_of(&object);
                let RecordPut { is_kept, former } = index.put_listed(&cluster, name, before);
                if let Some(records) = former.and_then(|former| records.get_mut(&former)) {
                    records.remove(name);
                }
                if is_kept {
                    let (name, entry) = entry(&object, &cluster.name, skipped);
                    records.entry(cluster).or_default().put(&name, entry);
                }
            }
            Event::InitDone => {
                let listing = Listing::new(watching.limits);
                let Listing { mut records, index } =
                    std::mem::replace(&mut watching.listing, listing);
                let before = std::mem::replace(&mut watching.index, index);
                // The limits are set before the caches are updated, because a decision must not miss a known record.
                let over = watching.index.over_the_limit();
                let over: Vec<_> = over.map(|(namespace, _)| namespace.to_owned()).collect();
                for namespace in over {
                    self.set_limit(&namespace, watching);
                }
                // A cluster's records can arrive before a task requests them. The cache is kept until then.
                let _used: Vec<_> = records.keys().map(|key| self.cache(key)).collect();
                for (cluster, cache) in self.all() {
                    cache.replace(records.remove(&cluster).unwrap_or_default());
                }
                for (namespace, _) in before.over_the_limit() {
                    self.set_limit(namespace, watching);
                }
                watching.plan_list();
                // Waiting tasks are notified after all caches are updated, because they then read the caches.
                self.watched.heard.now();
                self.clusters
                    .retain(Swept::entries_mut, |key, cache| !is_dead(key, cache));
            }
            Event::Apply(object) => {
                let namespace = object.namespace().unwrap_or_default();
                watching.recovery.changed(&namespace, name_of(&object));
                self.put(&object, watching);
            }
            Event::Delete(object) => {
                let namespace = object.namespace().unwrap_or_default();
                watching.recovery.changed(&namespace, name_of(&object));
                if let Some(cluster) = watching.index.remove(&namespace, name_of(&object)) {
                    self.remove(&cluster, name_of(&object));
                }
                watching.plan_list();
                self.set_limit(&namespace, watching);
            }
        }
    }

    /// Stores a record, if the limits allow it.
    fn put(&self, object: &Lenient<NodeIdentity>, watching: &mut Watching) {
        let Some(cluster) = watching.cluster_of(object) else {
            return;
        };
        let name = name_of(object);
        let RecordPut { is_kept, former } = watching.index.put(&cluster, name);
        if let Some(former) = former {
            self.remove(&former, name);
        }
        if is_kept {
            let (name, entry) = entry(object, &cluster.name, &mut watching.skipped);
            self.cache(&cluster).put(&name, entry);
        }
        self.set_limit(&cluster.namespace, watching);
    }

    /// Stores the records on a page that were dropped earlier. The watch has the current state of all other records.
    fn recovered(&self, objects: Vec<Lenient<NodeIdentity>>, watching: &mut Watching) {
        for object in objects {
            let (namespace, name) = (object.namespace().unwrap_or_default(), name_of(&object));
            let is_dropped = watching.index.cluster_of(&namespace, name).is_none();
            if is_dropped && watching.recovery.is_current(&namespace, name) {
                self.put(&object, watching);
            }
        }
    }

    fn remove(&self, cluster: &ObjectKey, name: &str) {
        if let Some(cache) = self.known(cluster) {
            cache.remove(name);
        }
    }

    /// Updates whether this namespace has too many records.
    fn set_limit(&self, namespace: &str, watching: &mut Watching) {
        let is_over = watching.index.left_out(namespace) > 0;
        if self.watched.set_over_the_limit(namespace, is_over) && is_over {
            watching.log_limit(namespace);
        }
    }

    /// The cache of a cluster, if it exists.
    fn known(&self, cluster: &ObjectKey) -> Option<Loan<Cache>> {
        self.clusters
            .read(|clusters| clusters.get(cluster).map(Lent::lend))
    }

    fn cache(&self, cluster: &ObjectKey) -> Loan<Cache> {
        let new = || Lent::new(Cache::new(&cluster.namespace, self.watched.clone()));
        self.clusters.write(|clusters| {
            // Caches of deleted clusters are removed first.
            let cache = clusters.get_or_insert_with(cluster.clone(), is_dead, new);
            cache.lend()
        })
    }

    /// All caches.
    fn all(&self) -> Vec<(ObjectKey, Loan<Cache>)> {
        let (mut all, mut last) = (Vec::new(), None);
        loop {
            let next = self.clusters.read(|clusters| {
                let next = page(clusters.entries(), last.as_ref());
                let next = next.map(|(key, cache)| (key.clone(), cache.lend()));
                next.collect::<Vec<_>>()
            });
            last = next.last().map(|(key, _)| key.clone());
            if last.is_none() {
                return all;
            }
            all.extend(next);
        }
    }
}

impl Watching {
    /// The cluster to which this record belongs, according to its spec. If the object cannot be decoded, it belongs to
    /// the cluster whose cache already contains it or, if there is none, to the cluster in its label. If the object has
    /// too many labels, its labels cannot be read, so the part of its name before the first dot is the cluster.
    fn cluster_of(&self, object: &Lenient<NodeIdentity>) -> Option<ObjectKey> {
        let namespace = object.namespace()?;
        if let Ok(read) = &object.object {
            let cluster = read.spec.cluster_name.as_str();
            return Some(ObjectKey::new(namespace, cluster));
        }
        let known = self.index.cluster_of(&namespace, name_of(object));
        let labelled = object.labels().get(CLUSTER_NAME_LABEL).map(String::as_str);
        let named = || Some(name_of(object).split_once('.')?.0);
        known.or_else(|| Some(ObjectKey::new(namespace, labelled.or_else(named)?)))
    }
}

fn name_of(object: &Lenient<NodeIdentity>) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

/// Whether the cache is unused and empty.
fn is_dead(_: &ObjectKey, cache: &mut Lent<Cache>) -> bool {
    !cache.is_lent() && cache.look(Table::is_empty)
}

#[cfg(test)]
mod tests;
