//! The other records that a claim has to do with.

use super::{RecordLedger, unavailable};
use crate::ledger::records::Stored;
use crate::ledger::rules::HolderState;
use crate::ledger::{Claim, Record};
use crate::refusal::Refusal;
use crate::verifier::{Assurance, Identity};

/// The records that the machine has under other names.
pub(super) struct Others {
    /// Those that are not buried, as they are.
    pub(super) live: Vec<Stored>,
    /// Those of other machines that are not buried, and have its TPM.
    pub(super) tpm_of: Vec<(Stored, HolderState)>,
    /// Those of other machines that are not buried, and have its key.
    pub(super) key_of: Vec<Stored>,
    /// Whether any, buried or not, is of the identity that claims. A denial is spared for it, so
    /// that a cache may say so.
    pub(super) was_known: bool,
}

impl RecordLedger {
    /// The other records of the machine. With a record of its own at hand, all that were written
    /// before it.
    pub(super) async fn others(
        &self,
        claim: &Claim,
        own: Option<&Stored>,
    ) -> Result<Others, Refusal> {
        if let Some(own) = own {
            self.caught_up(own).await?;
        }
        let identity = claim.assurance.identity();
        let known = self.records.known_of_machine(identity, claim.key).await;
        let (mut live, mut tpm_of, mut key_of) = (Vec::new(), Vec::new(), Vec::new());
        let mut was_known = false;
        for known in known.map_err(unavailable)? {
            let name = &known.record.node_name;
            if known.record.holder.provider_id != identity.provider_id {
                tpm_of.extend(self.tpm_of_another(&known, identity).await?);
                key_of.extend(self.key_of_another(&known, claim).await?);
                continue;
            }
            if *name == claim.node_name {
                continue;
            }
            was_known |= match &claim.assurance {
                Assurance::None(_) => false,
                Assurance::Attested(attested) => known.record.holder.was_proved(attested),
            };
            if !known.record.is_live() {
                continue;
            }
            let fresh = self.read(name).await?;
            let Some(fresh) = fresh.filter(|fresh| {
                fresh.record.is_live() && fresh.record.holder.provider_id == identity.provider_id
            }) else {
                continue;
            };
            // What joined as another Machine, without a proof or before that had a provider ID, only said that it
            // has this one.
            let is_own = match &claim.machine_name {
                Some(machine) => self.can_be(&fresh.record.holder, machine).await?,
                None => true,
            };
            if is_own {
                live.push(fresh);
            } else if fresh.record.holder.has_tpm_of(identity) && !fresh.record.is_reset() {
                let state = self.holder_state(&fresh.record.holder).await?;
                tpm_of.push((fresh, state));
            }
        }
        Ok(Others {
            live,
            tpm_of,
            key_of,
            was_known,
        })
    }

    /// The record as it is, if another machine holds it with the identity's TPM, and how that
    /// machine fares.
    async fn tpm_of_another(
        &self,
        known: &Stored,
        identity: &Identity,
    ) -> Result<Option<(Stored, HolderState)>, Refusal> {
        if !known.record.is_live() {
            return Ok(None);
        }
        let fresh = self.records.read(&known.record.node_name).await;
        let Some(fresh) = fresh.map_err(unavailable)?.filter(|fresh| {
            let Record { holder, .. } = &fresh.record;
            let held = fresh.record.is_live() && !fresh.record.is_reset();
            held && holder.has_tpm_of(identity) && holder.provider_id != identity.provider_id
        }) else {
            return Ok(None);
        };
        let state = self.holder_state(&fresh.record.holder).await?;
        Ok(Some((fresh, state)))
    }

    /// The record as it is, if another machine holds it with the claim's key.
    async fn key_of_another(
        &self,
        known: &Stored,
        claim: &Claim,
    ) -> Result<Option<Stored>, Refusal> {
        if !known.record.is_live() || known.record.opened.key != claim.key {
            return Ok(None);
        }
        let fresh = self.records.read(&known.record.node_name).await;
        let machine = &claim.assurance.identity().provider_id;
        Ok(fresh.map_err(unavailable)?.filter(|fresh| {
            let Record { holder, opened, .. } = &fresh.record;
            let is_anothers = holder.provider_id != *machine && !claim.is_of_machine(holder);
            fresh.record.is_live() && opened.key == claim.key && is_anothers
        }))
    }
}
