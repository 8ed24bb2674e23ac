//! The served clusters, each with its supervisor.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt as _;
use futures::stream::{Stream, StreamExt as _};
use kube::Resource as _;
use kube::api::Api;
use kube::runtime::watcher::Event;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::KubeletAuthentication;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::enablement::Enablement;
use super::supervisor::supervise;
use super::{Controller, Shared};
use crate::capi::{ObjectKey, PAUSED_ANNOTATION, WATCH_FILTER_LABEL};
use crate::log_lines::ClusterLines;
use crate::watch::{Lenient, Skipped, WatchLog, measured, on_management, watch_config};

/// The interval between heartbeats of a loop that waits for events.
const BEAT: Duration = Duration::from_secs(5);

/// The maximum time without a heartbeat. A loop iteration takes milliseconds.
const SILENCE: Duration = Duration::from_mins(1);

/// The wait before a supervisor restarts after a panic.
const RESTART: Duration = Duration::from_secs(30);

/// The prefix of the annotations to keep.
const OWN_ANNOTATIONS: &str = "attestation.cluster.x-k8s.io/";

/// The maximum number of these annotations, and of owners, to keep from an object. Honest objects have a few.
const MAX_METADATA: usize = 64;

/// Serves every cluster until `stop` is ready, and then waits for their tasks.
pub(super) async fn supervise_all(shared: &Arc<Shared>, stop: impl Future<Output = ()>) {
    let mut registry = ClusterRegistry {
        enablement: Enablement::new(shared.clone()),
        is_listed: false,
        shared: shared.clone(),
        clusters: BTreeMap::new(),
        listed: BTreeSet::new(),
        tasks: JoinSet::new(),
        skipped: Skipped::new("KubeletAuthentication"),
    };
    let mut events = authentications(&shared.controller).boxed();
    let metrics = &shared.controller.settings.metrics;
    let heartbeat = metrics.heartbeat("the registry of clusters", SILENCE);
    let mut stop = pin!(stop);
    loop {
        heartbeat.beat();
        tokio::select! {
            () = &mut stop => break,
            () = heartbeat.pause(BEAT) => {}
            Some(event) = events.next() => registry.apply(event),
            Some(ended) = registry.tasks.join_next() => registry.ended(ended),
            () = registry.enablement.due(), if registry.is_listed => registry.enable(),
        }
    }
    registry.clusters.clear();
    // Each task has a deadline.
    while registry.tasks.join_next().await.is_some() {}
}

struct ClusterRegistry {
    shared: Arc<Shared>,
    /// All keys with a task, including clusters of other controllers, because their labels can change.
    ///
    /// A key stays until its task ends. If an object is created again, its service starts in the same task or after it,
    /// so that the release of the previous service does not remove the new admission policy. Dropping a channel ends
    /// the service of its cluster.
    clusters: BTreeMap<ObjectKey, watch::Sender<Authentication>>,
    /// The keys of the current list, as far as it is complete.
    listed: BTreeSet<ObjectKey>,
    tasks: JoinSet<ObjectKey>,
    skipped: Skipped,
    enablement: Enablement,
    /// Whether all objects have been listed once.
    is_listed: bool,
}

/// The `KubeletAuthentication` of a cluster, or `None` after its deletion. The channel is closed when this replica
/// stops being the leader.
pub(super) type Authentication = Option<Arc<KubeletAuthentication>>;

impl ClusterRegistry {
    fn apply(&mut self, event: Event<Lenient<KubeletAuthentication>>) {
        self.enablement.something_changed();
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(seen) | Event::Apply(seen) => {
                let Some(key) = ObjectKey::of(seen.meta()) else {
                    return;
                };
                self.listed.insert(key.clone());
                match seen.object {
                    Ok(authentication) => self.put(key, lean(authentication)),
                    // The last state that could be decoded stays.
                    Err(ref error) => self.skipped.note(seen.meta(), error),
                }
            }
            Event::InitDone => {
                self.is_listed = true;
                for (key, authentication) in &self.clusters {
                    if !self.listed.contains(key) {
                        authentication.send_replace(None);
                    }
                }
            }
            Event::Delete(seen) => {
                let Some(key) = ObjectKey::of(seen.meta()) else {
                    return;
                };
                self.listed.remove(&key);
                if let Some(authentication) = self.clusters.get(&key) {
                    authentication.send_replace(None);
                }
            }
        }
    }

    /// Creates and updates the `KubeletAuthentication`s of Clusters that authorize attestors themselves.
    fn enable(&mut self) {
        let clusters = &self.clusters;
        let known = |key: &ObjectKey| clusters.get(key)?.borrow().clone();
        self.enablement.look(known);
    }

    fn put(&mut self, key: ObjectKey, authentication: KubeletAuthentication) {
        let authentication = Some(Arc::new(authentication));
        if let Some(known) = self.clusters.get(&key) {
            known.send_replace(authentication);
            return;
        }
        let (sender, authentication) = watch::channel(authentication);
        self.start(key.clone(), authentication);
        self.clusters.insert(key, sender);
    }

    /// Forgets a released cluster, or serves it again if its object was created again in the meantime.
    fn ended(&mut self, ended: Result<ObjectKey, JoinError>) {
        let Ok(key) = ended else { return };
        let Some(sender) = self.clusters.get(&key) else {
            return;
        };
        if sender.borrow().is_some() {
            let authentication = sender.subscribe();
            self.start(key, authentication);
        } else {
            self.clusters.remove(&key);
        }
    }

    /// Runs the supervisor of a cluster until it ends. Restarts it after a panic.
    fn start(&mut self, key: ObjectKey, mut authentication: watch::Receiver<Authentication>) {
        let shared = self.shared.clone();
        self.tasks.spawn(async move {
            loop {
                let supervised =
                    supervise(shared.clone(), key.clone(), authentication.clone()).boxed();
                if AssertUnwindSafe(supervised).catch_unwind().await.is_ok() {
                    return key;
                }
                // The payload of a panic can contain anything, including secrets.
                cluster_line!(
                    &ClusterLines::of(&key),
                    ERROR,
                    "the supervisor of the cluster panicked; it restarts in 30 s"
                );
                let closed = async { while authentication.changed().await.is_ok() {} };
                if timeout(RESTART, closed).await.is_ok() {
                    return key;
                }
            }
        });
    }
}

/// The object without the metadata that are never used. It is kept for as long as it exists, and its writers can add
/// thousands of labels, annotations and owners.
fn lean(mut authentication: KubeletAuthentication) -> KubeletAuthentication {
    let metadata = &mut authentication.metadata;
    metadata.finalizers = None;
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| key == WATCH_FILTER_LABEL);
    }
    if let Some(annotations) = metadata.annotations.take() {
        let is_used = |key: &String| key == PAUSED_ANNOTATION || key.starts_with(OWN_ANNOTATIONS);
        let used = annotations.into_iter().filter(|(key, _)| is_used(key));
        metadata.annotations = Some(used.take(MAX_METADATA).collect());
    }
    let owners = metadata.owner_references.as_ref();
    if owners.is_some_and(|owners| owners.len() > MAX_METADATA) {
        metadata.owner_references = None;
    }
    authentication
}

/// A watch of all `KubeletAuthentication`s. It never ends.
fn authentications(
    controller: &Controller,
) -> impl Stream<Item = Event<Lenient<KubeletAuthentication>>> + Send + use<> {
    let metrics = controller.settings.metrics.watch("KubeletAuthentication");
    let client = measured(controller.management.clone(), &metrics);
    let api = match &controller.settings.selection.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let mut log = WatchLog::new("KubeletAuthentication").measured_by(metrics);
    on_management(api, watch_config()).filter_map(move |event| {
        log.observe(&event, || {});
        std::future::ready(event.ok())
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use node_attestation_core::crd::{AWS_ACCOUNT_ANNOTATION, KubeletAuthenticationSpec};

    use super::*;

    #[test]
    fn the_kept_metadata_of_an_object_is_bounded() {
        let spec = KubeletAuthenticationSpec::new("prod-1", &["insecure"]);
        let mut plain = KubeletAuthentication::new("prod-1", spec);
        let pair = |key: &str| (key.to_owned(), "a".to_owned());
        plain.metadata.labels = Some([pair(WATCH_FILTER_LABEL)].into());
        let annotations = [PAUSED_ANNOTATION, AWS_ACCOUNT_ANNOTATION];
        plain.metadata.annotations = Some(annotations.map(pair).into());
        plain.metadata.owner_references = Some(vec![OwnerReference::default()]);
        assert_eq!(lean(plain.clone()).metadata, plain.metadata);

        let mut full = plain.clone();
        let many = || (0..100_000).map(|number| pair(&format!("b{number}")));
        let metadata = &mut full.metadata;
        metadata.labels.get_or_insert_default().extend(many());
        metadata.annotations.get_or_insert_default().extend(many());
        metadata.finalizers = Some(many().map(|(key, _)| key).collect());
        assert_eq!(lean(full.clone()).metadata, plain.metadata);

        let own = many().map(|(key, value)| (format!("{OWN_ANNOTATIONS}{key}"), value));
        full.metadata.annotations = Some(own.collect());
        full.metadata.owner_references = Some(vec![OwnerReference::default(); 1000]);
        let kept = lean(full).metadata;
        assert_eq!(kept.annotations.unwrap().len(), MAX_METADATA);
        assert_eq!(kept.owner_references, None);
    }
}
