//! Events on `NodeIdentity` objects about garbage collection.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
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

/// The maximum number of remembered actions. They prevent further Events about a Node that is created repeatedly. A
/// tenant with many Clusters can cause any number of actions, because the tenant writes the records and operates the
/// API server.
const MAX_REMEMBERED: usize = 1000;

/// The Events on the records of one cluster.
#[derive(Debug)]
pub(super) struct SweepEvents {
    events: Events,
    api: Api<NodeIdentity>,
    cluster: ObjectKey,
    /// The hashes of the actions that have an Event.
    written: BTreeSet<u64>,
    hashes: RandomState,
}

impl SweepEvents {
    pub(super) fn new(events: Events, management: &Client, cluster: &ObjectKey) -> Self {
        Self {
            events,
            api: Api::namespaced(management.clone(), &cluster.namespace),
            cluster: cluster.clone(),
            written: BTreeSet::new(),
            hashes: RandomState::new(),
        }
    }

    /// Writes an Event for each action, except for actions that already have an Event.
    pub(super) async fn write(&mut self, done: Vec<SweepAction>, now: SystemTime) {
        if self.written.len() > MAX_REMEMBERED {
            self.written.clear();
        }
        for done in done.into_iter().take(MAX_A_SWEEP) {
            let (reason, note) = words(&done);
            let hash = self
                .hashes
                .hash_one((done.node_name.as_str(), reason, &note));
            if self.written.insert(hash) {
                let regarding = self.record(&done).await;
                let is_warning = done.what == Swept::Contradicted;
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
        Swept::Retired => (
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
                "Deleted Node {node_name} of the previous machine before the start of generation {generation}."
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::Response;
    use hyper::body::Bytes;
    use kubelet_attestation::names::NodeName;

    use super::*;
    use crate::client::ClusterAccess;

    #[tokio::test]
    async fn reported_actions_use_bounded_memory_and_are_reported_once() {
        let (events, mut next) = Events::collected();
        let access = ClusterAccess::in_memory(|_| async {
            Response::new(Full::new(Bytes::from_static(b"{}")))
        });
        let cluster = ObjectKey::new("tenant-a", "prod-1");
        let mut events = SweepEvents::new(events, access.client(), &cluster);
        let action = |number: usize| SweepAction {
            node_name: NodeName::parse(&format!("n{number}")).unwrap(),
            generation: 1,
            what: Swept::NodeRemoved,
        };

        let mut reported = Vec::new();
        for number in 0..2 * MAX_REMEMBERED {
            for _ in 0..2 {
                events
                    .write(vec![action(number)], SystemTime::UNIX_EPOCH)
                    .await;
            }
            reported.push(std::iter::from_fn(&mut next).count());
        }

        assert!(events.written.len() <= MAX_REMEMBERED + 1);
        let len: usize = events.written.iter().map(size_of_val).sum();
        assert!(len <= 8 * (MAX_REMEMBERED + 1), "{len}");
        assert!(reported.iter().all(|count| (1..=2).contains(count)));
        let twice = reported.iter().filter(|count| **count == 2).count();
        assert!(twice <= 1, "only an action before the memory was cleared");
    }
}
