//! The inputs of the rules, and their outcome.

use std::collections::BTreeMap;
use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::crd::RevokedNodeCredentialsSpec;
use crate::identifiers::RecordUid;
use crate::ledger::Grant;
use crate::ledger::node_removal::OwnedNode;
use crate::ledger::record::Record;
use crate::ledger::records::Stored;
use crate::refusal::Refusal;

/// The inputs of the decision on a claim.
#[derive(Debug)]
pub(in crate::ledger) struct Facts<'a> {
    /// The record of the name.
    pub(in crate::ledger) own: Option<&'a Stored>,
    /// The other records of the machine, of its TPM and of its key.
    pub(in crate::ledger) others: &'a Others,
    /// The Nodes that were asked for.
    pub(in crate::ledger) nodes: &'a BTreeMap<NodeName, Option<OwnedNode>>,
    /// The state of the record's machine, if it was read.
    pub(in crate::ledger) holder: Option<HolderState>,
    /// The certificates and machines that are refused whatever the records have.
    pub(in crate::ledger) revoked: &'a RevokedNodeCredentialsSpec,
    /// Whether attestation is enforced in the cluster.
    pub(in crate::ledger) is_enforced: bool,
    /// For a new record.
    pub(in crate::ledger) uid: RecordUid,
    /// The time.
    pub(in crate::ledger) now: SystemTime,
}

/// The other records that a claim has to do with, as they are.
#[derive(Debug, Default)]
pub(in crate::ledger) struct Others {
    /// Live records of the machine under other names.
    pub(in crate::ledger) live: Vec<Stored>,
    /// Live records of other machines that have the TPM of the one that claims, and how those machines
    /// fare.
    pub(in crate::ledger) tpm_of: Vec<(Stored, HolderState)>,
    /// Live records of other machines that have the key of the claim.
    pub(in crate::ledger) key_of: Vec<Stored>,
    /// Whether any record of another name, live or a tombstone, is of the identity that claims: the
    /// claim renames it. A denial is spared for it, so that a cache may say so.
    pub(in crate::ledger) was_known: bool,
}

/// The state of a record's holder in the inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ledger) enum HolderState {
    Alive,
    Leaving,
    Gone,
    /// Its Machine is there, and has another provider ID.
    Contradicted,
}

/// The outcome of the rules.
#[derive(Debug)]
pub(in crate::ledger) enum Step {
    /// Find out more.
    Ask(Question),
    /// The claim holds.
    Grant(Grant),
    /// Make this record.
    Create(Box<Record>),
    /// Write this over what was read.
    Replace {
        record: Box<Record>,
        read: Box<Stored>,
    },
    /// It does not hold, or not yet.
    Refuse(Refusal),
}

/// A fact that the rules need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::ledger) enum Question {
    /// Whether the Node of this name is up.
    Node(NodeName),
    /// The state of this machine.
    Holder(ProviderId),
}

impl<R: Into<Refusal>> From<R> for Step {
    fn from(refusal: R) -> Self {
        Self::Refuse(refusal.into())
    }
}

impl From<Question> for Step {
    fn from(question: Question) -> Self {
        Self::Ask(question)
    }
}
