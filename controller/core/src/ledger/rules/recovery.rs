//! The rules for certificates whose records were lost, or come from a backup.
//!
//! The API server authenticated the certificate, so this controller issued it for the node name, and its UID contains
//! the lost record and generation. The list of revoked certificates determines whether it is revoked, because the
//! record that revoked it might also be lost.

use std::time::{Duration, SystemTime};

use kubelet_attestation::ensure;

use super::{Checked, HolderState, LedgerStep, Rules};
use crate::identifiers::CertificateUid;
use crate::ledger::node_removal::NodeOwner;
use crate::ledger::records::Stored;
use crate::ledger::revocations::KnownRevocations;
use crate::ledger::{Adoption, LedgerPolicy, Record};
use crate::lifetimes::MAX_ATTESTED_SECONDS;
use crate::refusal::{Deferral, Denial};
use crate::time::unix_seconds;

/// Whether a certificate with this UID can recover a record, based only on the UID.
///
/// The generation must be plausible: the ledger derives a generation from the time at which it is opened. Without this
/// limit, a certificate from another signer could exhaust the generations of a name.
pub(in crate::ledger) fn can_recover(
    uid: CertificateUid,
    revoked: &KnownRevocations,
    policy: &LedgerPolicy,
    now: SystemTime,
) -> bool {
    policy.adoption == Adoption::Recover
        && !revoked.refuses(uid)
        && uid.generation <= unix_seconds(now + policy.longest_lifetime)
}

impl Rules<'_> {
    /// Returns the step if the certificate with this `uid` recovers a record. `own` is the present record for the name.
    pub(super) fn recovered(
        &self,
        own: Option<&Stored>,
        uid: CertificateUid,
    ) -> Checked<LedgerStep> {
        if self.policy.adoption != Adoption::Recover {
            return Err(Denial::RecordMissing(self.claim.node_name.clone()).into());
        }
        let is_possible = can_recover(uid, self.facts.revoked, self.policy, self.facts.now);
        ensure!(
            is_possible && !self.facts.others.has_uid,
            self.former_certificate(uid)
        );
        self.has_its_own_key()?;
        let before = own.map(|own| &own.record);
        let stale_node = self.node_of_another(before)?;
        self.leave_others()?;
        // The lifetime of the certificate was in the lost record, and might be longer than the present maximum.
        let possible = Duration::from_secs(MAX_ATTESTED_SECONDS.into());
        let (longest, now) = (self.policy.longest_lifetime.max(possible), self.facts.now);
        let record = Record::recovered(self.claim, uid, before, stale_node, longest, now);
        let record = Box::new(self.not_below_lowest(record));
        Ok(match own {
            None => LedgerStep::Create(record),
            Some(own) => LedgerStep::Replace {
                record,
                read: Box::new(own.clone()),
            },
        })
    }

    /// Returns the step if the machine holds the record, and its certificate belongs to another generation.
    pub(super) fn recovered_again(&self, own: &Stored, uid: CertificateUid) -> Checked<LedgerStep> {
        self.may_return(&own.record)?;
        // This request opened the generation, which made the certificate of the request invalid. Another request with
        // that certificate and the same key is denied.
        let is_same = own.record.opened.request.uid == self.claim.request.uid;
        if let Some(grant) = self.repeated(&own.record).filter(|_| is_same) {
            return Ok(LedgerStep::Grant(grant));
        }
        ensure!(own.record.is_before(uid), self.former_certificate(uid));
        self.recovered(Some(own), uid)
    }

    /// Returns the step if another machine holds the record, and this machine renews.
    pub(super) fn recovered_from_another(
        &self,
        own: &Stored,
        uid: CertificateUid,
    ) -> Checked<LedgerStep> {
        let record = &own.record;
        let is_later = self.policy.adoption == Adoption::Recover && record.is_before(uid);
        ensure!(is_later, record.refused(Denial::NameTaken).into());
        // If an earlier certificate recovered the record, a later holder of the name can still recover it.
        if record.is_live() && !record.is_reset() && record.superseded.is_none() {
            match self.holder(&record.holder.provider_id)? {
                HolderState::Alive => return Err(record.refused(Denial::NameTaken).into()),
                HolderState::Leaving => return Err(record.refused(Deferral::HolderLeaving).into()),
                HolderState::Gone | HolderState::Contradicted => {}
            }
        }
        self.recovered(Some(own), uid)
    }

    pub(super) fn former_certificate(&self, uid: CertificateUid) -> LedgerStep {
        Denial::FormerCertificate(self.claim.node_name.clone(), uid).into()
    }

    /// Returns the UID of a Node that belongs to a previous machine. The Node of another machine delays the recovery,
    /// because the certificate might be older than the last holder.
    fn node_of_another(&self, former: Option<&Record>) -> Checked<Option<String>> {
        let machine = &self.claim.assurance.identity().provider_id;
        match self.node(&self.claim.node_name)? {
            Some(node) if !node.is_of(machine) && node.owner != NodeOwner::Unknown => {
                self.stale_node(former)
            }
            Some(_) | None => Ok(None),
        }
    }
}
