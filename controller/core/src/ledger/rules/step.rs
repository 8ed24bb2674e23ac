//! The inputs to the rules, and their outcomes.

use std::collections::BTreeMap;
use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::identifiers::RecordUid;
use crate::ledger::Grant;
use crate::ledger::node_removal::OwnedNode;
use crate::ledger::record::Record;
use crate::ledger::records::Stored;
use crate::ledger::revocations::KnownRevocations;
use crate::refusal::Refusal;

/// The inputs to the decision on a claim.
#[derive(Debug)]
pub(in crate::ledger) struct Facts<'a> {
    /// The record for the claimed name.
    pub(in crate::ledger) own: Option<&'a Stored>,
    /// The records of other node identities with the same machine, TPM or key.
    pub(in crate::ledger) others: &'a Others,
    /// The Nodes that were read.
    pub(in crate::ledger) nodes: &'a BTreeMap<NodeName, Option<OwnedNode>>,
    /// The state of the record's holder, if it was read.
    pub(in crate::ledger) holder: Option<HolderState>,
    /// The revoked certificates and machines, which are rejected regardless of the records.
    pub(in crate::ledger) revoked: &'a KnownRevocations,
    /// Whether attestation is enforced in the cluster.
    pub(in crate::ledger) is_enforced: bool,
    /// The UID for a new record.
    pub(in crate::ledger) uid: RecordUid,
    /// The current time.
    pub(in crate::ledger) now: SystemTime,
}

/// The other records that are relevant to a claim, from the store. A request can wait for minutes while it reads them,
/// so only the values that the rules use are kept.
#[derive(Debug, Default)]
pub(in crate::ledger) struct Others {
    /// The first live record of the machine under another name. This record is retired next.
    pub(in crate::ledger) live: Option<Box<Stored>>,
    /// The following live records of the machine, without the texts that no rule reads.
    pub(in crate::ledger) more_live: Vec<Record>,
    /// The first live record of another existing machine with the claimant's TPM, and the state of this machine.
    pub(in crate::ledger) tpm_of: Option<(NodeName, ProviderId, HolderState)>,
    /// The first live record of another machine with the key of the claim.
    pub(in crate::ledger) key_of: Option<(NodeName, ProviderId)>,
    /// Whether another name has a live or retired record for the claimant's identity, which means that the claim
    /// renames the machine. This field can only prevent a denial, so cached data is sufficient.
    pub(in crate::ledger) was_known: bool,
    /// Whether another name has a record with the UID of the certificate that recovers a record.
    pub(in crate::ledger) has_uid: bool,
}

impl Others {
    /// Adds a live record of the machine under another name.
    pub(in crate::ledger) fn add_live(&mut self, stored: Stored) {
        if self.live.is_none() {
            self.live = Some(Box::new(stored));
        } else {
            self.more_live.push(stored.record.without_texts());
        }
    }

    /// The live records of the machine under other names.
    pub(in crate::ledger) fn all_live(&self) -> impl Iterator<Item = &Record> {
        let first = self.live.iter().map(|stored| &stored.record);
        first.chain(&self.more_live)
    }
}

/// The state of a record's holder in the inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ledger) enum HolderState {
    Alive,
    Leaving,
    Gone,
    /// The Machine of the holder exists, and has a different provider ID.
    Contradicted,
}

/// The outcome of the rules.
#[derive(Debug)]
pub(in crate::ledger) enum LedgerStep {
    /// Read this fact, and apply the rules again.
    Ask(Question),
    /// Grant the claim.
    Grant(Grant),
    /// Create this record.
    Create(Box<Record>),
    /// Replace the record that was read.
    Replace {
        record: Box<Record>,
        read: Box<Stored>,
    },
    /// Deny or defer the claim.
    Refuse(Refusal),
}

/// A fact that the rules need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::ledger) enum Question {
    /// The Node with this name.
    Node(NodeName),
    /// The state of this machine.
    Holder(ProviderId),
}

impl<R: Into<Refusal>> From<R> for LedgerStep {
    fn from(refusal: R) -> Self {
        Self::Refuse(refusal.into())
    }
}

impl From<Question> for LedgerStep {
    fn from(question: Question) -> Self {
        Self::Ask(question)
    }
}
