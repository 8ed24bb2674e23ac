//! Watches of Cluster API's objects on the management cluster, and what they have told.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures::stream::StreamExt as _;
use kube::Client;
use kube::api::Api;
use kube::core::ApiResource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio::time::sleep;

use super::objects::{
    BootstrapConfig, Cluster, Kept, Machine, MachinePool, ObjectKey, Raw, Reference, Watched,
};
use super::served::{referred, served};
use super::store::{Store, Stored};
use crate::clusters::{Doubling, watched_in_pages};
use crate::logs::error_chain;

/// Before it is looked again whether a kind is there that was not.
const ABSENT_RETRY: Duration = Duration::from_secs(30);

/// On a Cluster: which of several controllers it is for.
const WATCH_FILTER_LABEL: &str = "cluster.x-k8s.io/watch-filter";

/// Which objects are ours, as Cluster API's controllers are told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Those of one namespace; `None`: of all.
    pub namespace: Option<String>,
    /// Those of Clusters whose label `cluster.x-k8s.io/watch-filter` has this value; `None`:
    /// whatever they have. What a Cluster owns need not have the label.
    pub watch_filter: Option<String>,
}

/// What is known of Cluster API's objects, at any time.
///
/// # Guarantees
///
/// - Nothing is answered before every kind was listed once: what is missing is then not there.
/// - An API server that is away changes nothing; what it last told holds until it is back.
/// - Only the fields that are used are kept, and no secret.
#[derive(Clone)]
pub struct Objects(Arc<Inner>);

struct Inner {
    client: Client,
    state: RwLock<State>,
    resources: Mutex<HashMap<Kind, ApiResource>>,
    changes: watch::Sender<u64>,
}

/// A group, a version where the reference has one, and a kind.
type Kind = (String, Option<String>, String);

#[derive(Default)]
struct State {
    store: Store,
    /// The kinds that were listed.
    listed: BTreeSet<&'static str>,
}

/// The kinds without which nothing is answered.
const KINDS: [&str; 4] = [
    Cluster::KIND,
    Machine::KIND,
    MachinePool::KIND,
    BootstrapConfig::KIND,
];

/// What must be run for [`Objects`] to know anything.
#[must_use = "nothing is watched until it runs"]
pub struct Watches {
    objects: Objects,
    selection: Selection,
}

impl Objects {
    /// The objects that `selection` has on the management cluster that `client` speaks to.
    pub fn new(client: Client, selection: Selection) -> (Self, Watches) {
        let objects = Self(Arc::new(Inner {
            client,
            state: RwLock::default(),
            resources: Mutex::default(),
            changes: watch::Sender::new(0),
        }));
        let watches = Watches {
            objects: objects.clone(),
            selection,
        };
        (objects, watches)
    }

    /// Whether everything was listed once.
    pub fn is_ready(&self) -> bool {
        self.read(State::is_ready)
    }

    /// A number that changes whenever anything does that is known here, readiness included.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// The Clusters, in order; none before [`Objects::is_ready`].
    pub fn clusters(&self) -> Vec<(ObjectKey, Cluster)> {
        let own = |(key, cluster): (&ObjectKey, &Cluster)| (key.clone(), cluster.clone());
        let all = |store: &Store| store.clusters().map(own).collect();
        self.store(all).unwrap_or_default()
    }

    /// A Cluster; `None` where there is none, or before [`Objects::is_ready`].
    pub fn cluster(&self, key: &ObjectKey) -> Option<Cluster> {
        self.store(|store| store.cluster(key).cloned())?
    }

    /// What `look` finds; `None` before [`Objects::is_ready`].
    pub(super) fn store<T>(&self, look: impl FnOnce(&Store) -> T) -> Option<T> {
        self.read(|state| state.is_ready().then(|| look(&state.store)))
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
        let found = api.get_opt(&reference.name).await?;
        Ok(found.and_then(Raw::kept))
    }

    /// The resource that this reference is to; `None` where the API server has none such.
    pub async fn resource(
        &self,
        reference: &Reference,
    ) -> Result<Option<ApiResource>, kube::Error> {
        let Reference {
            group,
            version,
            kind,
            ..
        } = reference;
        let key = (group.clone(), version.clone(), kind.clone());
        let known = self.resources(|resources| resources.get(&key).cloned());
        if known.is_some() {
            return Ok(known);
        }
        let found = referred(&self.0.client, reference).await?;
        if let Some(resource) = &found {
            self.resources(|resources| resources.insert(key, resource.clone()));
        }
        Ok(found)
    }

    fn resources<T>(&self, with: impl FnOnce(&mut HashMap<Kind, ApiResource>) -> T) -> T {
        let resources = self.0.resources.lock();
        with(&mut resources.unwrap_or_else(PoisonError::into_inner))
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.0.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn write(&self, change: impl FnOnce(&mut Store)) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut state.store);
        drop(state);
        self.0
            .changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(super) fn listed(&self, kind: &'static str) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        state.listed.insert(kind);
        drop(state);
        self.0
            .changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl State {
    fn is_ready(&self) -> bool {
        KINDS.iter().all(|kind| self.listed.contains(kind))
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").finish_non_exhaustive()
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches")
            .field("selection", &self.selection)
            .finish_non_exhaustive()
    }
}

impl Watches {
    /// Watches until `stop` is ready.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let all = async {
            tokio::join!(
                self.watch::<Cluster>(),
                self.watch::<Machine>(),
                self.watch::<MachinePool>(),
                self.watch::<BootstrapConfig>(),
            )
        };
        tokio::select! {
            () = stop => {}
            ((), (), (), ()) = all => {}
        }
    }

    /// Watches one kind, for ever, in the version that is served then.
    async fn watch<W: Watched + Stored>(&self) {
        let client = &self.objects.0.client;
        let mut told = Told::new(W::KIND);
        let mut waits = Doubling::default();
        loop {
            match served(client, W::GROUP, W::KIND).await {
                Ok(Some(resource)) => self.follow::<W>(&resource, &mut told).await,
                Ok(None) => {
                    told.absent();
                    if W::MAY_BE_ABSENT {
                        self.objects.listed(W::KIND);
                    }
                    sleep(ABSENT_RETRY).await;
                    continue;
                }
                Err(error) => told.failed(&error),
            }
            if let Some(wait) = waits.next() {
                sleep(wait).await;
            }
        }
    }

    /// Watches this version until there is none such.
    async fn follow<W: Watched + Stored>(&self, resource: &ApiResource, told: &mut Told) {
        let client = self.objects.0.client.clone();
        let api: Api<Raw<W>> = match &self.selection.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let mut config = watched_in_pages();
        if let Some(value) = self
            .selection
            .watch_filter
            .as_ref()
            .filter(|_| W::IS_CLUSTER)
        {
            config = config.labels(&format!("{WATCH_FILTER_LABEL}={value}"));
        }
        let events = watcher(api, config).backoff(Doubling::default());
        let mut events = std::pin::pin!(events);
        let mut listing = BTreeSet::new();
        while let Some(event) = events.next().await {
            match event {
                // It comes before anything was asked.
                Ok(Event::Init) => listing.clear(),
                Ok(event) => {
                    told.holds(&resource.api_version);
                    self.objects.apply(event, &mut listing);
                }
                Err(error) => {
                    told.failed(&error);
                    if is_gone(&error) {
                        return;
                    }
                }
            }
        }
    }
}

impl Objects {
    fn apply<W: Watched + Stored>(&self, event: Event<Raw<W>>, listing: &mut BTreeSet<ObjectKey>) {
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(object) => {
                if let Some(key) = object.key() {
                    listing.insert(key.clone());
                    self.seen::<W>(key, object);
                }
            }
            Event::InitDone => {
                self.write(|store| {
                    for key in W::keys(store).difference(listing) {
                        W::forget(key, store);
                    }
                });
                listing.clear();
                self.listed(W::KIND);
            }
            Event::Apply(object) => {
                if let Some(key) = object.key() {
                    self.seen::<W>(key, object);
                }
            }
            Event::Delete(object) => {
                if let Some(key) = object.key() {
                    self.write(|store| W::forget(&key, store));
                }
            }
        }
    }

    pub(super) fn seen<W: Watched + Stored>(&self, key: ObjectKey, object: Raw<W>) {
        let kept = object.kept();
        self.write(|store| match kept {
            Some(object) => object.put(key, store),
            None => W::forget(&key, store),
        });
    }
}

/// Whether the API server no longer has this version of the kind.
fn is_gone(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => {
            let kube::Error::Api(status) = error else {
                return false;
            };
            status
        }
        watcher::Error::WatchError(status) => status,
        watcher::Error::NoResourceVersion => return false,
    };
    status.code == 404
}

/// Tells when a kind is watched, is not, and is again: once each.
struct Told {
    kind: &'static str,
    last: Option<Standing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Holds,
    Absent,
    Failed,
}

impl Told {
    fn new(kind: &'static str) -> Self {
        Self { kind, last: None }
    }

    fn changes_to(&mut self, standing: Standing) -> bool {
        self.last.replace(standing) != Some(standing)
    }

    fn holds(&mut self, version: &str) {
        let kind = self.kind;
        if self.changes_to(Standing::Holds) {
            tracing::info!(kind, version, "watching");
        }
    }

    fn absent(&mut self) {
        let kind = self.kind;
        if self.changes_to(Standing::Absent) {
            tracing::warn!(
                kind,
                "the management cluster has no version of this kind that is read"
            );
        }
    }

    fn failed(&mut self, error: &(dyn std::error::Error + 'static)) {
        let kind = self.kind;
        let error = error_chain(error);
        if self.changes_to(Standing::Failed) {
            tracing::warn!(
                kind,
                error,
                "the watch failed; it is tried again until it holds"
            );
        } else {
            tracing::debug!(kind, error, "the watch failed again");
        }
    }
}
