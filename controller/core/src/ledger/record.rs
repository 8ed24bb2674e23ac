//! The record for one node name, which implements trust on first use.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kubelet_attestation::names::{NodeName, ProviderId};

use super::Claim;
use crate::crd::{Revoked, RevokedGenerations, Tombstone, TombstoneReason, TpmBoot};
use crate::identifiers::{CertificateUid, KeyDigest, RecordUid};
use crate::refusal::{Denial, Failure, Refusal};
use crate::time::{unix_seconds, until};
use crate::verifier::Identity;

mod holder;

pub use holder::RecordHolder;

/// After a change to a record, a certificate that is based on the old state can expire later than the maximum validity
/// permits, by up to this time. A replica's watch lags by at most one minute, and the replica decides within another
/// minute. The replica's clock can also differ from the clock of the operator who revoked the certificate.
pub(super) const GRANT_LAG: Duration = Duration::from_mins(10);

/// The maximum difference between the clocks of an operator's machine and of the controller. A decision that is later
/// by more than this difference does not come from an operator's command.
pub const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_mins(10);

/// The present time on two clocks that can differ: the clock of this machine, and the clock of an API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresentTime {
    /// The earlier of the two times. Certificates that have expired at this time have expired on both clocks.
    pub earlier: SystemTime,
    /// The later of the two times. A decision after this time is in the future on both clocks.
    pub later: SystemTime,
}

impl From<SystemTime> for PresentTime {
    fn from(now: SystemTime) -> Self {
        Self {
            earlier: now,
            later: now,
        }
    }
}

/// The record for one node name: the holder of the name, and the holder's key.
///
/// Times are whole seconds, as in certificates and in the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The node name.
    pub node_name: NodeName,
    /// The UID of the record.
    pub uid: RecordUid,
    /// The generation, which increases with each new holder of the name, and with each new key of a holder. The first
    /// generation is 1 if the cluster has no lowest valid generation. Every other generation is at least the Unix time,
    /// in seconds, at which it was opened. Therefore, a record that is restored from a backup does not reuse a
    /// generation that was opened after the backup. Certificates and the revocation list can contain such a generation.
    pub generation: u64,
    /// The machine.
    pub holder: RecordHolder,
    /// The request that opened the generation.
    pub opened: Opening,
    /// The latest possible expiry time of the certificate that opened the generation.
    pub not_after: SystemTime,
    /// The latest known expiry time of a renewed certificate. It can be outdated, because a renewal does not write the
    /// record.
    pub renewed_until: Option<SystemTime>,
    /// The TPM boot at the last known renewal. It can also be outdated.
    pub renewed_boot: Option<SeenBoot>,
    /// The expiry time of the last certificate from all previous generations. `None` if they have all expired.
    pub former_until: Option<SystemTime>,
    /// The previous generation, if its certificates remain valid until the node uses a certificate of the current
    /// generation. Set after the machine sent stronger evidence with a renewal, because the machine might not have
    /// received the response.
    pub superseded: Option<u64>,
    /// Set if the name has no holder: the record is retired.
    pub tombstone: Option<Tombstone>,
    /// Set if an operator revoked the certificates.
    pub revoked: Option<Revoked>,
    /// The generation that an operator reset for the next claim.
    pub reset: Option<u64>,
}

/// An observed boot of a TPM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenBoot {
    /// The boot.
    pub boot: TpmBoot,
    /// The time of the observation. It is not earlier than the creation of the request that contained this boot.
    pub at: SystemTime,
}

/// The claim that opened a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The key.
    pub key: KeyDigest,
    /// The request.
    pub request: RequestRef,
    /// The time of the claim.
    pub time: SystemTime,
    /// The UID of the previous holder's Node.
    pub stale_node: Option<String>,
}

/// A certificate signing request, for operators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestRef {
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: String,
}

impl Record {
    /// Creates the record for the first claim to a name. If the cluster has a lowest valid generation, `not_below`
    /// raises the generation.
    pub fn first(
        claim: &Claim,
        uid: RecordUid,
        stale_node: Option<String>,
        now: SystemTime,
    ) -> Self {
        Self {
            node_name: claim.node_name.clone(),
            uid,
            generation: 1,
            holder: RecordHolder::of(claim),
            opened: Opening {
                key: claim.key,
                request: claim.request.clone(),
                time: whole_seconds(now),
                stale_node,
            },
            not_after: whole_seconds(claim.not_after),
            renewed_until: None,
            renewed_boot: None,
            former_until: None,
            superseded: None,
            tombstone: None,
            revoked: None,
            reset: None,
        }
    }

    /// Returns the record with a generation of at least `lowest`, the lowest valid generation. If the cluster has no
    /// lowest valid generation, `lowest` is 0.
    pub(super) fn not_below(self, lowest: u64, now: SystemTime) -> Self {
        let generation = match lowest {
            0 => self.generation,
            lowest => self.generation.max(lowest).max(unix_seconds(now)),
        };
        Self { generation, ..self }
    }

    /// Returns the record with its next generation, which `claim` opens.
    pub(super) fn reopened(
        &self,
        claim: &Claim,
        stale_node: Option<String>,
        longest: Duration,
        now: SystemTime,
    ) -> Self {
        let now = whole_seconds(now);
        let former_until = self.former_until.max(Some(self.ends_by(longest, now)));
        Self {
            generation: self.generation.saturating_add(1).max(unix_seconds(now)),
            // Keep an expiry time in the past, because this controller's clock might be fast.
            former_until,
            ..Self::first(claim, self.uid, stale_node, now)
        }
    }

    /// Returns the record with its next generation, which a renewal with stronger evidence opens. Certificates of the
    /// current generation remain valid.
    pub(super) fn strengthened(&self, claim: &Claim, longest: Duration, now: SystemTime) -> Self {
        Self {
            superseded: Some(self.generation),
            ..self.reopened(claim, None, longest, now)
        }
    }

    /// Returns the record that this certificate of the claimant recovers. `before` is the present record for the name,
    /// if one exists. `before` comes from a backup, or was recovered with an earlier certificate.
    ///
    /// The certificate remains valid until the node uses its next certificate. After another recovery, however, its
    /// generation can be lower than the generation that the earlier certificate opened. In this case, both certificates
    /// become invalid.
    pub(super) fn recovered(
        claim: &Claim,
        certificate: CertificateUid,
        before: Option<&Self>,
        stale_node: Option<String>,
        longest: Duration,
        now: SystemTime,
    ) -> Self {
        let now = whole_seconds(now);
        // All certificates of another machine in the backup have lower generations, so they become invalid in any case.
        let is_last = before.is_none_or(|before| before.generation < certificate.generation);
        let next = match before {
            Some(before) => before.reopened(claim, stale_node, longest, now),
            None => Self {
                former_until: Some(whole_seconds(now + longest + GRANT_LAG)),
                ..Self::first(claim, certificate.record, stale_node, now)
            },
        };
        let generation = certificate.generation.saturating_add(1);
        Self {
            generation: next.generation.max(generation).max(unix_seconds(now)),
            superseded: is_last.then_some(certificate.generation),
            ..next
        }
    }

    /// Whether this certificate for the record's name is later than the record. In this case, the record comes from a
    /// backup, or an earlier certificate recovered it.
    pub(super) fn is_before(&self, uid: CertificateUid) -> bool {
        let last = self.superseded.unwrap_or(self.generation);
        uid.record == self.uid && uid.generation > last && uid.generation != self.generation
    }

    /// Returns the retired record.
    pub(super) fn retired(
        &self,
        reason: TombstoneReason,
        longest: Duration,
        now: SystemTime,
    ) -> Self {
        let since = whole_seconds(now);
        Self {
            tombstone: Some(Tombstone {
                since,
                reason,
                until: self.ends_by(longest, since),
            }),
            superseded: None,
            reset: None,
            ..self.clone()
        }
    }

    /// Returns the record without the texts that the rules read only for the claimed name. It must not be written.
    pub(super) fn without_texts(mut self) -> Self {
        self.holder.instance = None;
        self.holder.machine_name = None;
        self.opened.request = RequestRef::default();
        self.opened.stale_node = None;
        self
    }

    /// Whether certificates with this UID belong to the superseded generation, and are still valid.
    pub(super) fn supersedes(&self, uid: CertificateUid) -> bool {
        self.superseded == Some(uid.generation) && uid.record == self.uid
    }

    /// The UID in certificates of the current generation.
    pub fn certificate_uid(&self) -> CertificateUid {
        CertificateUid {
            record: self.uid,
            generation: self.generation,
        }
    }

    /// Whether the record is relevant to a claim with this identity and key: its machine, TPM or key is the same.
    pub fn concerns(&self, identity: &Identity, key: KeyDigest) -> bool {
        self.holder.concerns(identity) || self.opened.key == key
    }

    /// Whether the name has a holder.
    pub fn is_live(&self) -> bool {
        self.tombstone.is_none()
    }

    /// Whether an operator revoked the certificates of the current generation.
    pub fn is_revoked(&self) -> bool {
        self.revoked
            .is_some_and(|revoked| revoked.generation >= self.generation)
    }

    /// Whether an operator reset the current generation for the next claim.
    pub fn is_reset(&self) -> bool {
        self.reset == Some(self.generation)
    }

    /// Whether the record was retired because its machine changed its name.
    pub(super) fn is_renamed(&self) -> bool {
        let reason = self.tombstone.as_ref().map(|tombstone| tombstone.reason);
        reason == Some(TombstoneReason::Renamed)
    }

    /// The latest known expiry time of a certificate from the current generation.
    pub fn known_end(&self) -> SystemTime {
        self.renewed_until
            .map_or(self.not_after, |renewed| renewed.max(self.not_after))
    }

    /// Checks that the TPM counters are not lower than their last observed values. The request was created at `asked`.
    ///
    /// # Errors
    ///
    /// [`Denial::TpmRanBackwards`] if a greater value was observed before the request was created, with a precision of
    /// one second: the TPM was copied or cleared. [`Failure::EvidenceExpired`] if the greater value was observed later:
    /// the request was pending while the machine sent another request.
    pub(super) fn allows_boot(
        &self,
        identity: &Identity,
        asked: SystemTime,
    ) -> Result<(), Refusal> {
        let further = |seen: &SeenBoot| identity.boot.is_some_and(|boot| boot < seen.boot);
        let mut further = self.seen_boots().filter(further).peekable();
        if further.peek().is_none() {
            Ok(())
        } else if further.any(|seen| seen.at <= asked) {
            Err(self.refused(Denial::TpmRanBackwards).into())
        } else {
            Err(Failure::EvidenceExpired.into())
        }
    }

    /// Creates a refusal that contains the node and the holder.
    pub(super) fn refused<T>(&self, as_one: impl FnOnce(NodeName, ProviderId) -> T) -> T {
        as_one(self.node_name.clone(), self.holder.provider_id.clone())
    }

    fn seen_boots(&self) -> impl Iterator<Item = SeenBoot> {
        let at = self.opened.time;
        let opened = self.holder.boot.map(|boot| SeenBoot { boot, at });
        [self.renewed_boot, opened].into_iter().flatten()
    }

    /// The latest observed TPM boot.
    pub(super) fn known_boot(&self) -> Option<TpmBoot> {
        self.seen_boots().map(|seen| seen.boot).max()
    }

    /// The validity of the certificate that opened the generation. The maximum for renewals was the same at that time,
    /// regardless of the current maximum.
    pub(super) fn opened_for(&self) -> Duration {
        until(self.not_after, self.opened.time)
    }

    /// The time at which all certificates of the generation have expired if the generation ends at `now`. Includes
    /// certificates that the record does not contain.
    fn ends_by(&self, longest: Duration, now: SystemTime) -> SystemTime {
        if let Some(tombstone) = &self.tombstone {
            return tombstone.until;
        }
        let longest = longest.max(self.opened_for());
        self.known_end()
            .max(whole_seconds(now + longest + GRANT_LAG))
    }

    /// The time at which all certificates of previous holders have expired, including the certificates of a retired
    /// record's last holder. `None` if no such certificates exist.
    pub(super) fn former_end(&self) -> Option<SystemTime> {
        self.former_until
            .max(self.tombstone.map(|tombstone| tombstone.until))
    }

    /// The time of this revocation. A time in the future, which no command writes, counts as the time of the claim:
    /// otherwise, no reset could end the revocation.
    pub(super) fn revocation_time(&self, revoked: Revoked, now: PresentTime) -> SystemTime {
        let latest = now.later + MAX_CLOCK_DIFFERENCE;
        if revoked.at > latest {
            self.opened.time
        } else {
            revoked.at
        }
    }

    /// The generations whose certificates are revoked and have not expired. `longest` is the maximum validity of a
    /// certificate.
    pub fn revoked_generations(
        &self,
        longest: Duration,
        now: impl Into<PresentTime>,
    ) -> Option<RevokedGenerations> {
        let now = now.into();
        let present = match (&self.tombstone, &self.revoked) {
            (Some(tombstone), _) => Some(tombstone.until),
            (None, Some(revoked)) if self.is_revoked() => {
                Some(self.ends_by(longest, self.revocation_time(*revoked, now)))
            }
            (None, _) => None,
        };
        let until = self
            .former_until
            .max(present)
            .filter(|end| *end > now.earlier)?;
        let lowest_valid = match (present, self.superseded) {
            (Some(_), _) => self.generation.saturating_add(1),
            (None, superseded) => superseded.unwrap_or(self.generation),
        };
        Some(RevokedGenerations {
            lowest_valid,
            until,
        })
        // The first generation has no previous generation.
        .filter(|revoked| revoked.lowest_valid > 1)
    }
}

/// The last second of a time in an object: 9999-12-30T22:00:00Z. Kubernetes stores later times, but they cannot be
/// decoded.
const LAST_SECOND: u64 = 253_402_207_200;

/// Truncates the time to whole seconds. A time before 1970 becomes 1970. A time that an object cannot contain becomes
/// the last time that it can contain. Otherwise, a written list would never be equal to the list that is read.
pub fn whole_seconds(time: SystemTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(unix_seconds(time).min(LAST_SECOND))
}

#[cfg(test)]
mod tests;
