//! The served clusters of a shard, each with its supervisor.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{Stream, StreamExt as _};
use kube::Resource as _;
use kube::api::Api;
use kube::runtime::watcher::Event;
use node_attestation_core::crd::KubeletAuthentication;
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::sleep;

use super::enablement::Enablement;
use super::shard::Shard;
use super::supervisor::supervise;
use super::{Settings, Shared};
use crate::capi::ObjectKey;
use crate::watch::{Lenient, Skipped, WatchLog, on_management, watch_config};

/// The wait before a supervisor that panicked begins again.
const RESTART: Duration = Duration::from_secs(30);

/// Serves every cluster of the shard until `stop` is ready, and then waits for their tasks.
pub(super) async fn supervise_all(
    settings: &Settings,
    shared: &Arc<Shared>,
    own_shard: Shard,
    stop: impl Future<Output = ()>,
) {
    let mut registry = ClusterRegistry::new(shared.clone(), own_shard);
    let mut events = authentications(settings, shared).boxed();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(event) = events.next() => registry.apply(event),
            Some(ended) = registry.tasks.join_next_with_id() => registry.ended(&ended),
            () = registry.enablement.due() => registry.enable(),
        }
    }
    registry.finish().await;
}

struct ClusterRegistry {
    shared: Arc<Shared>,
    own_shard: Shard,
    /// Those of other shards too: a Cluster that is made again, or moved, may belong to this one then.
    clusters: HashMap<ObjectKey, Entry>,
    tasks: JoinSet<()>,
    started: HashMap<Id, ObjectKey>,
    skipped: Skipped,
    enablement: Enablement,
    /// Whether all were listed once.
    is_listed: bool,
}

/// The `KubeletAuthentication` of a cluster; `None` once it was deleted. The channel is closed if another replica
/// serves the cluster.
pub(super) type Authentication = Option<Arc<KubeletAuthentication>>;

/// A served cluster. Dropping it ends the service.
struct Entry {
    authentication: watch::Sender<Authentication>,
    /// Whether the list, as far as it was read, has it.
    listed: bool,
}

impl ClusterRegistry {
    fn new(shared: Arc<Shared>, own_shard: Shard) -> Self {
        Self {
            enablement: Enablement::new(shared.clone(), own_shard),
            own_shard,
            is_listed: false,
            shared,
            clusters: HashMap::new(),
            tasks: JoinSet::new(),
            started: HashMap::new(),
            skipped: Skipped::new("KubeletAuthentication"),
        }
    }

    fn apply(&mut self, event: Event<Lenient<KubeletAuthentication>>) {
        self.enablement.something_changed();
        match event {
            Event::Init => {
                for entry in self.clusters.values_mut() {
                    entry.listed = false;
                }
            }
            Event::InitApply(seen) | Event::Apply(seen) => {
                let Some(key) = ObjectKey::of(seen.meta()) else {
                    return;
                };
                match seen.object {
                    Ok(authentication) => self.put(key, authentication),
                    Err(ref error) => {
                        self.skipped.note(seen.meta(), error);
                        self.keep(&key);
                    }
                }
            }
            Event::InitDone => {
                self.is_listed = true;
                let gone = self.clusters.extract_if(|_, entry| !entry.listed);
                gone.for_each(|(key, entry)| entry.deleted(&key, &self.shared));
                let ca_keys = &self.shared.ca_keys;
                ca_keys.forget_all_but(|key| self.clusters.contains_key(key));
            }
            Event::Delete(seen) => {
                if let Some((key, entry)) =
                    ObjectKey::of(seen.meta()).and_then(|key| self.clusters.remove_entry(&key))
                {
                    entry.deleted(&key, &self.shared);
                }
            }
        }
    }

    /// Creates and changes the `KubeletAuthentication`s of Clusters that name attestors.
    fn enable(&mut self) {
        let clusters = self.is_listed.then_some(&self.clusters);
        self.enablement.look(clusters.map(|clusters| {
            move |key: &ObjectKey| clusters.get(key)?.authentication.borrow().clone()
        }));
    }

    fn put(&mut self, key: ObjectKey, authentication: KubeletAuthentication) {
        let status = authentication.status.as_ref();
        let ca_key = status.and_then(|status| status.ca_key.as_ref());
        self.shared.ca_keys.published(&key, ca_key);
        let authentication = Some(Arc::new(authentication));
        if let Some(entry) = self.clusters.get_mut(&key) {
            entry.listed = true;
            entry.authentication.send_replace(authentication);
            return;
        }
        let entry = Entry {
            authentication: watch::Sender::new(authentication),
            listed: true,
        };
        self.start(&key, &entry.authentication, Duration::ZERO);
        self.clusters.insert(key, entry);
    }

    /// Keeps the last state of an object that cannot be read.
    fn keep(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.clusters.get_mut(key) {
            entry.listed = true;
        }
    }

    fn start(
        &mut self,
        key: &ObjectKey,
        authentication: &watch::Sender<Authentication>,
        wait: Duration,
    ) {
        let authentication = authentication.subscribe();
        let supervised = supervise(
            self.shared.clone(),
            self.own_shard,
            key.clone(),
            authentication,
        );
        let task = self.tasks.spawn(async move {
            sleep(wait).await;
            supervised.await;
        });
        self.started.insert(task.id(), key.clone());
    }

    fn ended(&mut self, ended: &Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let Some(key) = self.started.remove(&id) else {
            return;
        };
        if ended.is_err() {
            // The payload of a panic can be anything, a secret too.
            let cluster = key.to_string();
            tracing::error!(
                cluster,
                "the supervisor of the cluster panicked; it restarts in 30 s"
            );
        }
        // Where it is gone, or there again, another has begun or none is wanted.
        let running = self.started.values().any(|other| *other == key);
        let entry = self.clusters.get(&key).filter(|_| !running);
        if let Some(authentication) = entry.map(|entry| entry.authentication.clone()) {
            self.start(&key, &authentication, RESTART);
        }
    }

    async fn finish(mut self) {
        self.clusters.clear();
        // Each has a deadline of its own.
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Entry {
    fn deleted(self, key: &ObjectKey, shared: &Shared) {
        shared.ca_keys.published(key, None);
        self.authentication.send_replace(None);
    }
}

/// A watch of all `KubeletAuthentication`s; it never ends.
fn authentications(
    settings: &Settings,
    shared: &Shared,
) -> impl Stream<Item = Event<Lenient<KubeletAuthentication>>> + Send + use<> {
    let client = shared.management.clone();
    let api = match &settings.selection.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let mut log = WatchLog::new("KubeletAuthentication");
    on_management(api, watch_config()).filter_map(move |event| {
        log.observe(&event, || {});
        std::future::ready(event.ok())
    })
}
