//! The reasons for grants, for operators.

use std::collections::BTreeMap;

use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use super::node_removal::OwnedNode;
use super::record::Record;
use super::{Claim, Claimant};
use crate::verifier::Assurance;

/// The reason for the grant of a certificate.
///
/// Decisions do not depend on this value, and only the process that wrote the record knows the value. If the process
/// crashes between the write and the response, the controller grants the same request with the reason
/// [`Again`](Self::Again).
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq)]
pub enum GrantReason {
    /// The first record of the name.
    #[display("first join")]
    First,
    /// A repeated request with the key that opened the generation. The record did not change.
    #[display("repeated request with the same key")]
    Again,
    /// The next generation of the same machine.
    #[display("re-enrolled with a new key ({_0})")]
    Reenrolled(ReenrolReason),
    /// The next generation, because an operator reset the current one. The write clears the reset.
    #[display("reset by an operator (generation {_0})")]
    Reset(u64),
    /// The name now belongs to another machine. The value is the previous holder's provider ID.
    #[display("the previous machine {_0} no longer exists")]
    ChangedHands(ProviderId),
    /// The machine has a different name now. The value is its previous name, whose record is retired.
    #[display("the previous node name of the machine was {_0}")]
    Renamed(NodeName),
    /// The first record for a Node that joined before this controller served the cluster.
    #[display("adopted an existing node")]
    Adopted,
    /// A certificate recovered the record, which was lost or came from a backup. The value is the generation of the
    /// certificate.
    #[display("recovered with a certificate of generation {_0}")]
    Recovered(u64),
    /// A renewal had stronger evidence than the record. The value is the record's previous attestation provider.
    #[display("renewed with stronger evidence than at its join (attestor {_0})")]
    EvidenceAdded(Provider),
    /// The next certificate of the current generation. The record did not change.
    #[display("a renewal")]
    Renewed,
}

/// The condition that allowed a machine to open a new generation.
#[derive(derive_more::Display, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReenrolReason {
    /// The machine's Node did not exist.
    #[display("no Node with its name")]
    NodeGone,
    /// The machine's Node was not ready.
    #[display("Node NotReady")]
    NodeDown,
    /// The machine's certificates had expired.
    #[display("its certificates had expired")]
    Expired,
    /// The machine's record was retired.
    #[display("its Machine had been missing")]
    Returned,
}

impl GrantReason {
    /// Returns the reason for granting `claim`. `before` is the record before the claim. `nodes` are the Nodes that
    /// were read. `renamed` is the machine's previous name, whose record was retired.
    pub(super) fn of(
        claim: &Claim,
        before: Option<&Record>,
        nodes: &BTreeMap<NodeName, Option<OwnedNode>>,
        renamed: Option<&NodeName>,
    ) -> Self {
        let machine = &claim.assurance.identity().provider_id;
        let renamed = renamed.cloned().map(Self::Renamed);
        if let Claimant::Renewal(uid) = claim.claimant {
            return match before {
                Some(before) if before.holder.provider_id != *machine => {
                    Self::ChangedHands(before.holder.provider_id.clone())
                }
                Some(before) if before.certificate_uid() == uid => {
                    Self::EvidenceAdded(before.holder.attestor.clone())
                }
                Some(_) | None => Self::Recovered(uid.generation),
            };
        }
        let Some(before) = before else {
            return renamed.unwrap_or(match claim.claimant {
                Claimant::Token => Self::First,
                Claimant::Node | Claimant::Renewal(_) => Self::Adopted,
            });
        };
        if before.holder.provider_id != *machine {
            return Self::ChangedHands(before.holder.provider_id.clone());
        }
        if before.is_reset() {
            return Self::Reset(before.generation);
        }
        renamed.unwrap_or_else(|| {
            let node = nodes.get(&claim.node_name);
            Self::Reenrolled(ReenrolReason::of(claim, before, node))
        })
    }

    /// The stable name, for Events and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::First => "FirstJoin",
            Self::Again => "JoinRepeated",
            Self::Reenrolled(_) => "Reenrolled",
            Self::Reset(_) => "IdentityReset",
            Self::ChangedHands(_) => "NameChangedHands",
            Self::Renamed(_) => "NodeRenamed",
            Self::Adopted => "NodeAdopted",
            Self::Recovered(_) => "IdentityRecovered",
            Self::EvidenceAdded(_) => "EvidenceAdded",
            Self::Renewed => "Renewed",
        }
    }

    /// Whether the grant creates an Event. A renewal does not create one.
    pub fn is_news(&self) -> bool {
        *self != Self::Renewed
    }
}

impl ReenrolReason {
    fn of(claim: &Claim, before: &Record, node: Option<&Option<OwnedNode>>) -> Self {
        if !before.is_live() {
            return Self::Returned;
        }
        match (&claim.assurance, node) {
            (Assurance::Attested(_), Some(None)) => Self::NodeGone,
            (Assurance::Attested(_), Some(Some(owned))) if owned.is_down() => Self::NodeDown,
            (Assurance::None(_) | Assurance::Attested(_), _) => Self::Expired,
        }
    }
}

#[cfg(test)]
mod tests;
