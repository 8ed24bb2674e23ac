//! The ledger, which applies the rules to the stored records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::NodeName;

use super::node_removal::Removal;
use super::records::{Records, Stored, WriteError};
use super::rules::{self, HolderState, Renewed};
use super::{
    Absences, Adoption, Claim, Grant, LastIssued, LedgerPolicy, Record, RecordHolder, Renewal,
    Revocations,
};
use crate::cluster_line;
use crate::crd::RevokedNodeCredentialsSpec;
use crate::identifiers::RecordUid;
use crate::inventory::{Inventory, Machine, MachineState};
use crate::log_lines::{LogLines, Unlimited};
use crate::nodes::Nodes;
use crate::refusal::{Deferral, Denial, Refusal, Unavailable};
use crate::scope::Enforcement;
use crate::unshared::Unshared;

mod deliberation;
mod holders;
mod nodes;
mod others;
mod overdue;

use deliberation::Deliberation;
pub(super) use nodes::DueRemoval;

/// The maximum number of steps in a claim. For example, a claim from a machine that has three other names needs about
/// 12 steps.
const MAX_STEPS: usize = 24;

/// Keeps one record for each node name of one cluster, in [`Records`].
///
/// Every step can be repeated, so the same request finds its record after a crash. Before the controller issues the
/// certificate that opens a generation, it stores the certificate's latest possible expiry time in the record.
///
/// # Guarantees
///
/// - At most one record exists for each name. A write creates the record, or replaces a record that has not changed
///   since the read.
/// - A claim is granted only after its record is written, and only if the machine has no other record at that time. If
///   two replicas grant different names to one machine at the same time, at most one grant succeeds.
/// - A denial is never based only on cached data.
#[derive(derive_more::Debug)]
#[debug("RecordLedger({records:?}, {policy:?})")]
pub struct RecordLedger {
    pub(super) records: Arc<dyn Records>,
    pub(super) inventory: Arc<dyn Inventory>,
    pub(super) nodes: nodes::ClusterNodes,
    policy: LedgerPolicy,
    pub(crate) entropy: Entropy,
    /// The last certificate that this process issued to each node. Each cluster has a separate ledger.
    pub(super) issued: Unshared<BTreeMap<NodeName, LastIssued>>,
    pub(super) absences: Absences,
    revocations: Revocations,
    lines: Arc<dyn LogLines>,
}

/// The source of random bytes for a record's UID. Returns `None` if the source fails.
type Entropy = Box<dyn Fn() -> Option<[u8; 16]> + Send + Sync>;

impl RecordLedger {
    /// Creates the ledger for a cluster with these machines and Nodes. The ledger does not delete a Ready Node until
    /// attestation is enforced.
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
            nodes: nodes::ClusterNodes::new(nodes, enforcement),
            policy,
            entropy: Box::new(|| {
                let mut bytes = [0; 16];
                aws_lc_rs::rand::fill(&mut bytes).ok()?;
                Some(bytes)
            }),
            issued: Unshared::default(),
            absences: Absences::default(),
            revocations: Revocations::default(),
            lines: Arc::new(Unlimited),
        }
    }

    /// Returns the ledger with this state of machine absences.
    #[must_use]
    pub fn with_absences(mut self, absences: Absences) -> Self {
        self.absences = absences;
        self
    }

    /// Returns the ledger with this list of revoked certificates.
    #[must_use]
    pub fn with_revocations(mut self, revocations: Revocations) -> Self {
        self.revocations = revocations;
        self
    }

    /// Returns the ledger with this log-line budget.
    #[must_use]
    pub fn with_lines(mut self, lines: Arc<dyn LogLines>) -> Self {
        self.lines = lines;
        self
    }

    /// The log-line budget of the cluster.
    pub fn lines(&self) -> &dyn LogLines {
        &*self.lines
    }

    /// The list of revoked certificates.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// The store of records.
    pub fn records(&self) -> &Arc<dyn Records> {
        &self.records
    }

    /// The policy of the ledger.
    pub fn policy(&self) -> &LedgerPolicy {
        &self.policy
    }

    /// The last certificate that this process issued for the record's current generation.
    pub(super) fn last_issued(&self, record: &Record) -> Option<LastIssued> {
        let issued = self.issued.lock().get(&record.node_name).cloned();
        issued.filter(|issued| issued.generation == record.generation)
    }

    /// Records a published certificate. Decisions do not depend on it.
    pub fn issued(&self, node_name: &NodeName, certificate: LastIssued) {
        self.issued.lock().insert(node_name.clone(), certificate);
    }

    /// Claims the name for a machine that joins, or finds the record of an earlier claim with the same key.
    ///
    /// A repeated claim without evidence never gets a later expiry time than the first claim. Otherwise, a new request
    /// with the same key would be a renewal, and machines without evidence are not allowed to renew.
    ///
    /// # Errors
    ///
    /// Denies the claim if another machine holds a live record for the name. Defers the claim if the same machine holds
    /// the record with a different key.
    pub async fn claim(&self, claim: &Claim, now: SystemTime) -> Result<Grant, Refusal> {
        let mut deliberation = Deliberation::of(self, claim, now).await?;
        for _ in 0..MAX_STEPS {
            if let Some(grant) = Box::pin(deliberation.step()).await? {
                return Ok(grant);
            }
        }
        Err(Deferral::RecordContended(claim.node_name.clone()).into())
    }

    /// Returns the record from the cache.
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Deferral> {
        let known = self.records.known(name).await.map_err(unavailable)?;
        Ok(self.recalled(known))
    }

    /// Returns the record from the store.
    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Deferral> {
        let fresh = self.records.read(name).await.map_err(unavailable)?;
        Ok(self.recalled(fresh))
    }

    /// Updates the record with the latest TPM boot that this process observed, if this boot is later than the stored
    /// boot.
    fn recalled(&self, stored: Option<Stored>) -> Option<Stored> {
        let mut stored = stored?;
        let record = &mut stored.record;
        let issued = self.last_issued(record);
        record.renewed_boot = record
            .renewed_boot
            .max(issued.and_then(|it| it.seen_boot()));
        Some(stored)
    }

    /// Reads the record again after a failed write, because another write completed first.
    async fn read_after(
        &self,
        error: WriteError,
        name: &NodeName,
    ) -> Result<Option<Stored>, Deferral> {
        match error {
            WriteError::Exists | WriteError::Conflict => self.read(name).await,
            WriteError::Unavailable(source) => Err(unavailable(source)),
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
        // A machine that joined with its token might still have no provider ID.
        Ok(if own.provider_id.is_none() && found.is_none() {
            present(&own)
        } else {
            HolderState::Contradicted
        })
    }

    /// Whether the Machine with this name, which has the holder's provider ID, can be the holder. A holder without
    /// evidence is the Machine for which its token was created, regardless of the claimed provider ID. The same applies
    /// to a holder that was attested with its TPM before its Machine had a provider ID. That Machine must not have a
    /// different provider ID now. A pool member without a Machine has its provider ID as its name, and keeps its record
    /// when it gets a Machine.
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

    /// Whether the inventory observed the deletion of the Machine with which the holder joined.
    pub(super) fn was_deleted(&self, holder: &RecordHolder) -> bool {
        let name = holder.machine_name.as_deref();
        name.is_some_and(|name| self.inventory.was_deleted(name))
    }

    /// Finds the Machine with which the holder joined, by the name of the Machine.
    async fn recorded_machine(&self, holder: &RecordHolder) -> Result<Option<Machine>, Refusal> {
        let Some(name) = &holder.machine_name else {
            return Ok(None);
        };
        let machine = self.inventory.by_machine_name(name).await;
        Ok(machine.map_err(Deferral::InventoryUnavailable)?)
    }

    /// Deletes the Node of the name's previous holder. If the deletion fails, the next claim from the same request, or
    /// the sweep, retries it.
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
        // If the process crashed after it wrote the record and before this call, the previous record is not known.
        let removal = former.map_or(Removal::Left(record), |former| {
            Removal::Claimed(Some(former))
        });
        let name = &record.node_name;
        let removed = self.remove_node(name, Some(stale), removal, now).await;
        if let Err(error) = removed {
            cluster_line!(
                self.lines(),
                WARN,
                node = name.as_str(),
                error = error_chain(&error),
                "cannot delete the Node of the previous machine"
            );
        }
    }

    /// Grants the next certificate of a record, for a renewal with its current certificate.
    ///
    /// # Errors
    ///
    /// Denies a certificate that has no record, or that belongs to a previous generation or another identity, unless it
    /// can recover the record.
    pub async fn renew(&self, renewal: &Renewal, now: SystemTime) -> Result<Grant, Refusal> {
        let name = &renewal.node_name;
        let revoked = self.revocations.known().map_err(unavailable)?;
        let renewed = |record: Option<&Record>| rules::renewed(record, &revoked, renewal);
        let grant = match self.known_to(name, renewed).await {
            // After a recovery, another record for the machine might exist, because two replicas can recover two names.
            Ok(Renewed::Grant(grant))
                if grant.uid != renewal.uid && self.policy.adoption == Adoption::Recover =>
            {
                Box::pin(self.claim(&renewal.claim(), now)).await?
            }
            Ok(Renewed::Grant(grant)) => grant,
            Ok(Renewed::Strengthen) => Box::pin(self.claim(&renewal.claim(), now)).await?,
            Err(refusal) => {
                let recovered = self.recover(refusal, renewal, now).await;
                if recovered.is_err() {
                    self.note_backup(&revoked, renewal).await;
                }
                recovered?
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

    /// Claims the name with the certificate of the renewal, if the policy permits it and the record is lost or comes from
    /// a backup. Otherwise, returns the refusal.
    async fn recover(
        &self,
        refusal: Refusal,
        renewal: &Renewal,
        now: SystemTime,
    ) -> Result<Grant, Refusal> {
        let can_be_lost = matches!(
            refusal,
            Refusal::Deny(
                Denial::RecordMissing(_) | Denial::FormerCertificate(..) | Denial::NameTaken(..)
            )
        );
        if self.policy.adoption == Adoption::Recover && can_be_lost {
            Box::pin(self.claim(&renewal.claim(), now)).await
        } else {
            Err(refusal)
        }
    }

    /// If the renewal shows that the record comes from a backup, records this fact in the status. If the write fails,
    /// the next request retries it.
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
            cluster_line!(
                self.lines(),
                WARN,
                node,
                error,
                "cannot record that the node identity was restored from a backup"
            );
        }
    }

    /// Clears the fields of the record that are obsolete after the node used its certificate. These are a reset, which
    /// would allow a later claim to take the name, and the superseded generation. The certificates of that generation
    /// then become invalid. If the write fails, the next request retries it.
    async fn settle(&self, name: &NodeName, end: impl Fn(&mut Record)) {
        let changed = |stored: &Stored| {
            let mut record = stored.record.clone();
            end(&mut record);
            (record != stored.record).then_some(record)
        };
        let known = self.known(name).await.ok().flatten();
        if known.as_ref().and_then(changed).is_none() {
            return;
        }
        let fresh = self.records.read(name).await.ok().flatten();
        let Some((record, fresh)) = fresh.and_then(|fresh| Some((changed(&fresh)?, fresh))) else {
            return;
        };
        if let Err(error) = self.records.replace(&record, &fresh.version).await {
            let (node, error) = (name.as_str(), error_chain(&error));
            cluster_line!(
                self.lines(),
                WARN,
                node,
                error,
                "cannot update the node identity of a node that sent a request"
            );
        }
    }

    /// Applies the rule to the cached record. If the rule refuses the request, applies the rule to the stored record,
    /// and returns that result.
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
        random
            .ok_or_else(|| unavailable(Unavailable::new("the system did not provide random bytes")))
    }
}

fn unavailable(source: Unavailable) -> Deferral {
    Deferral::LedgerUnavailable(source)
}

/// Returns the state of a holder that has this Machine.
fn present(machine: &Machine) -> HolderState {
    match machine.state {
        MachineState::Deleting => HolderState::Leaving,
        MachineState::Pending | MachineState::Ready | MachineState::Unread => HolderState::Alive,
    }
}

#[cfg(test)]
mod tests;
