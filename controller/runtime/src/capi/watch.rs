//! Watches of Cluster API's objects on the management cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::StreamExt as _;
use kube::api::Api;
use kube::core::ApiResource;
use kube::runtime::watcher::Event;
use kube::{Client, Resource as _};
use tokio::time::sleep;

use super::api_discovery::served;
use super::cache::Objects;
use super::objects::{Cluster, Machine, MachinePool, ObjectKey, Raw};
use super::store::{Stored, retain};
use crate::metrics::Metrics;
use crate::watch::{
    ExponentialBackoff, Skipped, WatchLog, heard_config, is_gone, listening, on_management,
};

/// Before it is looked again whether a kind is there that was not.
const ABSENT_RETRY: Duration = Duration::from_secs(30);

/// On a Cluster: which of several controllers it is for.
pub(crate) const WATCH_FILTER_LABEL: &str = "cluster.x-k8s.io/watch-filter";

/// The objects that the controller watches, selected as for Cluster API's controllers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The namespace; `None`: all.
    pub namespace: Option<String>,
    /// The value of the label `cluster.x-k8s.io/watch-filter` of the Clusters; `None`: any. The objects of a
    /// Cluster need not have the label.
    pub watch_filter: Option<String>,
}

impl Selection {
    /// Whether the watch filter selects an object with these labels.
    pub(crate) fn has_label(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let value = labels.and_then(|labels| labels.get(WATCH_FILTER_LABEL));
        self.watch_filter.is_none() || self.watch_filter.as_ref() == value
    }
}

/// Watches all kinds, forever.
pub(super) async fn watch_all(objects: Objects, selection: Selection, metrics: Metrics) {
    tokio::join!(
        objects.watch::<Cluster>(&selection, &metrics),
        objects.watch::<Machine>(&selection, &metrics),
        objects.watch::<MachinePool>(&selection, &metrics),
    );
}

impl Objects {
    /// Watches one kind, forever, in the version that is served then.
    async fn watch<W: Stored>(&self, selection: &Selection, metrics: &Metrics) {
        let metrics = metrics.watch(W::KIND);
        let (objects, measured) = (self.clone(), metrics.clone());
        let client = &listening(self.client().clone(), move || {
            objects.heard(W::KIND);
            measured.heard();
        });
        let mut told = WatchLog::new(W::KIND).measured_by(metrics);
        let mut waits = ExponentialBackoff::default();
        loop {
            match served(client, W::KIND).await {
                Ok(Some(resource)) => {
                    self.follow::<W>(client, &resource, selection, &mut told)
                        .await;
                }
                Ok(None) => {
                    told.absent();
                    if W::MAY_BE_ABSENT {
                        self.listed(W::KIND);
                        told.none();
                    }
                    sleep(ABSENT_RETRY).await;
                    continue;
                }
                Err(error) => told.failed(&error),
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
        told: &mut WatchLog,
    ) {
        if W::IS_CLUSTER {
            self.watches_clusters_in(&resource.api_version);
        }
        let client = client.clone();
        let api: Api<Raw<W>> = match &selection.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let mut events = std::pin::pin!(on_management(api, heard_config()));
        let (mut listing, mut skipped) = (BTreeSet::new(), Skipped::new(W::KIND));
        while let Some(event) = events.next().await {
            told.observe(&event, || {
                tracing::info!(kind = W::KIND, version = resource.api_version, "watching");
            });
            match event {
                Ok(event) => self.apply(event, &mut listing, &mut skipped),
                Err(error) if is_gone(&error) => return,
                Err(_) => {}
            }
        }
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
            // Until the list is complete, what it has not named yet may be on its next page.
            Event::InitDone => {
                let listed = std::mem::take(listing);
                retain::<W>(self.store(), &listed);
                self.listed(W::KIND);
            }
            Event::Apply(object) => {
                self.seen(object, skipped);
            }
            Event::Delete(object) => {
                if let Some(key) = object.key() {
                    self.put::<W>(&key, None);
                }
            }
        }
    }

    /// Keeps the object that a watch has shown, and returns its key. One that cannot be read stays what it was.
    pub(super) fn seen<W: Stored>(
        &self,
        object: Raw<W>,
        skipped: &mut Skipped,
    ) -> Option<ObjectKey> {
        let key = object.key()?;
        if let Err(error) = &object.object {
            skipped.note(object.meta(), error);
        }
        if let Ok(object) = object.kept() {
            self.put(&key, object);
        }
        Some(key)
    }
}

#[cfg(test)]
mod tests;
