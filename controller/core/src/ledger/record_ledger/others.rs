//! The records of other node identities that are relevant to a claim.

use std::time::SystemTime;

use kubelet_attestation::ensure;

use super::{RecordLedger, unavailable};
use crate::ledger::records::Stored;
use crate::ledger::revocations::KnownRevocations;
use crate::ledger::rules::{HolderState, Others, can_recover};
use crate::ledger::{Claim, Claimant, Record};
use crate::refusal::{Refusal, Unavailable};
use crate::verifier::Assurance;

/// The maximum number of other live records for one machine, TPM or key. Each step of a claim reads the stored version
/// of every such record. A renamed machine has one such record.
pub(super) const MAX_LIVE: usize = 64;

impl RecordLedger {
    /// Returns the other records that are relevant to the claim. If `own` is given, the result includes all records
    /// that were written before `own`.
    pub(super) async fn others(
        &self,
        claim: &Claim,
        own: Option<&Stored>,
        revoked: &KnownRevocations,
        now: SystemTime,
    ) -> Result<Others, Refusal> {
        if let Some(own) = own {
            let Stored { record, version } = own;
            let waited = self.records.caught_up(&record.node_name, version).await;
            waited.map_err(unavailable)?;
        }
        let identity = claim.assurance.identity();
        let is_own = |record: &Record| record.holder.provider_id == identity.provider_id;
        // A tenant can create a thousand large records for one machine, so this function keeps only the names of the
        // records while it reads them.
        let mut others = Others {
            has_uid: self.has_uid_elsewhere(claim, own, revoked, now).await?,
            ..Others::default()
        };
        let known = self.records.known_of_machine(identity, claim.key).await;
        let mut live = Vec::new();
        for Stored { record: known, .. } in known.map_err(unavailable)? {
            let was_own = is_own(&known);
            if was_own && known.node_name == claim.node_name {
                continue;
            }
            others.was_known |= match &claim.assurance {
                Assurance::None(_) => false,
                Assurance::Attested(attested) => known.holder.was_proved(attested),
            };
            if known.is_live() {
                live.push((known.node_name, was_own));
            }
        }
        let too_many = || {
            Unavailable::new(format!(
                "more than {MAX_LIVE} node identities that are not retired contain the machine, TPM or key of this \
                 request"
            ))
        };
        ensure!(live.len() <= MAX_LIVE, unavailable(too_many()).into());
        for (name, was_own) in live {
            // The ledger must not act on a cached holder, so compare it with the holder in the stored record.
            let fresh = self.read(&name).await?;
            let agrees = |fresh: &Record| fresh.is_live() && is_own(fresh) == was_own;
            let Some(fresh) = fresh.filter(|fresh| agrees(&fresh.record)) else {
                continue;
            };
            let record = &fresh.record;
            let has_tpm = record.holder.has_tpm_of(identity) && !record.is_reset();
            if !is_own(record) {
                if record.opened.key == claim.key && !claim.is_of_machine(&record.holder) {
                    let holder = || record.refused(|name, machine| (name, machine));
                    others.key_of.get_or_insert_with(holder);
                }
            } else if self.is_of_claimant(claim, record).await? {
                others.add_live(fresh);
                continue;
            }
            if has_tpm && others.tpm_of.is_none() {
                let state = self.holder_state(&record.holder).await?;
                if matches!(state, HolderState::Alive | HolderState::Leaving) {
                    others.tpm_of = Some(record.refused(|name, machine| (name, machine, state)));
                }
            }
        }
        Ok(others)
    }

    /// Whether another name has a record with the UID of the certificate that recovers a record.
    async fn has_uid_elsewhere(
        &self,
        claim: &Claim,
        own: Option<&Stored>,
        revoked: &KnownRevocations,
        now: SystemTime,
    ) -> Result<bool, Refusal> {
        let Claimant::Renewal(uid) = claim.claimant else {
            return Ok(false);
        };
        let recovers = own.is_none_or(|own| own.record.is_before(uid));
        // Each record with this UID costs a read, so the rules that need only the UID come first.
        if !recovers || !can_recover(uid, revoked, &self.policy, now) {
            return Ok(false);
        }
        let is_other =
            |known: &Record| known.uid == uid.record && known.node_name != claim.node_name;
        let known = self.records.known_of_uid(uid.record).await;
        let known = known.map_err(unavailable)?.into_iter();
        let known = known.filter(|known| is_other(&known.record));
        let names: Vec<_> = known.map(|known| known.record.node_name).collect();
        let too_many = || {
            Unavailable::new(format!(
                "more than {MAX_LIVE} node identities contain the UID of this certificate"
            ))
        };
        ensure!(names.len() <= MAX_LIVE, unavailable(too_many()).into());
        for name in names {
            let fresh = self.read(&name).await?;
            if fresh.is_some_and(|fresh| is_other(&fresh.record)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the record with the claim's provider ID belongs to the claimant. A holder that joined with another
    /// Machine, without evidence or before that Machine had a provider ID, only claimed this provider ID.
    async fn is_of_claimant(&self, claim: &Claim, record: &Record) -> Result<bool, Refusal> {
        match &claim.machine_name {
            Some(machine) => self.can_be(&record.holder, machine).await,
            None => Ok(true),
        }
    }
}
