//! The rules for deleting Nodes. All parts of the ledger that delete a Node use them.
//!
//! A kubelet creates its Node with the provider ID of its machine. The Node of another machine is never deleted,
//! regardless of the records for its name. Machines without a record have Nodes too, and their names can have belonged
//! to other machines before.

use std::sync::Arc;
use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use super::RecordLedger;
use super::record::Record;
use super::records::Stored;
use crate::cluster_line;
use crate::identifiers::KeyDigest;
use crate::nodes::{Node, Nodes};
use crate::refusal::Deferral;
use crate::scope::Enforcement;
use crate::verifier::Identity;

/// The Nodes of the cluster. Only this module can delete a Node.
#[derive(Debug)]
pub(super) struct ClusterNodes {
    nodes: Arc<dyn Nodes>,
    /// Whether attestation is enforced in the cluster.
    pub(super) enforcement: Enforcement,
}

impl ClusterNodes {
    pub(super) fn new(nodes: Arc<dyn Nodes>, enforcement: Enforcement) -> Self {
        Self { nodes, enforcement }
    }
}

/// A Node, with its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnedNode {
    pub(super) node: Node,
    pub(super) owner: NodeOwner,
    /// The time at which the Node was read, by the clock of an API server.
    pub(super) read: SystemTime,
}

/// The machine that a Node belongs to, from its `spec.providerID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeOwner {
    /// The Node has no provider ID.
    Unknown,
    /// A machine in the inventory, or the holder of another name.
    Present(ProviderId),
    /// No machine has this provider ID.
    Gone(String),
}

/// The reason to delete a Node.
#[derive(Debug, Clone, Copy)]
pub(super) enum Removal<'a> {
    /// A machine claims the name. The value is the name's record, if there is one.
    Claimed(Option<&'a Record>),
    /// The name has no holder. The record is retired.
    Retired(&'a Stored),
    /// The claim that opened this record selected the Node, and could not delete it. The new kubelet can have adopted
    /// the Node since, so only a Node that is down is deleted.
    Left(&'a Record),
}

impl OwnedNode {
    /// Whether the kubelet was not running when the Node was read.
    pub(super) fn is_down(&self) -> bool {
        self.node.is_down(self.read)
    }

    /// Whether the Node belongs to this machine.
    pub(super) fn is_of(&self, machine: &ProviderId) -> bool {
        match &self.owner {
            NodeOwner::Unknown => false,
            NodeOwner::Present(owner) => owner == machine,
            NodeOwner::Gone(owner) => owner == machine.as_str(),
        }
    }

    /// Whether the Node can be deleted. Without `is_enforced`, a Ready Node is never deleted: until attestation is
    /// enforced, nodes join and run as they did without this controller.
    pub(super) fn can_go(&self, removal: Removal<'_>, is_enforced: bool) -> bool {
        if self.node.ready && !is_enforced {
            return false;
        }
        let is_down = self.is_down();
        let (record, is_claimed) = match removal {
            Removal::Claimed(record) => (record, true),
            Removal::Retired(stored) => (Some(&stored.record), false),
            Removal::Left(record) => {
                let is_chosen = record.opened.stale_node.as_ref() == Some(&self.node.uid);
                return is_chosen && is_down && !self.is_of(&record.holder.provider_id);
            }
        };
        let record = record.filter(|record| self.is_of(&record.holder.provider_id));
        match (&self.owner, record) {
            (NodeOwner::Gone(_), Some(record)) => is_down || self.is_older(record),
            (NodeOwner::Present(_), Some(record)) if record.is_reset() => {
                is_down || self.is_older(record)
            }
            // The machine has another name now, and this Node is left over.
            (NodeOwner::Present(_), Some(record)) => is_down && record.is_renamed(),
            // Otherwise the kubelet of the machine that claims the name would adopt the Node, with its Pods.
            (NodeOwner::Unknown | NodeOwner::Gone(_), None) => is_claimed && is_down,
            (NodeOwner::Unknown, Some(_)) | (NodeOwner::Present(_), None) => false,
        }
    }

    /// Whether the Node is older than the retirement of the record.
    fn is_older(&self, record: &Record) -> bool {
        let since = record.tombstone.as_ref().map(|tombstone| tombstone.since);
        since.is_some_and(|since| self.node.created.is_some_and(|created| created < since))
    }
}

impl RecordLedger {
    /// Reads the Node with this name, and determines its owner.
    pub(super) async fn node(
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

    async fn owner(&self, name: &NodeName, text: &str) -> Result<NodeOwner, Deferral> {
        let gone = NodeOwner::Gone(text.to_owned());
        // No machine has a malformed provider ID.
        let Ok(provider_id) = ProviderId::parse(text) else {
            return Ok(gone);
        };
        let machine = self.inventory.by_provider_id(&provider_id).await;
        if machine.map_err(Deferral::InventoryUnavailable)?.is_some() {
            return Ok(NodeOwner::Present(provider_id));
        }
        // No record has this key. The index finds the records of the provider ID: a sweep calls this for each Node.
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

    /// Deletes the Node with this name if the rules permit it. With a UID, deletes only the Node with this UID. Returns
    /// whether it was deleted.
    pub(super) async fn remove_node(
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
            // A machine claims the name before it creates its Node. So this reads the record after the Node: the cache
            // can lag, and a sweep takes time.
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

#[cfg(test)]
mod tests;
