//! The steps of one claim.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use super::{RecordLedger, unavailable};
use crate::identifiers::RecordUid;
use crate::ledger::node_removal::OwnedNode;
use crate::ledger::records::Stored;
use crate::ledger::revocations::KnownRevocations;
use crate::ledger::rules::{self, Facts, HolderState, LedgerStep, Question};
use crate::ledger::{Claim, Grant, GrantReason, Record};
use crate::refusal::Refusal;

/// A claim, with the facts that have been read for it.
///
/// The rules select the next step from the facts. A step reads one fact, or makes one write. Then the rules are applied
/// again, so this module does not define the order of the steps.
pub(super) struct Deliberation<'a> {
    ledger: &'a RecordLedger,
    claim: &'a Claim,
    now: SystemTime,
    /// The UID for a new record.
    uid: RecordUid,
    revoked: Arc<KnownRevocations>,
    /// The record for the claimed name.
    own: Option<Stored>,
    /// Whether `own` was read from the store. Otherwise, the cache has no record.
    is_read: bool,
    nodes: BTreeMap<NodeName, Option<OwnedNode>>,
    /// The holder of `own`, and the holder's state.
    holder: Option<(ProviderId, HolderState)>,
    /// The previous name of the machine, if this claim retired the record for that name.
    renamed: Option<NodeName>,
    /// The reason for the grant, if this claim opened the generation.
    grant_reason: Option<GrantReason>,
    /// The record for the name before this claim replaced it.
    former: Option<Record>,
}

impl<'a> Deliberation<'a> {
    /// Starts with only the record for the name.
    pub(super) async fn of(
        ledger: &'a RecordLedger,
        claim: &'a Claim,
        now: SystemTime,
    ) -> Result<Self, Refusal> {
        let name = &claim.node_name;
        let uid = ledger.new_uid()?;
        let revoked = ledger.revocations.known().map_err(unavailable)?;
        let is_read = ledger.known(name).await?.is_some();
        let own = if is_read {
            ledger.read(name).await?
        } else {
            None
        };
        Ok(Self {
            ledger,
            claim,
            now,
            uid,
            revoked,
            own,
            is_read,
            nodes: BTreeMap::new(),
            holder: None,
            renamed: None,
            grant_reason: None,
            former: None,
        })
    }

    /// Takes one step. Returns the grant after the last step.
    ///
    /// # Errors
    ///
    /// Returns the refusal from the rules, or an outage.
    pub(super) async fn step(&mut self) -> Result<Option<Grant>, Refusal> {
        let step = self.next_step().await?;
        // The cache might not contain the record. A creation then fails, and reads the record. A refusal or a
        // replacement must read the record first.
        let needs_read = matches!(step, LedgerStep::Refuse(_) | LedgerStep::Replace { .. });
        if needs_read && !self.is_read {
            let own = self.ledger.read(&self.claim.node_name).await?;
            self.set_own(own);
            return Ok(None);
        }
        match step {
            LedgerStep::Ask(Question::Node(name)) => {
                let node = self.ledger.node(&name, self.now).await?;
                self.nodes.insert(name, node);
            }
            LedgerStep::Ask(Question::Holder(provider_id)) => self.read_holder(provider_id).await?,
            LedgerStep::Create(record) => self.create(&record).await?,
            LedgerStep::Replace { record, read } => self.replace(&record, *read).await?,
            LedgerStep::Refuse(refusal) => return Err(refusal),
            LedgerStep::Grant(grant) => return Ok(Some(self.granted(grant).await)),
        }
        Ok(None)
    }

    async fn next_step(&self) -> Result<LedgerStep, Refusal> {
        let (own, now) = (self.own.as_ref(), self.now);
        let others = self.ledger.others(self.claim, own, &self.revoked, now);
        let others = others.await?;
        let facts = Facts {
            own,
            others: &others,
            nodes: &self.nodes,
            holder: self.holder.as_ref().map(|(_, state)| *state),
            revoked: &self.revoked,
            is_enforced: self.ledger.nodes.enforcement.is_on(),
            uid: self.uid,
            now,
        };
        Ok(rules::claimed(self.claim, &facts, &self.ledger.policy))
    }

    /// Sets the record for the name, after a read or a write. If the holder changed, drops the known state of the
    /// holder.
    fn set_own(&mut self, own: Option<Stored>) {
        let held_by = own.as_ref().map(|own| &own.record.holder.provider_id);
        let holder = self.holder.take();
        self.holder = holder.filter(|(holder, _)| Some(holder) == held_by);
        self.own = own;
        self.is_read = true;
    }

    async fn read_holder(&mut self, provider_id: ProviderId) -> Result<(), Refusal> {
        let own = self.own.as_ref().map(|own| &own.record.holder);
        if let Some(holder) = own.filter(|holder| holder.provider_id == provider_id) {
            let state = self.ledger.holder_state(holder).await?;
            self.holder = Some((provider_id, state));
        }
        Ok(())
    }

    async fn create(&mut self, record: &Record) -> Result<(), Refusal> {
        let own = match self.ledger.records.create(record).await {
            Ok(stored) => {
                self.grant_reason = Some(self.reason(None));
                Some(stored)
            }
            Err(error) => {
                let name = &self.claim.node_name;
                self.ledger.read_after(error, name).await?
            }
        };
        self.set_own(own);
        Ok(())
    }

    /// Replaces the record for this name, or retires the record for another name of the machine.
    async fn replace(&mut self, record: &Record, read: Stored) -> Result<(), Refusal> {
        let (ledger, claim) = (self.ledger, self.claim);
        match ledger.records.replace(record, &read.version).await {
            Ok(stored) if stored.record.node_name == claim.node_name => {
                let is_opened = stored.record.is_live();
                self.grant_reason = is_opened.then(|| self.reason(Some(&read.record)));
                self.former = Some(read.record);
                self.set_own(Some(stored));
            }
            Ok(stored) => self.renamed = Some(stored.record.node_name),
            Err(error) => {
                let own = ledger.read_after(error, &claim.node_name).await?;
                self.set_own(own);
            }
        }
        Ok(())
    }

    /// Returns the reason for a grant that uses the generation opened by this claim.
    fn reason(&self, before: Option<&Record>) -> GrantReason {
        GrantReason::of(self.claim, before, &self.nodes, self.renamed.as_ref())
    }

    /// Deletes the Node of the previous holder, and adds the reason to the grant.
    async fn granted(&mut self, grant: Grant) -> Grant {
        let (own, former) = (self.own.as_ref(), self.former.as_ref());
        self.ledger.clear_stale_node(own, former, self.now).await;
        Grant {
            reason: self.grant_reason.take().unwrap_or(grant.reason),
            ..grant
        }
    }
}
