//! The rules that decide on a claim, based on the records.
//!
//! The rules are pure. If the rules need another fact, the step is [`Ask`](LedgerStep::Ask). If the rules need a
//! change, the step is one write. Then the ledger applies the rules to the new state.

use kubelet_attestation::ensure;
use kubelet_attestation::names::{NodeName, ProviderId};

use super::node_removal::{OwnedNode, Removal};
use super::records::Stored;
use super::{Adoption, Claim, Claimant, Grant, GrantReason, LedgerPolicy, Record, TombstoneReason};
use crate::crd::RevokedKey;
use crate::identifiers::CertificateUid;
use crate::refusal::{Deferral, Denial, Refusal, WaitEnd};
use crate::verifier::Assurance;

mod holding;
mod recovery;
mod step;

pub(super) use holding::{Renewed, holder, is_from_backup, renewed};
pub(super) use recovery::can_recover;
pub(super) use step::{Facts, HolderState, LedgerStep, Others, Question};

use holding::identity_revoked;

/// The denial for a key or a machine with this entry in the revocation list. If the name in the entry is invalid, the
/// entry still applies, and the denial contains `node_name`.
pub(super) fn stopped(entry: &RevokedKey, node_name: &NodeName) -> Denial {
    let name = NodeName::parse(&entry.node_name);
    Denial::IdentityRevoked(name.unwrap_or_else(|_| node_name.clone()), entry.generation)
}

/// Returns the next step of a claim.
pub(super) fn claimed(claim: &Claim, facts: &Facts<'_>, policy: &LedgerPolicy) -> LedgerStep {
    let rules = Rules {
        claim,
        facts,
        policy,
    };
    let provider_id = &claim.assurance.identity().provider_id;
    // These checks apply to every claim, so they precede the cases below. The revocation is first: its denial is final,
    // and the node then creates a new key. The check of the TPM can instead defer a revoked machine's request for as
    // long as another machine is leaving. No provider needs both of the other checks, so their order has no effect.
    let own = rules
        .is_not_stopped()
        .and_then(|()| rules.has_its_own_tpm())
        .and_then(|()| rules.may_be_new());
    let step = own.and_then(|()| match facts.own {
        None => rules.first(),
        Some(own) if own.record.holder.provider_id == *provider_id => rules.again(own),
        Some(own) => rules.another(own),
    });
    step.unwrap_or_else(|end| end)
}

struct Rules<'a> {
    claim: &'a Claim,
    facts: &'a Facts<'a>,
    policy: &'a LedgerPolicy,
}

/// The result of a check. The error is the step to take instead of further checks.
type Checked<T> = Result<T, LedgerStep>;

impl Rules<'_> {
    /// Checks that the revocation list contains neither the key nor the machine. The check does not use the record,
    /// which can be missing, or can come from a backup that is older than the revocation.
    fn is_not_stopped(&self) -> Checked<()> {
        let machine = &self.claim.assurance.identity().provider_id;
        match self.facts.revoked.stops(self.claim.key, machine) {
            Some(entry) => Err(stopped(entry, &self.claim.node_name).into()),
            None => Ok(()),
        }
    }

    /// Whether the list revokes the certificates of the record's current generation.
    fn is_refused(&self, record: &Record) -> bool {
        self.facts.revoked.refuses(record.certificate_uid())
    }

    /// Checks that the claimant's TPM does not belong to another machine that still exists.
    fn has_its_own_tpm(&self) -> Checked<()> {
        let Some((name, machine, state)) = self.facts.others.tpm_of.clone() else {
            return Ok(());
        };
        match state {
            HolderState::Alive => Err(Denial::TpmOfAnotherMachine(name, machine).into()),
            HolderState::Leaving => Err(Deferral::HolderLeaving(name, machine).into()),
            HolderState::Gone | HolderState::Contradicted => Ok(()),
        }
    }

    /// Checks that the key of the claim does not belong to another machine. A copied disk contains the original
    /// machine's key and request, so both machines would use the same key.
    fn has_its_own_key(&self) -> Checked<()> {
        match self.facts.others.key_of.clone() {
            Some((name, machine)) => Err(Denial::KeyOfAnotherMachine(name, machine).into()),
            None => Ok(()),
        }
    }

    /// Checks that the claimant's identity, which has no record, is allowed to open its first record.
    fn may_be_new(&self) -> Checked<()> {
        let Assurance::Attested(attested) = &self.claim.assurance else {
            return Ok(());
        };
        let own = self.facts.own.map(|own| &own.record.holder);
        if self.facts.others.was_known || own.is_some_and(|holder| holder.was_proved(attested)) {
            return Ok(());
        }
        match attested.denied_unless_known() {
            Some(denial) => Err(denial.clone().into()),
            None => Ok(()),
        }
    }

    /// Returns the step if the name has no record yet.
    fn first(&self) -> Checked<LedgerStep> {
        self.has_its_own_key()?;
        let stale_node = match self.claim.claimant {
            // The requester has the certificate of this Node, so the Node belongs to this machine.
            Claimant::Node => {
                self.may_be_adopted()?;
                None
            }
            Claimant::Token => self.stale_node(None)?,
            Claimant::Renewal(uid) => return self.recovered(None, uid),
        };
        self.leave_others()?;
        let Facts { uid, now, .. } = *self.facts;
        let record = Record::first(self.claim, uid, stale_node, now);
        let record = record.not_below(self.facts.revoked.lowest_valid(uid), now);
        Ok(LedgerStep::Create(Box::new(record)))
    }

    /// Returns the step if the claiming machine holds the name.
    fn again(&self, own: &Stored) -> Checked<LedgerStep> {
        let record = &own.record;
        if let Claimant::Renewal(uid) = self.claim.claimant {
            return self.strengthened(own, uid);
        }
        self.may_ask()?;
        if record.is_reset() && !self.is_certificate_alone() {
            return self.reopen(own, self.node_since(record)?);
        }
        self.may_return(record)?;
        if let Some(grant) = self.repeated(record) {
            return match self.leave_others() {
                Ok(()) => Ok(LedgerStep::Grant(grant)),
                Err(LedgerStep::Refuse(Refusal::Retry(
                    Deferral::IdentityLive { .. } | Deferral::EvidenceExpected { .. },
                ))) if self.came_second(record) => Ok(self.retire(own, TombstoneReason::Renamed)),
                Err(step) => Err(step),
            };
        }
        // No revocation covers this certificate. Therefore it is allowed to open the first generation, but not a later
        // one.
        if self.is_certificate_alone() {
            return Err(Denial::RequesterUidMissing.into());
        }
        if record.is_live() {
            self.may_reenrol(record)?;
        }
        self.reopen(own, self.node_since(record)?)
    }

    /// Returns the step if a renewal has stronger evidence than the record.
    fn strengthened(&self, own: &Stored, uid: CertificateUid) -> Checked<LedgerStep> {
        let record = &own.record;
        let identity = self.claim.assurance.identity();
        let is_present = record.certificate_uid() == uid;
        let is_former = !record.is_live() || !is_present && !record.supersedes(uid);
        if is_former && self.policy.adoption == Adoption::Recover {
            return self.recovered_again(own, uid);
        }
        if is_former || self.facts.revoked.refuses(uid) {
            return Err(self.former_certificate(uid));
        }
        self.may_return(record)?;
        if !is_present && self.policy.adoption == Adoption::Recover {
            self.leave_others()?;
        }
        if !is_present || !record.holder.is_weaker_than(identity) {
            return Ok(LedgerStep::Grant(Grant {
                uid: record.certificate_uid(),
                not_after: self.claim.not_after,
                reason: GrantReason::Renewed,
            }));
        }
        self.leave_others()?;
        let longest = self.policy.longest_lifetime;
        let record = record.strengthened(self.claim, longest, self.facts.now);
        let record = self.not_below_lowest(record);
        Ok(LedgerStep::Replace {
            record: Box::new(record),
            read: Box::new(own.clone()),
        })
    }

    /// Returns the UID of a Node that the claim replaces because it was created while the machine was absent. Until the
    /// machine's previous certificate is revoked, any holder of the certificate can create such a Node.
    fn node_since(&self, record: &Record) -> Checked<Option<String>> {
        let machine = &self.claim.assurance.identity().provider_id;
        if record.is_live() {
            return Ok(None);
        }
        match self.node(&self.claim.node_name)? {
            Some(node) if !node.is_of(machine) => self.stale_node(Some(record)),
            Some(_) | None => Ok(None),
        }
    }

    /// Checks that the identity's certificates are not revoked, that the instance is the same, and that its TPM
    /// counters did not decrease.
    fn may_return(&self, record: &Record) -> Checked<()> {
        ensure!(!record.is_revoked(), identity_revoked(record).into());
        if !record.holder.is(self.claim.assurance.identity()) {
            return Err(record.refused(Denial::AnotherInstance).into());
        }
        record.allows_boot(self.claim.assurance.identity(), self.claim.asked)?;
        Ok(())
    }

    /// Checks that a node is allowed to send requests with a certificate that does not identify a record.
    fn may_ask(&self) -> Checked<()> {
        match self.claim.claimant {
            Claimant::Node if !self.adopts() => Err(Denial::RequesterUidMissing.into()),
            Claimant::Node | Claimant::Token | Claimant::Renewal(_) => Ok(()),
        }
    }

    /// Whether a claim with a certificate that does not identify a record is allowed to open the first record.
    fn adopts(&self) -> bool {
        match (self.policy.adoption, &self.claim.assurance) {
            (Adoption::Allow, Assurance::Attested(_))
            | (Adoption::AllowWithoutEvidence, Assurance::None(_)) => true,
            (Adoption::Refuse | Adoption::Recover, _)
            | (Adoption::Allow, Assurance::None(_))
            | (Adoption::AllowWithoutEvidence, Assurance::Attested(_)) => false,
        }
    }

    /// Checks that the requesting Node can be adopted. Without evidence, the Node must exist, and the machine must not
    /// have another record, because the adoption would retire that record.
    fn may_be_adopted(&self) -> Checked<()> {
        if self.is_certificate_alone() && self.facts.others.live.is_some() {
            return Err(Denial::RequesterUidMissing.into());
        }
        if self.adopts()
            && (!self.is_certificate_alone() || self.node(&self.claim.node_name)?.is_some())
        {
            Ok(())
        } else {
            Err(Denial::RequesterUidMissing.into())
        }
    }

    /// Whether a certificate that does not identify a record is the only basis of the claim.
    fn is_certificate_alone(&self) -> bool {
        let unproved = matches!(self.claim.assurance, Assurance::None(_));
        unproved && self.claim.claimant == Claimant::Node
    }

    /// Returns the grant of the current generation, if this claim opened it.
    fn repeated(&self, record: &Record) -> Option<Grant> {
        if !record.is_live() || record.opened.key != self.claim.key || self.is_refused(record) {
            return None;
        }
        let not_after = match self.claim.assurance {
            Assurance::Attested(_) => self.claim.not_after,
            // Machines without evidence are not allowed to renew. Therefore a repeated request with the same key is not
            // granted after the certificate has expired.
            Assurance::None(_) if record.not_after < self.facts.now => return None,
            Assurance::None(_) => self.claim.not_after.min(record.not_after),
        };
        Some(Grant {
            uid: record.certificate_uid(),
            not_after,
            reason: GrantReason::Again,
        })
    }

    /// Returns the step if another machine holds the name, or the record has a different provider ID.
    fn another(&self, own: &Stored) -> Checked<LedgerStep> {
        let record = &own.record;
        if let Claimant::Renewal(uid) = self.claim.claimant {
            return self.recovered_from_another(own, uid);
        }
        if self.claim.is_of_machine(&record.holder) {
            if !record.is_reset() {
                self.may_return(record)?;
            }
            let holder = &record.holder.provider_id;
            if record.is_live() && self.holder(holder)? == HolderState::Alive {
                self.may_reenrol(record)?;
                return self.reopen(own, None);
            }
        }
        if record.is_live() && !record.is_reset() {
            match self.holder(&record.holder.provider_id)? {
                HolderState::Alive => return Err(record.refused(Denial::NameTaken).into()),
                HolderState::Leaving => {
                    return Err(record.refused(Deferral::HolderLeaving).into());
                }
                HolderState::Gone | HolderState::Contradicted => {}
            }
        }
        if self.claim.claimant == Claimant::Node {
            return Err(Denial::RequesterUidMissing.into());
        }
        let stale_node = self.stale_node(Some(record))?;
        self.reopen(own, stale_node)
    }

    /// Returns the UID of the Node that the machine's claim replaces. `former` is the record for the name before the
    /// claim.
    fn stale_node(&self, former: Option<&Record>) -> Checked<Option<String>> {
        let name = &self.claim.node_name;
        let machine = &self.claim.assurance.identity().provider_id;
        let is_enforced = self.facts.is_enforced;
        match self.node(name)? {
            None => Ok(None),
            Some(node) if node.can_go(Removal::Claimed(former), is_enforced) => {
                Ok(Some(node.node.uid.clone()))
            }
            Some(node) if !node.is_down() => Err(Deferral::NodeAlive(name.clone()).into()),
            // This Node belongs to the machine itself, and its kubelet continues to use the Node.
            Some(node) if node.is_of(machine) => Ok(None),
            Some(node) => {
                let owner = node.node.provider_id.clone().unwrap_or_default();
                Err(Deferral::NodeOfAnotherMachine(name.clone(), owner).into())
            }
        }
    }

    fn reopen(&self, own: &Stored, stale_node: Option<String>) -> Checked<LedgerStep> {
        self.has_its_own_key()?;
        // The revoked key remains revoked after a reset. Otherwise, an attacker with the key could claim the name
        // again.
        let is_revoked = own.record.is_revoked() || self.is_refused(&own.record);
        let has_its_key = own.record.opened.key == self.claim.key;
        ensure!(
            !(is_revoked && has_its_key),
            identity_revoked(&own.record).into()
        );
        self.leave_others()?;
        let longest = self.policy.longest_lifetime;
        let record = own
            .record
            .reopened(self.claim, stale_node, longest, self.facts.now);
        Ok(LedgerStep::Replace {
            record: Box::new(self.not_below_lowest(record)),
            read: Box::new(own.clone()),
        })
    }

    /// Returns the record with a generation that the revocation list does not cover.
    fn not_below_lowest(&self, record: Record) -> Record {
        let lowest = self.facts.revoked.lowest_valid(record.uid);
        record.not_below(lowest, self.facts.now)
    }

    /// Retires the machine's other records first, one record per step, because a machine has only one name at a time.
    fn leave_others(&self) -> Checked<()> {
        for record in self.facts.others.all_live() {
            if record.is_revoked() && !record.is_reset() {
                return Err(identity_revoked(record).into());
            }
            if !record.is_reset() {
                record.allows_boot(self.claim.assurance.identity(), self.claim.asked)?;
            }
            self.may_reenrol(record)?;
        }
        match &self.facts.others.live {
            Some(other) => Err(self.retire(other, TombstoneReason::Renamed)),
            None => Ok(()),
        }
    }

    /// Whether another record of the same machine takes precedence. Two replicas can each create a record for the
    /// machine at the same time.
    fn came_second(&self, record: &Record) -> bool {
        let order = |record: &Record| (record.opened.time, record.node_name.clone());
        let mut others = self.facts.others.all_live();
        others.any(|other| order(other) < order(record))
    }

    fn retire(&self, stored: &Stored, reason: TombstoneReason) -> LedgerStep {
        let longest = self.policy.longest_lifetime;
        LedgerStep::Replace {
            record: Box::new(stored.record.retired(reason, longest, self.facts.now)),
            read: Box::new(stored.clone()),
        }
    }

    /// Checks that the machine, which holds this record, is allowed to open a new generation.
    fn may_reenrol(&self, record: &Record) -> Checked<()> {
        if record.is_reset() {
            return Ok(());
        }
        let end = record.known_end();
        let (may, ends) = match &self.claim.assurance {
            // The holder had stronger evidence than a token, and the record might not contain its last renewal.
            // Therefore an operator must confirm that the claimant is the same machine.
            Assurance::None(_) if record.holder.is_attested() => {
                let (name, holder) = (record.node_name.clone(), &record.holder);
                return Err(Deferral::EvidenceExpected(name, holder.attestor.clone()).into());
            }
            // Without evidence, the claimant could be a different machine. Therefore the claimant must wait until the
            // certificate has expired.
            Assurance::None(_) => {
                let may = end < self.facts.now || self.is_below_floor_and_down(record)?;
                (may, WaitEnd::Expiry(end))
            }
            Assurance::Attested(_) => {
                let node = self.node(&record.node_name)?;
                let now = self.facts.now;
                let is_expired =
                    |owned: &OwnedNode| end < owned.read && !owned.node.renewed_since(end);
                let may = node.is_none_or(|owned| owned.is_down() || is_expired(owned));
                (may, WaitEnd::NodeDown((end >= now).then_some(end)))
            }
        };
        let name = &record.node_name;
        ensure!(may, Deferral::IdentityLive(name.clone(), ends).into());
        Ok(())
    }

    /// Whether the record's generation is below the lowest valid generation for all records, and its node is down. A
    /// running node might have a later certificate than a record that comes from a backup.
    fn is_below_floor_and_down(&self, record: &Record) -> Checked<bool> {
        if record.generation >= self.facts.revoked.lowest_valid_generation {
            return Ok(false);
        }
        let node = self.node(&record.node_name)?;
        Ok(node.is_none_or(OwnedNode::is_down))
    }

    fn node(&self, name: &NodeName) -> Checked<Option<&OwnedNode>> {
        let known = self.facts.nodes.get(name).map(Option::as_ref);
        known.ok_or_else(|| Question::Node(name.clone()).into())
    }

    fn holder(&self, provider_id: &ProviderId) -> Checked<HolderState> {
        let known = self.facts.holder;
        known.ok_or_else(|| Question::Holder(provider_id.clone()).into())
    }
}

#[cfg(test)]
mod tests;
