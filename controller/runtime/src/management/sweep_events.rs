//! Events on `NodeIdentity` objects about garbage collection.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::Api;
use kube::{Client, Resource as _};
use node_attestation_core::crd::{self, NodeIdentity};
use node_attestation_core::ledger::{SweepAction, Swept};

use crate::capi::ObjectKey;
use crate::client::in_time;
use crate::events::Events;
use crate::watch::metadata_of_one;

/// The deadline for a call about one small object.
const DEADLINE: Duration = Duration::from_secs(5);

/// The maximum number of Events per sweep. If all machines of a cluster are deleted together, the remaining actions are
/// only logged.
const MAX_A_SWEEP: usize = 20;

/// The maximum number of remembered actions. These actions prevent further Events for a Node that is created
/// repeatedly.
const MAX_REMEMBERED: usize = 10_000;

/// The Events on the records of one cluster.
#[derive(Debug)]
pub(super) struct SweepEvents {
    events: Events,
    api: Api<NodeIdentity>,
    cluster: ObjectKey,
    written: BTreeSet<SweepAction>,
}

impl SweepEvents {
    pub(super) fn new(events: Events, management: &Client, cluster: &ObjectKey) -> Self {
        Self {
            events,
            api: Api::namespaced(management.clone(), &cluster.namespace),
            cluster: cluster.clone(),
            written: BTreeSet::new(),
        }
    }

    /// Writes an Event for each action, except for actions that already have an Event.
    pub(super) async fn write(&mut self, done: Vec<SweepAction>, now: SystemTime) {
        if self.written.len() > MAX_REMEMBERED {
            self.written.clear();
        }
        for done in done.into_iter().take(MAX_A_SWEEP) {
            if self.written.insert(done.clone()) {
                let regarding = self.record(&done).await;
                let is_warning = done.what == Swept::Contradicted;
                let (reason, note) = words(&done);
                self.events.tell(regarding, is_warning, reason, note, now);
            }
        }
    }

    /// The reference to the record. If the record cannot be read, the reference has no UID, so `kubectl describe` does
    /// not show the Event.
    async fn record(&self, done: &SweepAction) -> ObjectReference {
        let name = crd::object_name(&self.cluster.name, done.node_name.as_str());
        let read = in_time(DEADLINE, metadata_of_one(&self.api, &name)).await;
        ObjectReference {
            api_version: Some(NodeIdentity::api_version(&()).into_owned()),
            kind: Some(NodeIdentity::kind(&()).into_owned()),
            namespace: Some(self.cluster.namespace.clone()),
            name: Some(name),
            uid: read.ok().flatten().and_then(|read| read.metadata.uid),
            ..ObjectReference::default()
        }
    }
}

/// The reason and the note for the Event.
fn words(done: &SweepAction) -> (&'static str, String) {
    let SweepAction {
        node_name,
        generation,
        what,
    } = done;
    match what {
        Swept::Buried => (
            "RecordRetired",
            format!(
                "The Machine no longer exists. Revoked the certificates of generation \
                 {generation}."
            ),
        ),
        Swept::Contradicted => (
            "ProviderIdDiffers",
            format!(
                "The provider ID of this Machine no longer matches the ID with which node {node_name} \
                 joined. Revoked the certificates of generation {generation}."
            ),
        ),
        Swept::NodeRemoved => (
            "NodeRemoved",
            format!("Deleted Node {node_name}: no NodeIdentity uses this name."),
        ),
        Swept::StaleNodeRemoved => (
            "StaleNodeRemoved",
            format!(
                "Deleted Node {node_name} of the previous machine, before generation {generation}."
            ),
        ),
    }
}
