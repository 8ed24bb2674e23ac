//! The other records that are relevant to a claim.

use kubelet_attestation::ensure;
use kubelet_attestation::names::NodeName;

use super::{RecordLedger, unavailable};
use crate::ledger::records::Stored;
use crate::ledger::rules::Others;
use crate::ledger::{Adoption, Claim, Claimant, Record};
use crate::pace::Pace;
use crate::refusal::{Refusal, Unavailable};
use crate::verifier::Assurance;

/// The maximum number of other live records for one machine, TPM or key. Each step of a claim reads the stored version
/// of each of these records. A renamed machine has one such record.
pub(super) const MAX_LIVE: usize = 64;

impl RecordLedger {
    /// Returns the other records that are relevant to the claim. If `own` is given, the result includes all records
    /// that were written before `own`.
    pub(super) async fn others(
        &self,
        claim: &Claim,
        own: Option<&Stored>,
    ) -> Result<Others, Refusal> {
        if let Some(own) = own {
            let Stored { record, version } = own;
            let waited = self.records.caught_up(&record.node_name, version).await;
            waited.map_err(unavailable)?;
        }
        let identity = claim.assurance.identity();
        let is_own = |record: &Record| record.holder.provider_id == identity.provider_id;
        let known = self.records.known_of_machine(identity, claim.key).await;
        let mut others = Others {
            has_uid: self.has_uid_elsewhere(claim, own).await?,
            ..Others::default()
        };
        // A tenant can create a thousand large records of one machine, so only these names are kept during the reads.
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
                "more than {MAX_LIVE} node identities that are not retired have the machine, the TPM or the key of this \
                 request"
            ))
        };
        ensure!(live.len() <= MAX_LIVE, unavailable(too_many()).into());
        for (name, was_own) in live {
            // The ledger does not act on a cached holder, so the stored record must have the same holder.
            let fresh = self.read(&name).await?;
            let agrees = |fresh: &Record| fresh.is_live() && is_own(fresh) == was_own;
            let Some(fresh) = fresh.filter(|fresh| agrees(&fresh.record)) else {
                continue;
            };
            let record = &fresh.record;
            let has_tpm = record.holder.has_tpm_of(identity) && !record.is_reset();
            if !is_own(record) {
                if record.opened.key == claim.key && !claim.is_of_machine(&record.holder) {
                    others.key_of.push(fresh.clone());
                }
            } else if self.is_of_claimant(claim, record).await? {
                others.live.push(fresh);
                continue;
            }
            if has_tpm {
                let state = self.holder_state(&record.holder).await?;
                others.tpm_of.push((fresh, state));
            }
        }
        Ok(others)
    }

    /// Whether another name has a record with the UID of the certificate that recovers a record.
    async fn has_uid_elsewhere(
        &self,
        claim: &Claim,
        own: Option<&Stored>,
    ) -> Result<bool, Refusal> {
        let Claimant::Renewal(uid) = claim.claimant else {
            return Ok(false);
        };
        let recovers = own.is_none_or(|own| own.record.is_before(uid));
        if self.policy.adoption != Adoption::Recover || !recovers {
            return Ok(false);
        }
        let is_other =
            |known: &Record| known.uid == uid.record && known.node_name != claim.node_name;
        for name in self.names_of(is_other).await? {
            let fresh = self.read(&name).await?;
            if fresh.is_some_and(|fresh| is_other(&fresh.record)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The names of the first records that `wanted` accepts. Other tasks run between pages of records. The records are
    /// not kept, because a tenant can change one record before each request, so that each request would keep its own
    /// copy of the list.
    async fn names_of(&self, wanted: impl Fn(&Record) -> bool) -> Result<Vec<NodeName>, Refusal> {
        let all = self.records.all().await.map_err(unavailable)?;
        let (mut names, mut pace) = (Vec::new(), Pace::default());
        for stored in &*all {
            if names.len() < MAX_LIVE && wanted(&stored.record) {
                names.push(stored.record.node_name.clone());
            }
            pace.step().await;
        }
        Ok(names)
    }

    /// Whether the record with the claim's provider ID belongs to the claimant. If a holder joined as another Machine,
    /// without evidence or before that Machine had a provider ID, it only claimed this provider ID.
    async fn is_of_claimant(&self, claim: &Claim, record: &Record) -> Result<bool, Refusal> {
        match &claim.machine_name {
            Some(machine) => self.can_be(&record.holder, machine).await,
            None => Ok(true),
        }
    }
}
