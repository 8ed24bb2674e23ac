//! The rules for the deletion of Nodes. All parts of the ledger that delete a Node use them.
//!
//! A kubelet creates its Node with the provider ID of its machine. The ledger never deletes the Node of another
//! existing machine, regardless of the records for the Node's name. Machines without a record also have Nodes, whose
//! names might have belonged to other machines.

use std::time::SystemTime;

use kubelet_attestation::names::ProviderId;

use super::record::Record;
use super::records::Stored;
use crate::nodes::Node;

/// A Node, with its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnedNode {
    pub(super) node: Node,
    pub(super) owner: NodeOwner,
    /// The time at which the Node was read, from an API server's clock.
    pub(super) read: SystemTime,
}

/// The machine of a Node, from its `spec.providerID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeOwner {
    /// The Node has no provider ID.
    Unknown,
    /// The Node belongs to a machine in the inventory, or to the holder of another name.
    Present(ProviderId),
    /// The provider ID does not belong to any machine.
    Gone(String),
}

/// The reason to delete a Node.
#[derive(Debug, Clone, Copy)]
pub(super) enum Removal<'a> {
    /// A machine claims the name. The value is the name's record, if the name has one.
    Claimed(Option<&'a Record>),
    /// The name has no holder. The record is retired.
    Retired(&'a Stored),
    /// The claim that opened this record selected the Node, but could not delete it. The new kubelet might have adopted
    /// the Node since then, so the Node is deleted only if its kubelet is not running.
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

    /// Whether the rules allow deleting the Node. If `is_enforced` is false, the ledger never deletes a Ready Node:
    /// until attestation is enforced, the controller does not affect how nodes join and run.
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
            // The machine now has a different name, and this Node remains from the previous name.
            (NodeOwner::Present(_), Some(record)) => is_down && record.is_renamed(),
            // If the ledger kept the Node, the kubelet of the claiming machine would adopt the Node and its Pods.
            (NodeOwner::Unknown | NodeOwner::Gone(_), None) => is_claimed && is_down,
            (NodeOwner::Unknown, Some(_)) | (NodeOwner::Present(_), None) => false,
        }
    }

    /// Whether the Node was created before the record was retired.
    fn is_older(&self, record: &Record) -> bool {
        let since = record.tombstone.as_ref().map(|tombstone| tombstone.since);
        since.is_some_and(|since| self.node.created.is_some_and(|created| created < since))
    }
}

#[cfg(test)]
mod tests;
