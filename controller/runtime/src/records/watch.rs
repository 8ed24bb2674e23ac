//! A single watch of the records of many clusters.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;

use futures::StreamExt as _;
use kube::api::Api;
use kube::runtime::watcher::Event;
use kube::{Client, Resource as _, ResourceExt as _};
use node_attestation_core::crd::{CLUSTER_NAME_LABEL, NodeIdentity};

use super::cache::{Cache, Entry, entry};
use super::kube::KubeRecords;
use crate::capi::ObjectKey;
use crate::metrics::Metrics;
use crate::shared::{Lock, Shared, Swept, page};
use crate::table::Table;
use crate::watch::{Heard, Lenient, Skipped, WatchLog, heard_config, listening, on_management};

/// The `NodeIdentity` objects of many clusters, from one watch.
#[derive(derive_more::Debug, Clone)]
#[debug("RecordsWatch")]
pub struct RecordsWatch {
    client: Client,
    caches: Arc<Caches>,
    metrics: Metrics,
}

/// The caches of clusters, by their keys.
struct Caches {
    clusters: Shared<Swept<ObjectKey, Arc<Cache>>>,
    heard: Arc<Heard>,
}

/// The additional state of the watch.
struct Watching {
    /// The objects of a list in progress, so far.
    listing: HashMap<ObjectKey, Table<Entry>>,
    skipped: Skipped,
}

impl RecordsWatch {
    /// Creates the records of all clusters, or of the clusters in `namespace`.
    ///
    /// The returned future is the watch, which never ends. The records stay unknown until that future runs.
    ///
    /// The client's user needs the permissions to get, list, watch, create, patch and delete `nodeidentities`, and to
    /// patch their status.
    pub fn new(
        client: Client,
        namespace: Option<&str>,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        Self::selected(client, namespace, CLUSTER_NAME_LABEL, metrics)
    }

    /// Creates the records with these labels, as [`new`](Self::new) does.
    pub(super) fn selected(
        client: Client,
        namespace: Option<&str>,
        labels: &str,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let caches = Arc::new(Caches::default());
        let mut watching = Watching::default();
        let (watched, heard) = (metrics.watch("NodeIdentity"), caches.heard.clone());
        let log = WatchLog::new("NodeIdentity").measured_by(watched.clone());
        let listening = listening(client.clone(), move || {
            heard.now();
            watched.heard();
        });
        let api: Api<Lenient<NodeIdentity>> = match namespace {
            Some(namespace) => Api::namespaced(listening, namespace),
            None => Api::all(listening),
        };
        let config = heard_config().labels(labels);
        let (told, mut log) = (caches.clone(), log);
        let watch = on_management(api, config).for_each(move |event| {
            log.observe(&event, || {});
            if let Ok(event) = event {
                told.apply(event, &mut watching);
            }
            ready(())
        });
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

impl Default for Caches {
    fn default() -> Self {
        Self {
            clusters: Shared::new(Lock::RecordCaches, Swept::default()),
            heard: Arc::default(),
        }
    }
}

impl Default for Watching {
    fn default() -> Self {
        Self {
            listing: HashMap::new(),
            skipped: Skipped::new("NodeIdentity"),
        }
    }
}

impl Caches {
    fn apply(&self, event: Event<Lenient<NodeIdentity>>, watching: &mut Watching) {
        let Watching { listing, skipped } = watching;
        match event {
            Event::Init => {
                listing.clear();
                self.heard.outdated();
            }
            Event::InitApply(object) => {
                if let Some(cluster) = self.cluster_of(&object) {
                    let (name, entry) = entry(&object, &cluster.name, skipped);
                    listing.entry(cluster).or_default().put(&name, entry);
                }
            }
            Event::InitDone => {
                let mut listing = std::mem::take(listing);
                // Records of a cluster can arrive before a task requests them. They are kept until then.
                let _used: Vec<_> = listing.keys().map(|key| self.cache(key)).collect();
                for (cluster, cache) in self.all(None) {
                    cache.replace(listing.remove(&cluster).unwrap_or_default());
                }
                // After all caches are updated, because waiters read them when they are notified.
                self.heard.now();
                self.clusters
                    .retain(Swept::entries_mut, |key, cache| !is_dead(key, cache));
            }
            Event::Apply(object) => {
                if let Some(cluster) = self.cluster_of(&object) {
                    let (name, entry) = entry(&object, &cluster.name, skipped);
                    self.cache(&cluster).put(&name, entry);
                }
            }
            Event::Delete(object) => {
                let name = object.meta().name.as_deref().unwrap_or_default();
                if let Some(cluster) = self.cluster_of(&object)
                    && let Some(cache) = self.known(&cluster)
                {
                    cache.remove(name);
                }
            }
        }
    }

    /// The cache of a cluster, if it exists.
    fn known(&self, cluster: &ObjectKey) -> Option<Arc<Cache>> {
        self.clusters
            .read(|clusters| clusters.get(cluster).cloned())
    }

    fn cache(&self, cluster: &ObjectKey) -> Arc<Cache> {
        let new = || Arc::new(Cache::new(self.heard.clone()));
        self.clusters.write(|clusters| {
            // Caches of deleted clusters are removed first.
            let cache = clusters.get_or_insert_with(cluster.clone(), is_dead, new);
            cache.clone()
        })
    }

    /// All caches, or the caches of the clusters in a namespace.
    fn all(&self, namespace: Option<&str>) -> Vec<(ObjectKey, Arc<Cache>)> {
        // No cluster has an empty name, and the empty namespace sorts first.
        let mut last = ObjectKey::new(namespace.unwrap_or_default(), "");
        let mut all = Vec::new();
        loop {
            let next = self.clusters.read(|clusters| {
                let next = page(clusters.entries(), Some(&last));
                let next = next.map(|(key, cache)| (key.clone(), cache.clone()));
                next.collect::<Vec<_>>()
            });
            let Some((key, _)) = next.last() else {
                return all;
            };
            last = key.clone();
            let is_in = |of: &str| namespace.is_none_or(|namespace| of == namespace);
            let is_end = !is_in(&last.namespace);
            all.extend(next.into_iter().filter(|(key, _)| is_in(&key.namespace)));
            if is_end {
                return all;
            }
        }
    }

    /// The cluster of this record. The spec determines it. An object that cannot be decoded belongs to the cluster
    /// whose cache already contains it or, if there is none, to the cluster in its label.
    fn cluster_of(&self, object: &Lenient<NodeIdentity>) -> Option<ObjectKey> {
        let namespace = object.namespace()?;
        if let Ok(read) = &object.object {
            let cluster = read.spec.cluster_name.as_str();
            return Some(ObjectKey::new(namespace, cluster));
        }
        let name = object.meta().name.as_ref()?;
        let labelled = object.labels().get(CLUSTER_NAME_LABEL);
        let labelled = labelled.map(|cluster| ObjectKey::new(namespace.as_str(), cluster));
        let has_it = |cache: &Arc<Cache>| cache.state().get(name).is_some();
        let own = labelled.as_ref().and_then(|cluster| self.known(cluster));
        if own.as_ref().is_some_and(has_it) {
            return labelled;
        }
        let mut others = self.all(Some(&namespace)).into_iter();
        let known = others.find(|(_, cache)| has_it(cache));
        known.map(|(key, _)| key).or(labelled)
    }
}

/// Whether the cache is unused and empty.
fn is_dead(_: &ObjectKey, cache: &mut Arc<Cache>) -> bool {
    Arc::strong_count(cache) == 1 && cache.state().is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::shared::PAGE;
    use crate::shared::testing::most_visited;

    /// An object that is no record, with the label of this cluster.
    fn unreadable(cluster: &str, name: &str) -> Lenient<NodeIdentity> {
        let object = json!({
            "metadata": {
                "namespace": "default", "name": name, "labels": {CLUSTER_NAME_LABEL: cluster},
            },
            "spec": "unreadable",
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_broken_record_is_found_in_pages_among_many_clusters() {
        let (caches, mut watching) = (Caches::default(), Watching::default());
        let mut apply = |event| caches.apply(event, &mut watching);
        for number in 0..3 * PAGE {
            let (cluster, name) = (format!("c{number}"), format!("r{number}"));
            apply(Event::Apply(unreadable(&cluster, &name)));
        }
        let has_it = |cluster: &str| {
            let cache = caches.known(&ObjectKey::new("default", cluster));
            cache.is_some_and(|cache| cache.state().get("r180").is_some())
        };
        assert!(has_it("c180"));

        let visited = most_visited(|| {
            apply(Event::Apply(unreadable("c1", "r180")));
            assert!(has_it("c180") && !has_it("c1"));
            apply(Event::Init);
            apply(Event::InitDone);
        });

        assert_eq!(visited[&Lock::RecordCaches], PAGE);
        assert!(caches.all(None).is_empty());
    }
}
