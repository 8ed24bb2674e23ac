//! Watches of Cluster API objects in the management cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::core::ApiResource;
use kube::runtime::watcher::Event;
use kube::{Client, Resource as _};
use kubelet_attestation::names::ProviderId;
use tokio::time::sleep;

use super::api_discovery::served;
use super::cache::Objects;
use super::objects::{
    ChangedMembers, Cluster, ClusterObserver, Fields, Machine, MachinePool, ObjectKey, Raw,
    Watched, cluster_of,
};
use super::rereads::Rereads;
use super::selection::Selection;
use super::store::{Stored, retain};
use crate::metrics::Metrics;
use crate::watch::{
    ExponentialBackoff, ReadAlone, Skipped, Unreadable, WatchLog, heard_config, is_gone, listening,
    on_management, required_one_of,
};

/// The interval at which a missing kind is looked up again.
const ABSENT_RETRY: Duration = Duration::from_secs(30);

/// The maximum length of a recorded name, as for a Machine. The members of a pool with longer provider IDs count as
/// missing after a scale-down.
const MAX_NAME_LEN: usize = 253;

/// Watches all kinds. Never returns.
async fn watch_all(objects: Objects, selection: Selection, metrics: Metrics) {
    tokio::join!(
        objects.watch::<Cluster>(&selection, &metrics),
        objects.watch::<Machine>(&selection, &metrics),
        objects.watch::<MachinePool>(&selection, &metrics),
    );
}

impl Objects {
    /// Creates a cache of the objects that `selection` selects in the management cluster of `client`.
    ///
    /// The returned future runs the watches, and never ends. The cache remains empty until that future runs.
    pub fn new(
        client: Client,
        selection: Selection,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        Self::observed(client, selection, metrics, None)
    }

    /// Creates a cache like [`Objects::new`]. `observer` observes the Cluster watch.
    pub fn observed(
        client: Client,
        selection: Selection,
        metrics: &Metrics,
        observer: Option<Arc<dyn ClusterObserver>>,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let objects = Self::empty(client, selection.clone(), observer);
        let watches = watch_all(objects.clone(), selection, metrics.clone());
        (objects, watches)
    }

    /// Watches one kind in the version that is currently served. Never returns.
    async fn watch<W: Stored>(&self, selection: &Selection, metrics: &Metrics)
    where
        Fields<W>: ReadAlone,
    {
        let metrics = metrics.watch(W::KIND);
        let (objects, measured) = (self.clone(), metrics.clone());
        let client = &listening(self.client().clone(), move |read| {
            objects.heard_at(W::KIND, read);
            measured.heard();
        });
        let mut log = WatchLog::new(W::KIND).measured_by(metrics);
        let mut waits = ExponentialBackoff::default();
        loop {
            match served(client, W::KIND).await {
                Ok(Some(resource)) => {
                    self.follow::<W>(client, &resource, selection, &mut log)
                        .await;
                }
                Ok(None) => {
                    log.absent();
                    self.failed::<W>();
                    if W::MAY_BE_ABSENT {
                        self.listed(W::KIND);
                        log.none();
                    }
                    sleep(ABSENT_RETRY).await;
                    continue;
                }
                Err(error) => {
                    log.failed(&error);
                    self.failed::<W>();
                }
            }
            sleep(waits.next_wait()).await;
        }
    }

    /// Watches this version until the API server stops serving it.
    async fn follow<W: Stored>(
        &self,
        client: &Client,
        resource: &ApiResource,
        selection: &Selection,
        log: &mut WatchLog,
    ) where
        Fields<W>: ReadAlone,
    {
        if W::IS_CLUSTER {
            self.watches_clusters_in(&resource.api_version);
        }
        let client = client.clone();
        let api: Api<Raw<W>> = match &selection.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let mut events = std::pin::pin!(on_management(api, heard_config()));
        let mut rereads = Rereads::<Raw<W>>::default();
        let (mut listing, mut skipped) = (BTreeSet::new(), Skipped::new(W::KIND));
        loop {
            let event = tokio::select! {
                read = rereads.next() => {
                    // If the read failed, the object remains due.
                    if let Ok(object) = read {
                        self.seen::<W>(object, &mut skipped);
                    }
                    self.plan_reread::<W>(resource, &mut rereads);
                    continue;
                }
                event = events.next() => event,
            };
            let Some(event) = event else { return };
            log.observe(&event, || {
                tracing::info!(kind = W::KIND, version = resource.api_version, "watching");
            });
            match event {
                Ok(event) => {
                    match &event {
                        Event::Apply(object) | Event::Delete(object) => {
                            if let Some(key) = object.key() {
                                rereads.abandon(&key);
                            }
                        }
                        Event::Init | Event::InitApply(_) | Event::InitDone => {
                            rereads.abandon_all();
                        }
                    }
                    // The current list might still return the objects.
                    let is_in_list = matches!(event, Event::Init | Event::InitApply(_));
                    self.apply(event, &mut listing, &mut skipped);
                    if !is_in_list {
                        self.plan_reread::<W>(resource, &mut rereads);
                    }
                }
                Err(error) => {
                    self.failed::<W>();
                    if is_gone(&error) {
                        return;
                    }
                }
            }
        }
    }

    /// Plans a read of an object that was stored only partly, if the omitted part now fits.
    fn plan_reread<W: Stored>(&self, resource: &ApiResource, rereads: &mut Rereads<Raw<W>>)
    where
        Fields<W>: ReadAlone,
    {
        let read = |key: ObjectKey| {
            let client = self.client().clone();
            let api: Api<Raw<W>> = Api::namespaced_with(client, &key.namespace, resource);
            async move { required_one_of(&api, &key.name).await }
        };
        rereads.plan(|after| W::next_that_fits(self.store(), after), read);
    }

    fn apply<W: Stored>(
        &self,
        event: Event<Raw<W>>,
        listing: &mut BTreeSet<ObjectKey>,
        skipped: &mut Skipped,
    ) {
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(object) => listing.extend(self.seen(object, skipped)),
            // Until the list is complete, a missing object might still be on the next page.
            Event::InitDone => {
                let listed = std::mem::take(listing);
                retain::<W>(self.store(), &listed);
                self.listed(W::KIND);
                if let Some(observer) = self.observer::<W>() {
                    observer.listed(&listed);
                }
            }
            Event::Apply(object) => {
                self.seen(object, skipped);
            }
            Event::Delete(object) => {
                if let Some(key) = object.key() {
                    if W::KIND == Machine::KIND {
                        self.departures().note(&key);
                    }
                    self.put::<W>(&key, None);
                    let observer = self.observer::<W>();
                    // A deletion has no content, so decoding cannot fail.
                    drop(observer.map(|observer| observer.put(&key, None)));
                }
            }
        }
    }

    /// The observer of objects of this kind.
    fn observer<W: Stored>(&self) -> Option<&dyn ClusterObserver> {
        self.cluster_observer().filter(|_| W::IS_CLUSTER)
    }

    fn failed<W: Stored>(&self) {
        if let Some(observer) = self.observer::<W>() {
            observer.failed();
        }
    }

    /// Stores an object from a watch event and returns its key. If the object cannot be decoded, the stored object does
    /// not change.
    pub(super) fn seen<W: Stored>(
        &self,
        object: Raw<W>,
        skipped: &mut Skipped,
    ) -> Option<ObjectKey> {
        let key = object.key()?;
        let observed = self
            .observer::<W>()
            .map(|observer| W::tell(observer, &key, &object));
        let observed = observed.and_then(Result::err);
        if let Some(error) = object.object.as_ref().err().or(observed.as_ref()) {
            skipped.note(object.meta(), error);
        }
        let metadata = ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            uid: object.metadata.uid.clone(),
            resource_version: object.metadata.resource_version.clone(),
            ..ObjectMeta::default()
        };
        if object.object.is_err() {
            let labelled = cluster_of(None, &object.metadata);
            let is_new = W::IS_CLUSTER && !self.store().has_unreadable(&key);
            W::note_unreadable(self.store(), &key, labelled.as_deref());
            if is_new {
                self.cluster_changed(&key);
            }
        }
        if let Ok(object) = object.kept() {
            match object.as_ref().and_then(W::is_leaving) {
                Some(true) => self.departures().note(&key),
                Some(false) => self.departures().forget(&key),
                None => {}
            }
            if let Some(object) = &object {
                self.note_members(&key.namespace, object.changed_members(self.store(), &key));
            }
            if let Some(limit) = self.put(&key, object) {
                skipped.note(&metadata, &Unreadable::because(limit.reason()));
            }
        }
        Some(key)
    }

    /// Records which members of a pool were removed by a scale-down. The name of such a member is its provider ID.
    fn note_members(&self, namespace: &str, changed: ChangedMembers) {
        let ChangedMembers { added, removed } = changed;
        let key = |id: &ProviderId| ObjectKey::new(namespace, id.as_str());
        for id in &added {
            self.departures().forget(&key(id));
        }
        for id in removed
            .iter()
            .filter(|id| id.as_str().len() <= MAX_NAME_LEN)
        {
            self.departures().note(&key(id));
        }
    }
}

#[cfg(test)]
mod tests;
