//! One watch of the records of many clusters.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;

use futures::StreamExt as _;
use kube::api::Api;
use kube::runtime::watcher::Event;
use kube::{Client, Resource as _, ResourceExt as _};
use node_attestation_core::crd::{CLUSTER_NAME_LABEL, NodeIdentity};
use parking_lot::Mutex;

use super::cache::{Cache, Entry, entry};
use super::kube::KubeRecords;
use crate::capi::ObjectKey;
use crate::metrics::Metrics;
use crate::table::Table;
use crate::watch::{Heard, Lenient, Skipped, WatchLog, heard_config, listening, on_management};

/// The `NodeIdentity` objects of many clusters, as one watch has shown them.
#[derive(derive_more::Debug, Clone)]
#[debug("RecordsWatch")]
pub struct RecordsWatch {
    client: Client,
    caches: Arc<Caches>,
    metrics: Metrics,
}

/// The caches of clusters, by their keys.
struct Caches {
    state: Mutex<State>,
    heard: Arc<Heard>,
}

struct State {
    clusters: HashMap<ObjectKey, Arc<Cache>>,
    /// The objects so far of a list that is under way.
    listing: HashMap<ObjectKey, Table<Entry>>,
    skipped: Skipped,
}

impl RecordsWatch {
    /// The records of all clusters, or of those in `namespace`; and the watch, which never ends. Nothing is
    /// known of the records while it does not run.
    ///
    /// Its user may get, list, watch, create, patch and delete `nodeidentities`, and patch their status.
    pub fn new(
        client: Client,
        namespace: Option<&str>,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        Self::selected(client, namespace, CLUSTER_NAME_LABEL, metrics)
    }

    /// As [`new`](Self::new), of the records with these labels.
    pub(super) fn selected(
        client: Client,
        namespace: Option<&str>,
        labels: &str,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let state = Mutex::new(State {
            clusters: HashMap::new(),
            listing: HashMap::new(),
            skipped: Skipped::new("NodeIdentity"),
        });
        let heard: Arc<Heard> = Arc::default();
        let caches = Arc::new(Caches { state, heard });
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
                told.apply(event);
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
        let cache = self.caches.state.lock().cache(cluster, &self.caches.heard);
        KubeRecords::new(self.client.clone(), cluster, cache, self.metrics.clone())
    }
}

impl Caches {
    fn apply(&self, event: Event<Lenient<NodeIdentity>>) {
        let mut state = self.state.lock();
        match event {
            Event::Init => {
                state.listing.clear();
                self.heard.outdated();
            }
            Event::InitApply(object) => {
                if let Some(cluster) = state.cluster_of(&object) {
                    let (name, entry) = entry(&object, &cluster.name, &mut state.skipped);
                    state.listing.entry(cluster).or_default().put(&name, entry);
                }
            }
            Event::InitDone => {
                let mut listing = std::mem::take(&mut state.listing);
                // Nobody may have asked for the records of a cluster yet; they are kept for whoever does.
                for cluster in listing.keys() {
                    state.cache(cluster, &self.heard);
                }
                for (cluster, cache) in &state.clusters {
                    cache.replace(listing.remove(cluster).unwrap_or_default());
                }
                // After all of them: whoever hears of it asks them.
                self.heard.now();
                state.clusters.retain(|_, cache| is_used(cache));
            }
            Event::Apply(object) => {
                if let Some(cluster) = state.cluster_of(&object) {
                    let (name, entry) = entry(&object, &cluster.name, &mut state.skipped);
                    state.cache(&cluster, &self.heard).put(&name, entry);
                }
            }
            Event::Delete(object) => {
                let name = object.meta().name.as_deref().unwrap_or_default();
                if let Some(cluster) = state.cluster_of(&object)
                    && let Some(cache) = state.clusters.get(&cluster)
                {
                    cache.remove(name);
                }
            }
        }
    }
}

impl State {
    fn cache(&mut self, cluster: &ObjectKey, heard: &Arc<Heard>) -> Arc<Cache> {
        if !self.clusters.contains_key(cluster) && self.clusters.len() == self.clusters.capacity() {
            // Those of clusters that are gone make room before the map grows.
            self.clusters.retain(|_, cache| is_used(cache));
        }
        let new = || Arc::new(Cache::new(heard.clone()));
        let cache = self.clusters.entry(cluster.clone()).or_insert_with(new);
        cache.clone()
    }

    /// The cluster whose record this is: by its spec, as its name is; an object that cannot be read is of the
    /// cluster that has it already, or else of the one in its label.
    fn cluster_of(&self, object: &Lenient<NodeIdentity>) -> Option<ObjectKey> {
        let namespace = object.namespace()?;
        if let Ok(read) = &object.object {
            let cluster = read.spec.cluster_name.as_str();
            return Some(ObjectKey::new(namespace, cluster));
        }
        let name = object.meta().name.as_ref()?;
        let has_it = |(key, cache): &(&ObjectKey, &Arc<Cache>)| {
            key.namespace == namespace && cache.state().get(name).is_some()
        };
        let known = self.clusters.iter().find(has_it);
        let known = known.map(|(key, _)| key.clone());
        known.or_else(|| {
            let cluster = object.labels().get(CLUSTER_NAME_LABEL)?;
            Some(ObjectKey::new(namespace, cluster))
        })
    }
}

/// Whether somebody asks for it, or there is something in it.
fn is_used(cache: &Arc<Cache>) -> bool {
    Arc::strong_count(cache) > 1 || !cache.state().is_empty()
}
