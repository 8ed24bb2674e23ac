//! The record of trust on first use: who holds one node name.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kubelet_attestation::names::{NodeName, ProviderId};

use super::Claim;
use crate::crd::{Revoked, RevokedGenerations, Tombstone, TombstoneReason, TpmBoot};
use crate::identifiers::{CertificateUid, KeyDigest, RecordUid};
use crate::refusal::{Denial, Failure, Refusal};
use crate::verifier::Identity;

mod holder;

pub use holder::RecordHolder;

/// After a record has changed, a grant may end later than the longest lifetime by this time: a
/// replica knows records by a watch that lags by a minute at most, reaches a decision within
/// another, and its clock differs from that of the person who revoked.
pub(super) const GRANT_LAG: Duration = Duration::from_mins(10);

/// The holder of one node name, and its key.
///
/// Times are whole seconds, as certificates and API servers have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The name.
    pub node_name: NodeName,
    /// Its UID.
    pub uid: RecordUid,
    /// The generation: it grows with each holder of the name, and each key of one holder. The first one is 1. Each
    /// other one is at least the Unix time, in seconds, at which it was opened: a record from a backup does not give a
    /// generation again that a certificate had since, and that the list of revoked certificates can name.
    pub generation: u64,
    /// The machine.
    pub holder: RecordHolder,
    /// The request that opened the generation.
    pub opened: Opened,
    /// The latest end of the certificate that opened the generation.
    pub not_after: SystemTime,
    /// The latest end that a renewal is known to have granted. Best effort: a renewal writes
    /// nothing.
    pub renewed_until: Option<SystemTime>,
    /// The boot of the TPM at the last renewal that is known. Best effort, too.
    pub renewed_boot: Option<SeenBoot>,
    /// The end of the last certificate of all former generations, if one may still be valid.
    pub former_until: Option<SystemTime>,
    /// The generation before, if its certificates stay valid until the node was seen with the present one: the
    /// machine proved more of itself with a renewal, and may not have the answer yet.
    pub superseded: Option<u64>,
    /// Set when nobody holds the name any more.
    pub tombstone: Option<Tombstone>,
    /// Set when a person took the certificates back.
    pub revoked: Option<Revoked>,
    /// The generation that a person gave up for the next claim.
    pub reset: Option<u64>,
}

/// A boot of a TPM that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenBoot {
    /// The boot.
    pub boot: TpmBoot,
    /// Its time: not before the creation of the request that showed it.
    pub at: SystemTime,
}

/// The claim that opened a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The key.
    pub key: KeyDigest,
    /// The request.
    pub request: RequestRef,
    /// The time of the claim.
    pub time: SystemTime,
    /// The UID of the Node that the name's holder before this one left.
    pub stale_node: Option<String>,
}

/// A certificate signing request, for people to find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestRef {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl Record {
    /// The record that the first claim to a name makes. Under a floor, its generation is as each other one.
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
            opened: Opened {
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

    /// The record with a generation that is not below `lowest`, the lowest valid one; 0 if there is none.
    pub(super) fn not_below(self, lowest: u64, now: SystemTime) -> Self {
        let generation = match lowest {
            0 => self.generation,
            lowest => self.generation.max(lowest).max(unix_seconds(now)),
        };
        Self { generation, ..self }
    }

    /// The record with its next generation, which `claim` opens.
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
            // Also one that has passed by this clock, which may be ahead.
            former_until,
            ..Self::first(claim, self.uid, stale_node, now)
        }
    }

    /// The record with its next generation, which a renewal opens that proved more of the machine. Certificates of the
    /// present one stay valid.
    pub(super) fn strengthened(&self, claim: &Claim, longest: Duration, now: SystemTime) -> Self {
        Self {
            superseded: Some(self.generation),
            ..self.reopened(claim, None, longest, now)
        }
    }

    /// The record as one that nobody holds any more.
    pub(super) fn buried(
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

    /// Whether certificates of this UID are of the generation before, and still valid.
    pub(super) fn supersedes(&self, uid: CertificateUid) -> bool {
        self.superseded == Some(uid.generation) && uid.record == self.uid
    }

    /// The UID that certificates of the present generation carry.
    pub fn certificate_uid(&self) -> CertificateUid {
        CertificateUid {
            record: self.uid,
            generation: self.generation,
        }
    }

    /// Whether the record matters to a claim by this identity and key: it is of the machine, of its
    /// TPM, or of the key.
    pub fn concerns(&self, identity: &Identity, key: KeyDigest) -> bool {
        self.holder.concerns(identity) || self.opened.key == key
    }

    /// Whether somebody holds the name.
    pub fn is_live(&self) -> bool {
        self.tombstone.is_none()
    }

    /// Whether a person took the certificates of the present generation back.
    pub fn is_revoked(&self) -> bool {
        self.revoked
            .is_some_and(|revoked| revoked.generation >= self.generation)
    }

    /// Whether a person gave the present generation up for the next claim.
    pub fn is_reset(&self) -> bool {
        self.reset == Some(self.generation)
    }

    /// Whether the machine took another name.
    pub(super) fn is_renamed(&self) -> bool {
        let reason = self.tombstone.as_ref().map(|tombstone| tombstone.reason);
        reason == Some(TombstoneReason::Renamed)
    }

    /// The latest end of a certificate of the present generation that is known of.
    pub fn known_end(&self) -> SystemTime {
        self.renewed_until
            .map_or(self.not_after, |renewed| renewed.max(self.not_after))
    }

    /// Checks that the TPM of a request that was filed at `asked` is no further back than it was seen
    /// to be.
    ///
    /// # Errors
    ///
    /// It was further on when the request was filed, to the second: a copy of it, or one that was cleared
    /// ([`Denial::TpmRanBackwards`]). It was seen so since: the request waited while the machine
    /// filed another one, and nobody is to blame ([`Failure::EvidenceExpired`]).
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

    /// A refusal that names the node and the holder.
    pub(super) fn refused<T>(&self, as_one: impl FnOnce(NodeName, ProviderId) -> T) -> T {
        as_one(self.node_name.clone(), self.holder.provider_id.clone())
    }

    fn seen_boots(&self) -> impl Iterator<Item = SeenBoot> {
        let at = self.opened.time;
        let opened = self.holder.boot.map(|boot| SeenBoot { boot, at });
        [self.renewed_boot, opened].into_iter().flatten()
    }

    /// The furthest that its TPM was seen to have come.
    pub(super) fn known_boot(&self) -> Option<TpmBoot> {
        self.seen_boots().map(|seen| seen.boot).max()
    }

    /// The lifetime of the certificate that opened the generation: as much was allowed then, for
    /// renewals too, whatever is allowed now.
    fn opened_for(&self) -> Duration {
        self.not_after
            .duration_since(self.opened.time)
            .unwrap_or_default()
    }

    /// By when every certificate of the generation has expired that ended at `now`, the ones that
    /// nobody knows of among them.
    fn ends_by(&self, longest: Duration, now: SystemTime) -> SystemTime {
        if let Some(tombstone) = &self.tombstone {
            return tombstone.until;
        }
        let longest = longest.max(self.opened_for());
        self.known_end()
            .max(whole_seconds(now + longest + GRANT_LAG))
    }

    /// By when every certificate has expired that a former holder, or the one that is buried here,
    /// may have; `None` if there is none.
    pub(super) fn former_end(&self) -> Option<SystemTime> {
        self.former_until
            .max(self.tombstone.map(|tombstone| tombstone.until))
    }

    /// The generations whose certificates are revoked and may not have expired. `longest` is the
    /// longest lifetime of a certificate.
    pub fn revoked_generations(
        &self,
        longest: Duration,
        now: SystemTime,
    ) -> Option<RevokedGenerations> {
        let present = match (&self.tombstone, &self.revoked) {
            (Some(tombstone), _) => Some(tombstone.until),
            (None, Some(revoked)) if self.is_revoked() => Some(self.ends_by(longest, revoked.at)),
            (None, _) => None,
        };
        let until = self.former_until.max(present).filter(|end| *end > now)?;
        let lowest_valid = match (present, self.superseded) {
            (Some(_), _) => self.generation.saturating_add(1),
            (None, superseded) => superseded.unwrap_or(self.generation),
        };
        Some(RevokedGenerations {
            lowest_valid,
            until,
        })
        // Of the first generation there is no former one.
        .filter(|revoked| revoked.lowest_valid > 1)
    }
}

/// The time, cut to whole seconds. A time before 1970 becomes 1970.
pub fn whole_seconds(time: SystemTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(unix_seconds(time))
}

pub(super) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests;
