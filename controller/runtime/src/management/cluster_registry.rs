//! The served clusters. Each cluster has a supervisor.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt as _;
use futures::stream::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::Event;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::KubeletAuthentication;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use super::enablement::{Enablement, NotInMemory};
use super::kept_authentications::{
    Authentication, KeptAuthentication, KeptMemory, TOO_MUCH_MEMORY,
};
use super::reports::Reports;
use super::supervisor::{supervise, until_selected};
use super::{Controller, Shared};
use crate::capi::{ObjectKey, WATCH_FILTER_LABEL};
use crate::clock::now;
use crate::events;
use crate::log_lines::ClusterLines;
use crate::watch::{
    Lenient, Recovery, RecoveryStep, Skipped, Unreadable, WatchLog, measured, pages_of,
    watch_config,
};

/// The interval between heartbeats from a loop that waits for events.
const BEAT: Duration = Duration::from_secs(5);

/// The maximum time without a heartbeat. A loop iteration takes milliseconds.
const SILENCE: Duration = Duration::from_mins(1);

/// The delay before a supervisor restarts after a panic, and before a failed Event is written again.
const RESTART: Duration = Duration::from_secs(30);

/// The maximum time to wait until the tasks of all clusters end. During this time, this replica holds the Lease, and no
/// other replica serves any cluster. Therefore a cluster whose API server does not respond must not delay other
/// clusters.
const HANDOVER: Duration = Duration::from_secs(5);

/// The reason of the Event on an object that is not kept, because its namespace uses too much memory.
const NOT_KEPT: &str = "MemoryLimitExceeded";

/// Serves every cluster until `stop` is ready, and then waits for the tasks of all clusters.
pub(super) async fn supervise_all(shared: &Arc<Shared>, stop: impl Future<Output = ()>) {
    let mut registry = ClusterRegistry::new(shared);
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
            recovered = registry.recovery.step() => registry.recover(recovered),
        }
        metrics.left_out_clusters(registry.memory.left_out());
    }
    metrics.left_out_clusters(0);
    registry.clusters.clear();
    end(registry.tasks).await;
}

/// Waits at most [`HANDOVER`] until the tasks of all clusters have ended. The next leader continues the work of tasks
/// that have not ended.
async fn end(mut tasks: JoinSet<ObjectKey>) {
    let ending = async { while tasks.join_next().await.is_some() {} };
    if timeout(HANDOVER, ending).await.is_err() {
        let clusters = tasks.len();
        tracing::warn!(
            clusters,
            "the deadline passed before the tasks of some clusters were complete; the next leader continues the tasks"
        );
        tasks.shutdown().await;
    }
}

struct ClusterRegistry {
    shared: Arc<Shared>,
    /// All keys that have a task, including the keys of clusters that belong to other controllers, because the
    /// clusters' labels can change.
    ///
    /// A key is kept until its task ends. If an object is created again, its service starts in the same task or after
    /// that task. Therefore, releasing the previous service does not remove the new admission policy. Dropping a
    /// channel stops the service of its cluster.
    clusters: BTreeMap<ObjectKey, watch::Sender<Authentication>>,
    /// The keys whose tasks are ending, because their objects are not kept.
    ending: BTreeSet<ObjectKey>,
    /// The memory for the objects, and for the tasks of deleted objects. Objects that exceed its limit are not kept.
    memory: KeptMemory,
    /// The lists that find objects that were not kept.
    recovery: Recovery<Lenient<KubeletAuthentication>>,
    /// The digests of the keys that the current list has returned so far.
    listed: BTreeSet<u64>,
    tasks: JoinSet<ObjectKey>,
    reports: Reports,
    skipped: Skipped,
    enablement: Enablement,
    /// Whether all objects have been listed once.
    is_listed: bool,
}

impl ClusterRegistry {
    fn new(shared: &Arc<Shared>) -> Self {
        Self {
            enablement: Enablement::new(shared.clone()),
            is_listed: false,
            shared: shared.clone(),
            clusters: BTreeMap::new(),
            ending: BTreeSet::new(),
            memory: KeptMemory::default(),
            recovery: Recovery::default(),
            listed: BTreeSet::new(),
            tasks: JoinSet::new(),
            reports: Reports::default(),
            skipped: Skipped::new("KubeletAuthentication"),
        }
    }

    fn apply(&mut self, event: Event<Lenient<KubeletAuthentication>>) {
        self.enablement.something_changed();
        // A list in progress might return the objects that were not kept.
        let is_in_list = matches!(event, Event::Init | Event::InitApply(_));
        match event {
            Event::Init => {
                self.listed.clear();
                self.recovery.stop();
            }
            Event::InitApply(seen) | Event::Apply(seen) => {
                let Some(key) = ObjectKey::of(seen.meta()) else {
                    return;
                };
                self.recovery.changed(&key.namespace, &key.name);
                self.listed.insert(self.memory.digest(&key));
                match seen.object {
                    Ok(authentication) => self.put(key, KeptAuthentication::new(authentication)),
                    // The controller continues to use the last decoded state.
                    Err(ref error) => {
                        if self.skipped.noted(seen.meta(), error) {
                            let labels = seen.meta().labels.clone();
                            let note = format!(
                                "the controller cannot read this version of the KubeletAuthentication, and does not \
                                 apply it: {error}"
                            );
                            let words = ("Unreadable", note);
                            self.report(key, labels, seen.object_ref(&()), words);
                        }
                    }
                }
            }
            Event::InitDone => {
                self.is_listed = true;
                for (key, authentication) in &self.clusters {
                    if !self.listed.contains(&self.memory.digest(key)) {
                        self.memory.deleted(key);
                        authentication.send_replace(None);
                    }
                }
                let listed = &self.listed;
                self.memory
                    .retain_left_out(|digest| listed.contains(&digest));
            }
            Event::Delete(seen) => {
                let Some(key) = ObjectKey::of(seen.meta()) else {
                    return;
                };
                self.recovery.changed(&key.namespace, &key.name);
                self.listed.remove(&self.memory.digest(&key));
                self.memory.deleted(&key);
                if let Some(authentication) = self.clusters.get(&key) {
                    authentication.send_replace(None);
                }
            }
        }
        if !is_in_list {
            self.plan_list();
        }
    }

    /// Writes an Event with this reason and note on an object that is not used. The task waits until this controller
    /// selects the cluster, and then waits for its turn.
    fn report(
        &mut self,
        key: ObjectKey,
        labels: Option<BTreeMap<String, String>>,
        regarding: ObjectReference,
        (reason, note): (&'static str, String),
    ) {
        let shared = self.shared.clone();
        let filter = |(key, _): &(String, String)| key == WATCH_FILTER_LABEL;
        let labels: Option<BTreeMap<String, String>> =
            labels.map(|labels| labels.into_iter().filter(filter).collect());
        let namespace = key.namespace.clone();
        let reported = async move {
            until_selected(&shared, &key, labels.as_ref()).await;
            loop {
                shared.condition_events.take(&key).await;
                let management = shared.controller.management.clone();
                let words = ("Warning", "Read", reason, note.clone());
                if events::write_one(management, regarding.clone(), words, now()).await {
                    return;
                }
                sleep(RESTART).await;
            }
        };
        self.reports.start(namespace, reported.boxed());
    }

    /// Logs an object that is not kept, and writes an Event on it. Its condition cannot be written, because only the
    /// task of a kept object writes conditions.
    fn report_not_kept(&mut self, key: ObjectKey, object: &KubeletAuthentication) {
        let error = Unreadable::because(TOO_MUCH_MEMORY);
        if self.skipped.noted(&object.metadata, &error) {
            let labels = object.metadata.labels.clone();
            let words = (NOT_KEPT, TOO_MUCH_MEMORY.to_owned());
            self.report(key, labels, object.object_ref(&()), words);
        }
    }

    /// Plans to list a namespace, if there is now memory for one of its objects that was not kept.
    fn plan_list(&mut self) {
        self.recovery.plan(self.memory.due());
    }

    /// Continues the list for a namespace.
    fn recover(&mut self, step: RecoveryStep<Lenient<KubeletAuthentication>>) {
        match step {
            RecoveryStep::Due(namespace) => {
                let client = self.shared.controller.management.clone();
                let api: Api<Lenient<KubeletAuthentication>> = Api::namespaced(client, &namespace);
                let pages = pages_of(api, ListParams::default());
                self.recovery.begin(namespace, pages);
            }
            RecoveryStep::Page(objects) => {
                self.enablement.something_changed();
                for object in objects {
                    self.recovered(object);
                }
            }
            RecoveryStep::End => self.plan_list(),
        }
    }

    /// Keeps a listed object that was not kept before. The watch has the current state of all other objects.
    fn recovered(&mut self, seen: Lenient<KubeletAuthentication>) {
        let Some(key) = ObjectKey::of(seen.meta()) else {
            return;
        };
        let is_current = self.recovery.is_current(&key.namespace, &key.name);
        if is_current
            && self.memory.has_left_out(&key)
            && let Ok(authentication) = seen.object
        {
            self.put(key, KeptAuthentication::new(authentication));
        }
    }

    /// Creates and updates the `KubeletAuthentication`s for Clusters that authorize attestation providers themselves.
    fn enable(&mut self) {
        let (clusters, memory) = (&self.clusters, &self.memory);
        let known = |key: &ObjectKey| match clusters.get(key) {
            Some(known) => Ok(known.borrow().clone()),
            None if memory.has_left_out(key) => Err(NotInMemory),
            None => Ok(None),
        };
        self.enablement.look(known);
    }

    fn put(&mut self, key: ObjectKey, authentication: KeptAuthentication) {
        let put = self.memory.put(&key, &authentication);
        for key in put.displaced {
            let known = self.clusters.get(&key);
            if let Some(object) = known.and_then(|known| known.borrow().clone()) {
                self.report_not_kept(key.clone(), &object);
            }
            self.leave_out(key);
        }
        if !put.is_kept {
            self.report_not_kept(key.clone(), &authentication);
            self.leave_out(key);
            return;
        }
        if self.ending.contains(&key) {
            // A list finds the object after the previous task has ended.
            self.memory.postpone(&key);
            return;
        }
        let authentication = Some(Arc::new(authentication));
        if let Some(known) = self.clusters.get(&key) {
            known.send_replace(authentication);
            return;
        }
        let (sender, authentication) = watch::channel(authentication);
        self.start(key.clone(), authentication);
        self.clusters.insert(key, sender);
    }

    /// Ends the task for an object that is not kept. The object still exists, so its cluster is not released.
    fn leave_out(&mut self, key: ObjectKey) {
        if self.clusters.remove(&key).is_some() {
            self.ending.insert(key);
        }
    }

    /// Removes a released cluster. If its object was recreated since then, serves the cluster again.
    fn ended(&mut self, ended: Result<ObjectKey, JoinError>) {
        let Ok(key) = ended else { return };
        if self.ending.remove(&key) {
            self.plan_list();
        }
        let Some(sender) = self.clusters.get(&key) else {
            return;
        };
        if sender.borrow().is_some() {
            let authentication = sender.subscribe();
            self.start(key, authentication);
        } else {
            self.clusters.remove(&key);
            self.memory.remove(&key);
            self.plan_list();
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
                // A panic payload can contain secrets, so it is not logged.
                cluster_line!(
                    &ClusterLines::of(&key),
                    ERROR,
                    "the supervisor of the cluster panicked; the controller restarts the supervisor in 30 s"
                );
                let closed = async { while authentication.changed().await.is_ok() {} };
                if timeout(RESTART, closed).await.is_ok() {
                    return key;
                }
            }
        });
    }
}

/// Watches all `KubeletAuthentication`s. Never ends.
fn authentications(
    controller: &Controller,
) -> impl Stream<Item = Event<Lenient<KubeletAuthentication>>> + Send + use<> {
    let metrics = controller.settings.metrics.watch("KubeletAuthentication");
    let client = controller.management.clone();
    let api = match &controller.settings.selection.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let events = measured(api, watch_config(), metrics.clone());
    let mut log = WatchLog::new("KubeletAuthentication").measured_by(metrics);
    events.filter_map(move |event| {
        log.observe(&event, || {});
        std::future::ready(event.ok())
    })
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use node_attestation_core::verifier::Verifiers;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::client::ClusterAccess;
    use crate::management::Settings;
    use crate::memory::KeptLimit;

    #[tokio::test(start_paused = true)]
    async fn an_event_names_each_object_beyond_the_memory_limit() {
        let events: Arc<Mutex<BTreeSet<(String, String)>>> = Arc::default();
        let written = events.clone();
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let written = written.clone();
            async move {
                if request.method() != Method::POST {
                    return pending().await;
                }
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let event: Value = serde_json::from_slice(&body).unwrap();
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let named = text(&event["regarding"]["name"]);
                written.lock().insert((named, text(&event["reason"])));
                Response::new(Full::new(body))
            }
        });
        let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
        let controller = Controller::new(&access, Settings::default(), Arc::new(verifiers));
        let (shared, _watching) = controller.watching();
        let mut registry = ClusterRegistry::new(&shared);
        // There is memory for one object of a namespace.
        registry.memory = KeptMemory::new(KeptLimit::new(32 * 1024));
        for (name, month) in [("younger", 2), ("oldest", 1), ("youngest", 3)] {
            let object = json!({
                "metadata": {
                    "namespace": "default", "name": name, "uid": name,
                    "creationTimestamp": format!("2026-0{month}-01T00:00:00Z"),
                },
                "spec": {"clusterName": name, "authorizedAttestors": ["null"]},
            });
            registry.apply(Event::Apply(serde_json::from_value(object).unwrap()));
        }

        sleep(Duration::from_secs(5)).await;

        assert_eq!(registry.memory.left_out(), 2);
        let expected = ["younger", "youngest"].map(|name| (name.to_owned(), NOT_KEPT.to_owned()));
        assert_eq!(*events.lock(), expected.into());
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_of_a_deleted_object_is_counted_until_it_ends() {
        let access = ClusterAccess::in_memory(|_| pending::<Response<Full<Bytes>>>());
        let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
        let controller = Controller::new(&access, Settings::default(), Arc::new(verifiers));
        let (shared, _watching) = controller.watching();
        let seen = || -> Lenient<KubeletAuthentication> {
            let object = json!({
                "metadata": {"namespace": "default", "name": "prod-1"},
                "spec": {"clusterName": "prod-1", "authorizedAttestors": ["null"]},
            });
            serde_json::from_value(object).unwrap()
        };
        let deletion = |registry: &mut ClusterRegistry, is_listed: bool| {
            if is_listed {
                registry.apply(Event::Init);
                registry.apply(Event::InitDone);
            } else {
                registry.apply(Event::Delete(seen()));
            }
        };
        for is_listed in [true, false] {
            let mut registry = ClusterRegistry::new(&shared);
            registry.apply(Event::Apply(seen()));
            let used = registry.memory.used();
            assert!(used > 0);

            deletion(&mut registry, is_listed);

            assert_eq!(registry.memory.used(), used);
            assert_eq!(registry.tasks.len(), 1);
            registry.ended(Ok(ObjectKey::new("default", "prod-1")));
            assert_eq!(registry.memory.used(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_cluster_delays_the_handover_by_at_most_5_seconds() {
        let second = Duration::from_secs(1);
        for (lasts, expected) in [(second, second), (Duration::from_hours(1), HANDOVER)] {
            let kept = Arc::new(());
            let mut tasks = JoinSet::new();
            for time in [Duration::ZERO, lasts] {
                let kept = kept.clone();
                tasks.spawn(async move {
                    sleep(time).await;
                    drop(kept);
                    ObjectKey::new("tenant-a", "prod-1")
                });
            }
            let begun = Instant::now();

            end(tasks).await;

            assert_eq!(begun.elapsed().as_secs(), expected.as_secs());
            assert_eq!(Arc::strong_count(&kept), 1, "a task still runs");
        }
    }
}
