//! The Nodes of the cluster: their owners, and their deletion according to the rules in `node_removal`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use futures::future::FutureExt as _;
use kubelet_attestation::names::{NodeName, ProviderId};

use super::RecordLedger;
use super::overdue::OverdueNodes;
use crate::cluster_line;
use crate::identifiers::KeyDigest;
use crate::ledger::node_removal::{NodeOwner, OwnedNode, Removal};
use crate::ledger::records::Stored;
use crate::nodes::{NodeWorkResult, Nodes};
use crate::refusal::{Deferral, Unavailable};
use crate::scope::Enforcement;
use crate::unshared::Unshared;
use crate::verifier::Identity;

/// The Nodes of the cluster. Only this module can delete a Node.
#[derive(Debug)]
pub(in crate::ledger) struct ClusterNodes {
    nodes: Arc<dyn Nodes>,
    /// Whether attestation is enforced in the cluster.
    pub(super) enforcement: Enforcement,
    /// Not shared: only the sweep of this cluster uses this state.
    overdue: Unshared<OverdueNodes>,
    /// The last Node whose removal a sweep began. Not shared: only the sweep of this cluster uses this state.
    last_removal: Unshared<Option<NodeName>>,
}

/// A Node that a sweep deletes, with the record for its name.
#[derive(Debug)]
pub(in crate::ledger) struct DueRemoval<'a> {
    pub(in crate::ledger) stored: &'a Stored,
    /// The UID of the Node that a claim selected. `None` if the record is retired.
    pub(in crate::ledger) uid: Option<String>,
}

impl<'a> DueRemoval<'a> {
    fn reason(&self) -> Removal<'a> {
        match self.uid {
            Some(_) => Removal::Left(&self.stored.record),
            None => Removal::Retired(self.stored),
        }
    }
}

impl ClusterNodes {
    pub(super) fn new(nodes: Arc<dyn Nodes>, enforcement: Enforcement) -> Self {
        Self {
            nodes,
            enforcement,
            overdue: Unshared::default(),
            last_removal: Unshared::default(),
        }
    }
}

impl RecordLedger {
    /// Reads the Node with this name, and determines its owner.
    pub(in crate::ledger) async fn node(
        &self,
        name: &NodeName,
        now: SystemTime,
    ) -> Result<Option<OwnedNode>, Deferral> {
        let node = self.nodes.nodes.state(name).await;
        let Some(node) = node.map_err(Deferral::NodesUnavailable)? else {
            return Ok(None);
        };
        let owner = match &node.provider_id {
            None => NodeOwner::Unknown,
            Some(text) => self.owner(name, text).await?,
        };
        let read = self.nodes.nodes.now(now);
        Ok(Some(OwnedNode { node, owner, read }))
    }

    /// Returns the number of Ready Nodes among the Nodes whose certificates are overdue for renewal. One call reads at
    /// most 100 Nodes, and the next call continues with the others. `None` if no Node could be read.
    pub(in crate::ledger) async fn count_overdue(
        &self,
        overdue: &BTreeSet<&NodeName>,
    ) -> Option<usize> {
        let wanted = self.nodes.overdue.lock().choose(overdue);
        if wanted.is_empty() {
            return Some(0);
        }
        let read = self.nodes.nodes.ready(wanted).await;
        (!read.is_empty()).then(|| self.nodes.overdue.lock().note(read))
    }

    async fn owner(&self, name: &NodeName, text: &str) -> Result<NodeOwner, Deferral> {
        let gone = NodeOwner::Gone(text.to_owned());
        // A malformed provider ID does not belong to any machine.
        let Ok(provider_id) = ProviderId::parse(text) else {
            return Ok(gone);
        };
        let machine = self.inventory.by_provider_id(&provider_id).await;
        if machine.map_err(Deferral::InventoryUnavailable)?.is_some() {
            return Ok(NodeOwner::Present(provider_id));
        }
        // No record has this placeholder key, so the index finds only the records with the provider ID. A sweep calls
        // this function for each Node, so a scan of all records would be too slow.
        let (identity, key) = (Identity::of(provider_id), KeyDigest::of(&[]));
        let known = self.records.known_of_machine(&identity, key).await;
        let known = known.map_err(Deferral::LedgerUnavailable)?;
        let Identity { provider_id, .. } = identity;
        let mut known = known.iter().map(|stored| &stored.record);
        let is_held = known.any(|record| {
            record.is_live()
                && record.node_name != *name
                && record.holder.provider_id == provider_id
        });
        Ok(if is_held {
            NodeOwner::Present(provider_id)
        } else {
            gone
        })
    }

    /// Deletes several of these Nodes at the same time, if the rules permit it. The result does not contain Nodes that
    /// the call had no time to delete. The next call begins after the last Node whose deletion this call began.
    /// Therefore Nodes whose calls hang do not delay the other Nodes in each sweep.
    pub(in crate::ledger) async fn remove_nodes(
        &self,
        due: &BTreeMap<&NodeName, DueRemoval<'_>>,
        now: SystemTime,
    ) -> Vec<NodeWorkResult> {
        let last = self.nodes.last_removal.lock().clone();
        let last = last.as_ref();
        let (later, earlier): (Vec<_>, Vec<_>) =
            due.iter().partition(|(name, _)| Some(**name) > last);
        let in_turn = later.into_iter().chain(earlier);
        let work = in_turn.map(move |(&name, due)| {
            let work = async move {
                *self.nodes.last_removal.lock() = Some(name.clone());
                let removed = self.remove_node(name, due.uid.as_deref(), due.reason(), now);
                (name.clone(), removed.await.map_err(Unavailable::new))
            };
            work.boxed()
        });
        self.nodes.nodes.work(Box::new(work)).await
    }

    /// Deletes the Node with this name if the rules permit it. If a UID is given, deletes only the Node with this UID.
    /// Returns whether a Node was deleted.
    pub(in crate::ledger) async fn remove_node(
        &self,
        name: &NodeName,
        uid: Option<&str>,
        removal: Removal<'_>,
        now: SystemTime,
    ) -> Result<bool, Deferral> {
        let Some(found) = self.node(name, now).await? else {
            return Ok(false);
        };
        let is_another = uid.is_some_and(|uid| found.node.uid != uid);
        if is_another || !found.can_go(removal, self.nodes.enforcement.is_on()) {
            return Ok(false);
        }
        if let Removal::Retired(stored) = removal {
            // A machine claims the name before it creates its Node. Therefore the record is read after the Node: the
            // cache can lag, and a sweep takes time.
            let fresh = self.records.read(name).await;
            let fresh = fresh.map_err(Deferral::LedgerUnavailable)?;
            if fresh.is_none_or(|fresh| fresh.version != stored.version) {
                return Ok(false);
            }
        }
        let deleted = self.nodes.nodes.delete(name, &found.node.uid).await;
        deleted.map_err(Deferral::NodesUnavailable)?;
        cluster_line!(
            self.lines(),
            INFO,
            node = name.as_str(),
            uid = found.node.uid,
            "deleted the Node of the previous machine"
        );
        Ok(true)
    }
}
