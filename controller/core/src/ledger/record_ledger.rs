//! The rules, carried out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::NodeName;
use parking_lot::Mutex;

use super::node_removal::{ClusterNodes, Removal};
use super::records::{Records, Stored, WriteError};
use super::rules::{self, Facts, HolderState, Question, Renewed, Step};
use super::{
    Absences, Claim, Grant, GrantReason, Holder, LastIssued, LedgerPolicy, Record, RecordHolder,
    Renewal, Revocations,
};
use crate::crd::RevokedNodeCredentialsSpec;
use crate::identifiers::{CertificateUid, RecordUid};
use crate::inventory::{Inventory, Machine, MachineState};
use crate::nodes::Nodes;
use crate::refusal::{Deferral, Refusal, Unavailable};
use crate::scope::Enforcement;

mod others;

/// The limit of steps of a claim before others have their turn: a name that changes hands to a
/// machine of three other names takes a dozen.
const MAX_STEPS: usize = 24;

/// Keeps one record for each node name of one cluster, in [`Records`].
///
/// Every step can be repeated: after a crash the same request finds its own record. A record
/// remembers the latest end of the certificate that opens its generation before that certificate
/// exists.
///
/// # Guarantees
///
/// - There is one record a name: a record is only created, or replaced as it was read.
/// - A claim is granted when its record is written, and no other record of the machine was by then:
///   of two replicas that give one machine two names at once, one at most grants.
/// - Nothing is denied on the word of a cache.
#[derive(derive_more::Debug)]
#[debug("RecordLedger({records:?}, {policy:?})")]
pub struct RecordLedger {
    pub(super) records: Arc<dyn Records>,
    pub(super) inventory: Arc<dyn Inventory>,
    pub(super) nodes: ClusterNodes,
    policy: LedgerPolicy,
    pub(crate) entropy: Entropy,
    /// The last certificate that was issued to each node.
    pub(super) issued: Mutex<BTreeMap<NodeName, LastIssued>>,
    pub(super) absences: Absences,
    revocations: Revocations,
}

/// The source of the random bytes of a record's UID; `None` if it fails.
type Entropy = Box<dyn Fn() -> Option<[u8; 16]> + Send + Sync>;

impl RecordLedger {
    /// The ledger of a cluster with these machines and Nodes. While attestation is not enforced, it deletes no Node
    /// that is Ready.
    pub fn new(
        records: Arc<dyn Records>,
        inventory: Arc<dyn Inventory>,
        nodes: Arc<dyn Nodes>,
        policy: LedgerPolicy,
        enforcement: Enforcement,
    ) -> Self {
        Self {
            records,
            inventory,
            nodes: ClusterNodes::new(nodes, enforcement),
            policy,
            entropy: Box::new(|| {
                let mut bytes = [0; 16];
                aws_lc_rs::rand::fill(&mut bytes).ok()?;
                Some(bytes)
            }),
            issued: Mutex::default(),
            absences: Absences::default(),
            revocations: Revocations::default(),
        }
    }

    /// The ledger, with this memory of machines that are missing.
    #[must_use]
    pub fn with_absences(mut self, absences: Absences) -> Self {
        self.absences = absences;
        self
    }

    /// The ledger, with this list of revoked certificates.
    #[must_use]
    pub fn with_revocations(mut self, revocations: Revocations) -> Self {
        self.revocations = revocations;
        self
    }

    /// The list of revoked certificates.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// The records.
    pub fn records(&self) -> &Arc<dyn Records> {
        &self.records
    }

    /// The rules of the ledger.
    pub fn policy(&self) -> &LedgerPolicy {
        &self.policy
    }

    /// The last certificate of the record's present generation that this process issued.
    pub(super) fn last_issued(&self, record: &Record) -> Option<LastIssued> {
        let issued = self.issued.lock().get(&record.node_name).cloned();
        issued.filter(|issued| issued.generation == record.generation)
    }

    /// Takes note of a certificate that was published. Best effort: nothing rests on it.
    pub fn issued(&self, node_name: &NodeName, certificate: LastIssued) {
        self.issued.lock().insert(node_name.clone(), certificate);
    }

    /// Claims the name for a machine that joins, or finds the claim that is its own already.
    ///
    /// A repeated claim of a machine that proved nothing is granted no more than the first one was:
    /// otherwise filing the same key again would be the renewal that such a machine cannot have.
    ///
    /// # Errors
    ///
    /// Another machine's living record denies; this machine's own, with another key, is a retry.
    pub async fn claim(&self, claim: &Claim, now: SystemTime) -> Result<Grant, Refusal> {
        let name = &claim.node_name;
        let uid = self.new_uid()?;
        let mut nodes = BTreeMap::new();
        let mut holder = None;
        let mut renamed = None;
        let mut opening = None;
        let mut former = None;
        let revoked = self.revocations.known().map_err(unavailable)?;
        // A cache may lack a record, which creating it finds out, but whatever else it says is not acted
        // upon.
        let mut is_read = self.known(name).await?.is_some();
        let mut own = if is_read {
            self.read(name).await?
        } else {
            None
        };
        for _ in 0..MAX_STEPS {
            let others = self.others(claim, own.as_ref()).await?;
            let facts = Facts {
                own: own.as_ref(),
                others: &others,
                nodes: &nodes,
                holder: holder.as_ref().map(|(_, state)| *state),
                revoked: &revoked,
                is_enforced: self.nodes.enforcement.is_on(),
                uid,
                now,
            };
            own = match rules::claimed(claim, &facts, &self.policy) {
                Step::Ask(Question::Node(name)) => {
                    let node = self.node(&name).await?;
                    nodes.insert(name, node);
                    own
                }
                Step::Ask(Question::Holder(provider_id)) => {
                    if let Some(own) = &own {
                        let state = self.holder_state(&own.record.holder).await?;
                        holder = Some((provider_id, state));
                    }
                    own
                }
                Step::Grant(grant) => {
                    self.clear_stale_node(own.as_ref(), former.as_ref(), now)
                        .await;
                    return Ok(Grant {
                        opening: opening.unwrap_or(grant.opening),
                        ..grant
                    });
                }
                Step::Create(record) => {
                    is_read = true;
                    match self.records.create(&record).await {
                        Ok(stored) => {
                            let from = renamed.as_ref();
                            opening = Some(GrantReason::of(claim, None, &nodes, from, now));
                            Some(stored)
                        }
                        Err(error) => self.read_after(error, name).await?,
                    }
                }
                Step::Refuse(_) | Step::Replace { .. } if !is_read => {
                    is_read = true;
                    self.read(name).await?
                }
                Step::Refuse(refusal) => return Err(refusal),
                Step::Replace { record, read } => {
                    match self.records.replace(&record, &read.version).await {
                        Ok(stored) if stored.record.node_name == *name => {
                            let (before, from) = (Some(&read.record), renamed.as_ref());
                            let opened = stored.record.is_live();
                            opening =
                                opened.then(|| GrantReason::of(claim, before, &nodes, from, now));
                            former = Some(read.record);
                            Some(stored)
                        }
                        Ok(stored) => {
                            renamed = Some(stored.record.node_name);
                            own
                        }
                        Err(error) => self.read_after(error, name).await?,
                    }
                }
            };
            // The answer was about whoever held the name when it was asked.
            let held_by = own.as_ref().map(|own| &own.record.holder.provider_id);
            holder = holder.filter(|(asked, _)| Some(asked) == held_by);
        }
        Err(Deferral::RecordContended(name.clone()).into())
    }

    /// The record as a cache has it.
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Refusal> {
        let known = self.records.known(name).await.map_err(unavailable)?;
        Ok(self.recalled(known))
    }

    /// The record as it is.
    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Refusal> {
        let fresh = self.records.read(name).await.map_err(unavailable)?;
        Ok(self.recalled(fresh))
    }

    /// The record, with how far we saw its TPM come since that was written down.
    fn recalled(&self, stored: Option<Stored>) -> Option<Stored> {
        let mut stored = stored?;
        let record = &mut stored.record;
        let issued = self.last_issued(record);
        record.renewed_boot = record
            .renewed_boot
            .max(issued.and_then(|it| it.seen_boot()));
        Some(stored)
    }

    /// The record as it is, after a write that another one forestalled.
    async fn read_after(
        &self,
        error: WriteError,
        name: &NodeName,
    ) -> Result<Option<Stored>, Refusal> {
        match error {
            WriteError::Exists | WriteError::Conflict => self.read(name).await,
            WriteError::Unavailable(source) => Err(unavailable(source).into()),
        }
    }

    pub(super) async fn holder_state(&self, holder: &RecordHolder) -> Result<HolderState, Refusal> {
        let found = self.inventory.by_provider_id(&holder.provider_id).await;
        let found = found.map_err(Deferral::InventoryUnavailable)?;
        if let Some(machine) = &found
            && self.can_be(holder, &machine.name).await?
        {
            return Ok(present(machine));
        }
        let Some(own) = self.recorded_machine(holder).await? else {
            return Ok(HolderState::Gone);
        };
        // One that joined by its token may have no provider ID yet.
        Ok(if own.provider_id.is_none() && found.is_none() {
            present(&own)
        } else {
            HolderState::Contradicted
        })
    }

    /// Whether the Machine of this name, which has the holder's provider ID, can be the holder. What proved
    /// nothing is the Machine of its token, whatever provider ID it gave. So is what proved its TPM before
    /// its Machine had a provider ID: that Machine may not have another one now. A member of a pool that no
    /// Machine stands for has its provider ID for a name, and keeps its record when that changes.
    pub(super) async fn can_be(
        &self,
        holder: &RecordHolder,
        machine: &str,
    ) -> Result<bool, Refusal> {
        let provider_id = holder.provider_id.as_str();
        let own = holder.machine_name.as_deref();
        let same = |own: &str| own == machine || own == provider_id;
        if own.is_none_or(same) {
            return Ok(true);
        }
        if !holder.is_attested() && machine != provider_id {
            return Ok(false);
        }
        let own = self.recorded_machine(holder).await?;
        Ok(own.is_none_or(|own| own.provider_id.as_ref() == Some(&holder.provider_id)))
    }

    /// The Machine as which the holder joined, as it is now.
    async fn recorded_machine(&self, holder: &RecordHolder) -> Result<Option<Machine>, Refusal> {
        let Some(name) = &holder.machine_name else {
            return Ok(None);
        };
        let machine = self.inventory.by_machine_name(name).await;
        Ok(machine.map_err(Deferral::InventoryUnavailable)?)
    }

    /// Deletes the Node that the name's former holder left. What fails is left to the next claim of
    /// the same request, or to the sweep.
    async fn clear_stale_node(
        &self,
        own: Option<&Stored>,
        former: Option<&Record>,
        now: SystemTime,
    ) {
        let Some(record) = own.map(|own| &own.record) else {
            return;
        };
        let Some(stale) = &record.opened.stale_node else {
            return;
        };
        // After a crash between the record and here, the former record is not known.
        let removal = former.map_or(Removal::Left(record), |former| {
            Removal::Claimed(Some(former))
        });
        let name = &record.node_name;
        let removed = self.remove_node(name, Some(stale), removal, now).await;
        if let Err(error) = removed {
            tracing::warn!(
                node = name.as_str(),
                error = error_chain(&error),
                "the Node of the name's former holder could not be deleted"
            );
        }
    }

    /// Finds the record whose certificate asks to be followed by another.
    ///
    /// # Errors
    ///
    /// A certificate of no record, of a former generation, or of another identity denies.
    pub async fn renew(&self, renewal: &Renewal, now: SystemTime) -> Result<Grant, Refusal> {
        let name = &renewal.node_name;
        let revoked = self.revocations.known().map_err(unavailable)?;
        let renewed = |record: Option<&Record>| rules::renewed(record, &revoked, renewal);
        let grant = match self.known_to(name, renewed).await {
            Ok(Renewed::Grant(grant)) => grant,
            Ok(Renewed::Strengthen) => Box::pin(self.claim(&renewal.claim(), now)).await?,
            Err(refusal) => {
                self.note_backup(&revoked, renewal).await;
                return Err(refusal);
            }
        };
        let is_seen = grant.uid == renewal.uid;
        self.settle(name, |record| {
            record.reset = None;
            if is_seen {
                record.superseded = None;
            }
        })
        .await;
        Ok(grant)
    }

    /// Writes down that the record comes from a backup, if the renewal shows it. What fails is left to the next request.
    async fn note_backup(&self, revoked: &RevokedNodeCredentialsSpec, renewal: &Renewal) {
        let name = &renewal.node_name;
        let known = self.known(name).await.ok().flatten();
        let is_from_backup =
            |known: &Stored| rules::is_from_backup(&known.record, revoked, renewal);
        if !known.as_ref().is_some_and(is_from_backup) {
            return;
        }
        let generation = renewal.uid.generation;
        if let Err(error) = self.records.note_later(name, generation).await {
            let (node, error) = (name.as_str(), error_chain(&error));
            tracing::warn!(
                node,
                error,
                "it could not be written down that a record comes from a backup"
            );
        }
    }

    /// Ends what a node that was seen needs no longer: a reset, by which a later claim could take its name, and the
    /// validity of its generation before. What fails is left to the next request.
    async fn settle(&self, name: &NodeName, end: impl Fn(&mut Record)) {
        let settled = |stored: &Stored| {
            let mut record = stored.record.clone();
            end(&mut record);
            (record != stored.record).then_some(record)
        };
        let known = self.known(name).await.ok().flatten();
        if known.as_ref().and_then(settled).is_none() {
            return;
        }
        let fresh = self.records.read(name).await.ok().flatten();
        let Some((record, fresh)) = fresh.and_then(|fresh| Some((settled(&fresh)?, fresh))) else {
            return;
        };
        if let Err(error) = self.records.replace(&record, &fresh.version).await {
            let (node, error) = (name.as_str(), error_chain(&error));
            tracing::warn!(
                node,
                error,
                "the record of a node that was seen could not be brought up to date"
            );
        }
    }

    /// Reads who holds the name, for a request that was made with a certificate of `uid`; nothing
    /// is written. `None` where the cluster's certificates carry no UID, so that the name decides.
    ///
    /// # Errors
    ///
    /// No record, another record, a former generation, or one that may have no certificate any more
    /// denies.
    pub async fn holder(
        &self,
        node_name: &NodeName,
        uid: Option<CertificateUid>,
    ) -> Result<Holder, Refusal> {
        let revoked = self.revocations.known().map_err(unavailable)?;
        let holder = |record: Option<&Record>| rules::holder(record, &revoked, node_name, uid);
        let holder = self.known_to(node_name, holder).await?;
        if uid == Some(holder.uid) {
            self.settle(node_name, |record| record.superseded = None)
                .await;
        }
        Ok(holder)
    }

    /// The result for the known record or, before a refusal, for the record as the store has it.
    async fn known_to<T, E: Into<Refusal>>(
        &self,
        name: &NodeName,
        rule: impl Fn(Option<&Record>) -> Result<T, E>,
    ) -> Result<T, Refusal> {
        let known = self.known(name).await?;
        if let Ok(value) = rule(known.as_ref().map(|known| &known.record)) {
            return Ok(value);
        }
        let fresh = self.read(name).await?;
        rule(fresh.as_ref().map(|fresh| &fresh.record)).map_err(Into::into)
    }

    fn new_uid(&self) -> Result<RecordUid, Deferral> {
        let random = (self.entropy)().map(RecordUid::new);
        random.ok_or_else(|| unavailable(Unavailable::new("no random bytes")))
    }
}

fn unavailable(source: Unavailable) -> Deferral {
    Deferral::LedgerUnavailable(source)
}

/// The state of a holder whose Machine this is.
fn present(machine: &Machine) -> HolderState {
    match machine.state {
        MachineState::Deleting => HolderState::Leaving,
        MachineState::Pending | MachineState::Ready => HolderState::Alive,
    }
}

#[cfg(test)]
mod tests;
