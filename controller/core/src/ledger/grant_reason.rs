//! The history of a record when a certificate is granted, for people.

use std::collections::BTreeMap;
use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use super::Claim;
use super::node_removal::OwnedNode;
use super::record::Record;
use crate::verifier::Assurance;

/// The reason for which a certificate was granted.
///
/// Nothing rests on it. It is known by whoever wrote the record: after a crash between that and the
/// answer, the same request is granted [`Again`](Self::Again).
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq)]
pub enum GrantReason {
    /// The name's first record.
    #[display("the name's first record")]
    First,
    /// The key that opened the generation asks again: nothing was written.
    #[display("the key that opened the generation asked again")]
    Again,
    /// The same machine's next generation.
    #[display("the machine came with another key: {_0}")]
    Reenrolled(ReenrolReason),
    /// The next generation, since a person gave this one up; the annotation is used up with that.
    #[display("a person gave generation {_0} up; the annotation is used up")]
    Reset(u64),
    /// The name is another machine's now: whose it was.
    #[display("the name was {_0}'s, which is gone")]
    ChangedHands(ProviderId),
    /// The machine has another name now: its former one, whose record is a tombstone.
    #[display("the machine's name was {_0}")]
    Renamed(NodeName),
    /// The first record of a Node that joined before us.
    #[display("the Node joined before, and is taken on")]
    Adopted,
    /// The machine proved more of itself with a renewal than its record had: its former attestor.
    #[display("the machine renewed with evidence that its record, of attestor {_0}, did not have")]
    EvidenceAdded(Provider),
    /// The present generation's next certificate: nothing was written.
    #[display("a renewal")]
    Renewed,
}

/// Why a machine could leave a generation.
#[derive(derive_more::Display, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReenrolReason {
    /// There was no Node of its name.
    #[display("there was no Node of its name")]
    NodeGone,
    /// Its Node was not ready.
    #[display("its Node was not ready")]
    NodeDown,
    /// Its certificates had expired.
    #[display("its certificates had expired")]
    Expired,
    /// Its record was a tombstone.
    #[display("its Machine had been gone")]
    Returned,
}

impl GrantReason {
    /// The reason for which `claim` is granted, with the record `before` it. `nodes` are the Nodes that
    /// were read, and `renamed` is the machine's former name, whose record was retired.
    pub(super) fn of(
        claim: &Claim,
        before: Option<&Record>,
        nodes: &BTreeMap<NodeName, Option<OwnedNode>>,
        renamed: Option<&NodeName>,
        now: SystemTime,
    ) -> Self {
        let machine = &claim.assurance.identity().provider_id;
        let renamed = renamed.cloned().map(Self::Renamed);
        let Some(before) = before else {
            return renamed.unwrap_or(match claim.claimant {
                super::Claimant::Token => Self::First,
                super::Claimant::Node | super::Claimant::Renewal(_) => Self::Adopted,
            });
        };
        if let super::Claimant::Renewal(_) = claim.claimant {
            return Self::EvidenceAdded(before.holder.attestor.clone());
        }
        if before.holder.provider_id != *machine {
            return Self::ChangedHands(before.holder.provider_id.clone());
        }
        if before.is_reset() {
            return Self::Reset(before.generation);
        }
        renamed.unwrap_or_else(|| {
            let node = nodes.get(&claim.node_name);
            Self::Reenrolled(ReenrolReason::of(claim, before, node, now))
        })
    }

    /// A stable name, for Events and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::First => "FirstJoin",
            Self::Again => "JoinRepeated",
            Self::Reenrolled(_) => "Reenrolled",
            Self::Reset(_) => "IdentityReset",
            Self::ChangedHands(_) => "NameChangedHands",
            Self::Renamed(_) => "NodeRenamed",
            Self::Adopted => "NodeAdopted",
            Self::EvidenceAdded(_) => "EvidenceAdded",
            Self::Renewed => "Renewed",
        }
    }

    /// Whether it is worth an Event: a renewal is nothing new.
    pub fn is_news(&self) -> bool {
        *self != Self::Renewed
    }
}

impl ReenrolReason {
    fn of(
        claim: &Claim,
        before: &Record,
        node: Option<&Option<OwnedNode>>,
        now: SystemTime,
    ) -> Self {
        if !before.is_live() {
            return Self::Returned;
        }
        match (&claim.assurance, node) {
            (Assurance::Attested(_), Some(None)) => Self::NodeGone,
            (Assurance::Attested(_), Some(Some(owned))) if owned.node.is_down(now) => {
                Self::NodeDown
            }
            (Assurance::None(_) | Assurance::Attested(_), _) => Self::Expired,
        }
    }
}

#[cfg(test)]
mod tests;
