//! The challenge: a secret that nobody keeps.
//!
//! It is an HMAC over everything that a certificate would rest on: the cluster, the audience, the
//! trusted endorsement key and the attestation key, the key of the request, the machine, the name of
//! the node, the challenge's own ID and its end. So it is made again from the response, by whatever
//! replica reads that, and nothing has to be remembered. In return, a challenge answers for one key
//! alone: an ID that comes back with another key (or name, machine, cluster, end) makes another
//! secret, and a quote over the first one is a quote of another request
//! ([`QuoteOfAnotherRequest`](crate::denial::TpmDenial::QuoteOfAnotherRequest)):
//! a replay, at every replica, as long as the keys are in use. With the same key it is our own retry.
//!
//! The ID tells by which key its challenge was made, and for which Cluster. So a machine whose challenge
//! was made by a key that is not in use here is not taken for one that contradicts itself: replicas see
//! a key that is replaced at different times. Nor is one whose Cluster was moved to another management
//! cluster meanwhile, and has another UID there.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::{hmac, rand};
use kubelet_attestation::evidence::tpm::{ChallengeId, Expiry};
use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use node_attestation_core::refusal::{Denial, Failure, NotAsked, Refusal, Unavailable};
use zeroize::Zeroizing;

use crate::structure::Name;

/// The lifetime of a challenge. Slow TPMs take ten seconds to answer, and requests wait for a
/// controller that is busy or restarts.
pub(crate) const LIFETIME: Duration = Duration::from_mins(5);

/// The longest wait of an answer that came in time: evidence that is older than fourteen minutes is
/// not appraised, because the machine's state may have changed.
const MAX_WAIT: Duration = Duration::from_mins(9);

/// A key that challenges are made with: 32 random bytes.
#[derive(derive_more::Debug, Clone)]
#[debug("ChallengeKey")]
pub struct ChallengeKey(Zeroizing<[u8; 32]>);

impl ChallengeKey {
    /// The key of these random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The ID of a new challenge: eight random bytes, and eight that tell the key and the Cluster.
    ///
    /// # Errors
    ///
    /// There is no randomness to be had.
    pub(crate) fn new_id(&self, cluster_uid: &str) -> Result<ChallengeId, Unspecified> {
        let mut random = [0; 8];
        rand::fill(&mut random)?;
        Ok(self.id_of(random, cluster_uid))
    }

    fn made(&self, id: ChallengeId, cluster_uid: &str) -> bool {
        let random = id.as_bytes().first_chunk().copied();
        // No secret is compared: IDs can be read by everybody, and answer for nothing.
        random.is_some_and(|random| self.id_of(random, cluster_uid) == id)
    }

    fn id_of(&self, random: [u8; 8], cluster_uid: &str) -> ChallengeId {
        let mut mac = hmac::Context::with_key(&self.hmac());
        mac.update(b"tpm/v1/id");
        mac.update(&random);
        mac.update(cluster_uid.as_bytes());
        let tag = mac.sign();
        let mut id = [0; 16];
        let bytes = random.iter().chain(tag.as_ref());
        id.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        ChallengeId::new(id)
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.0.as_slice())
    }
}

/// The keys in use.
///
/// A key is replaced by making it the former one: challenges in flight are still answered. It can
/// be dropped a quarter of an hour later, when no answer to them is looked at any more.
#[derive(Debug, Clone)]
pub struct ChallengeKeys {
    /// New challenges are made with this one.
    pub current: ChallengeKey,
    /// Answers may be to a challenge of this one.
    pub former: Option<ChallengeKey>,
}

impl ChallengeKeys {
    /// Whether the challenge of this ID was made with a key that is in use, for the Cluster of this UID.
    pub(crate) fn made(&self, id: ChallengeId, cluster_uid: &str) -> bool {
        let former = self.former.as_ref();
        self.current.made(id, cluster_uid) || former.is_some_and(|key| key.made(id, cluster_uid))
    }
}

/// The source of the keys in use: all replicas have the same.
pub trait ChallengeKeySource: fmt::Debug + Send + Sync {
    /// The keys in use now.
    ///
    /// # Errors
    ///
    /// They are not at hand; requests wait.
    fn keys(&self) -> Result<Arc<ChallengeKeys>, Unavailable>;

    /// The keys that answers are checked with: the same, unless the source only stands for them.
    ///
    /// # Errors
    ///
    /// As [`keys`](Self::keys).
    fn keys_of_answers(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
        self.keys()
    }
}

/// Stands for the keys in an [explanation](node_attestation_core::decide::explain): a challenge is made with a random
/// key, and no answer is checked.
#[derive(Debug, Clone, Copy)]
pub struct RehearsedKeys;

impl ChallengeKeySource for RehearsedKeys {
    fn keys(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
        let mut key = [0; 32];
        rand::fill(&mut key).map_err(|_| Unavailable::new("no random bytes"))?;
        Ok(Arc::new(ChallengeKeys {
            current: ChallengeKey::new(key),
            former: None,
        }))
    }

    fn keys_of_answers(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
        Err(Unavailable::new(NotAsked("the key of the challenges")))
    }
}

/// Keys that are never replaced.
impl ChallengeKeySource for Arc<ChallengeKeys> {
    fn keys(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
        Ok(Self::clone(self))
    }
}

/// The subject of a challenge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) cluster_uid: &'a str,
    pub(crate) audience: &'a Audience,
    pub(crate) endorsement: &'a Name,
    pub(crate) attestation: &'a Name,
    pub(crate) spki: &'a [u8],
    pub(crate) provider_id: &'a ProviderId,
    pub(crate) node_name: &'a NodeName,
}

impl Subject<'_> {
    /// The secret of a challenge.
    pub(crate) fn secret(
        &self,
        key: &ChallengeKey,
        id: ChallengeId,
        expiry: &Expiry,
    ) -> Zeroizing<[u8; 32]> {
        let mut mac = hmac::Context::with_key(&key.hmac());
        mac.update(b"tpm/v1");
        for field in [
            self.cluster_uid.as_bytes(),
            self.audience.as_str().as_bytes(),
            self.endorsement.as_bytes(),
            self.attestation.as_bytes(),
            self.spki,
            self.provider_id.as_str().as_bytes(),
            self.node_name.as_str().as_bytes(),
            id.as_bytes(),
            expiry.as_str().as_bytes(),
        ] {
            // No field comes near four gigabytes.
            let len = u32::try_from(field.len()).unwrap_or(u32::MAX);
            mac.update(&len.to_be_bytes());
            mac.update(field);
        }
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(mac.sign().as_ref());
        secret
    }
}

/// The end of a challenge that is made now; `None` if there is no such time.
pub(crate) fn expiry(now: SystemTime) -> Option<Expiry> {
    let end = now.checked_add(LIFETIME)?;
    Expiry::parse(&humantime::format_rfc3339_seconds(end).to_string())
}

/// Checks that an answer came in time, by our clock or by that of the API server, which wrote down
/// when it came; and that it did not wait for too long since.
///
/// The end of the challenge is taken from the answer: another end than the challenge's makes another
/// secret.
///
/// # Errors
///
/// [`Failure::EvidenceExpired`]; [`Denial::EvidenceMalformed`] where there is no such time.
pub(crate) fn in_time(expiry: &Expiry, asked: SystemTime, now: SystemTime) -> Result<(), Refusal> {
    let end = humantime::parse_rfc3339(expiry.as_str())
        .map_err(|_| Denial::EvidenceMalformed("expiry is no time".to_owned()))?;
    let late = |clock: SystemTime| clock.duration_since(end).unwrap_or_default();
    if late(now.min(asked)).is_zero() && late(now) <= MAX_WAIT {
        Ok(())
    } else {
        Err(Failure::EvidenceExpired.into())
    }
}

#[cfg(test)]
mod tests;
