//! The challenge, whose secret is derived again when it is needed, and is not stored.
//!
//! The secret is an HMAC over all inputs to a certificate: the cluster, the audience, the trusted endorsement key, the
//! attestation key, the key in the request, the machine, the node name, and the challenge's ID and expiry time.
//! Therefore any replica can derive the secret again from the response, and no replica stores state. A challenge is
//! valid for only one key: the same ID with a different key, name, machine, cluster or expiry time results in a
//! different secret. A quote over the first secret is then denied with
//! [`QuoteOfAnotherRequest`](crate::denial::TpmDenial::QuoteOfAnotherRequest). Every replica detects such a replay as
//! long as the challenge keys are in use. The same ID with the same key is a retry by the same node.
//!
//! The ID identifies the challenge key and the Cluster. Therefore a challenge with a key that this replica does not use
//! is not a contradiction, because replicas observe a key rotation at different times. The same applies to a Cluster
//! that was moved to another management cluster, in which it has a different UID.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::{hmac, rand};
use kubelet_attestation::contract::MAX_EVIDENCE_AGE;
use kubelet_attestation::evidence::tpm::{ChallengeId, Expiry};
use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use node_attestation_core::refusal::{Denial, Failure, NotCalled, Refusal, Unavailable};
use node_attestation_core::time::until;
use zeroize::Zeroizing;

use crate::structure::Name;

/// The validity of a challenge. A slow TPM needs 10 seconds for a response, and requests wait while a controller is
/// busy or restarts.
pub(crate) const LIFETIME: Duration = Duration::from_mins(5);

/// The maximum time for which a response that arrived in time can wait for the appraisal. The controller does not
/// appraise older evidence, because the machine's state might have changed.
const MAX_WAIT: Duration = MAX_EVIDENCE_AGE.saturating_sub(LIFETIME);

/// A key for deriving challenges: 32 random bytes.
#[derive(derive_more::Debug, Clone)]
#[debug("ChallengeKey")]
pub struct ChallengeKey(Zeroizing<[u8; 32]>);

impl ChallengeKey {
    /// Creates a key from these random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Generates the ID of a new challenge, which consists of 8 random bytes, and 8 bytes that identify the challenge
    /// key and the Cluster.
    ///
    /// # Errors
    ///
    /// Returns an error if the system provides no random bytes.
    pub(crate) fn new_id(&self, cluster_uid: &str) -> Result<ChallengeId, Unspecified> {
        let mut random = [0; 8];
        rand::fill(&mut random)?;
        Ok(self.id_of(random, cluster_uid))
    }

    fn made(&self, id: ChallengeId, cluster_uid: &str) -> bool {
        let random = id.as_bytes().first_chunk().copied();
        // This comparison does not need constant time, because IDs are public, and do not authenticate a response.
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

/// The challenge keys that are in use.
///
/// To rotate the key, make the current key the previous key, so that the controller still accepts responses to its
/// challenges. After 15 minutes, the controller no longer accepts these responses, and an operator can remove the
/// previous key.
#[derive(Debug, Clone)]
pub struct ChallengeKeys {
    /// The key for new challenges.
    pub current: ChallengeKey,
    /// The previous key. Responses to its challenges are still accepted.
    pub former: Option<ChallengeKey>,
}

impl ChallengeKeys {
    /// Whether a key that is in use created the challenge with this ID, for the Cluster with this UID.
    pub(crate) fn made(&self, id: ChallengeId, cluster_uid: &str) -> bool {
        let former = self.former.as_ref();
        self.current.made(id, cluster_uid) || former.is_some_and(|key| key.made(id, cluster_uid))
    }
}

/// The source of the challenge keys. All replicas must have the same keys.
pub trait ChallengeKeySource: fmt::Debug + Send + Sync {
    /// Returns the keys that are currently in use.
    ///
    /// # Errors
    ///
    /// Returns an error if the keys are not available. Requests then wait.
    fn keys(&self) -> Result<Arc<ChallengeKeys>, Unavailable>;

    /// Returns the keys for checking responses. These are the keys from [`keys`](Self::keys), unless the source
    /// provides only substitutes for the keys.
    ///
    /// # Errors
    ///
    /// The same errors as for [`keys`](Self::keys).
    fn keys_of_answers(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
        self.keys()
    }
}

/// Replaces the keys in an [explanation](node_attestation_core::decide::explain). Challenges are created with a random
/// key, and responses are not checked.
#[derive(Debug, Clone, Copy)]
pub struct RehearsedKeys;

impl ChallengeKeySource for RehearsedKeys {
    fn keys(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
        let mut key = [0; 32];
        rand::fill(&mut key)
            .map_err(|_| Unavailable::new("the system did not provide random bytes"))?;
        Ok(Arc::new(ChallengeKeys {
            current: ChallengeKey::new(key),
            former: None,
        }))
    }

    fn keys_of_answers(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
        Err(Unavailable::new(NotCalled("the key of the challenges")))
    }
}

/// Keys that are never rotated.
impl ChallengeKeySource for Arc<ChallengeKeys> {
    fn keys(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
        Ok(Self::clone(self))
    }
}

/// The inputs from which the secret of a challenge is derived.
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
    /// Derives the secret of a challenge.
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
            // The conversion cannot fail, because every field is shorter than 4 GiB.
            let len = u32::try_from(field.len()).unwrap_or(u32::MAX);
            mac.update(&len.to_be_bytes());
            mac.update(field);
        }
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(mac.sign().as_ref());
        secret
    }
}

/// Returns the expiry time of a challenge that is created at `now`. `None` if the time is out of range.
pub(crate) fn expiry(now: SystemTime) -> Option<Expiry> {
    let end = now.checked_add(LIFETIME)?;
    Expiry::parse(&humantime::format_rfc3339_seconds(end).to_string())
}

/// Checks that a response arrived in time, according to this controller's clock or to the creation time of the request
/// in the API server. Also checks that the request did not wait too long after that.
///
/// The expiry time comes from the response. If it does not match the challenge, the secret is different.
///
/// # Errors
///
/// [`Failure::EvidenceExpired`] if the response is too late. [`Denial::EvidenceMalformed`] if the expiry time is not a
/// valid time.
pub(crate) fn in_time(expiry: &Expiry, asked: SystemTime, now: SystemTime) -> Result<(), Refusal> {
    let end = humantime::parse_rfc3339(expiry.as_str()).map_err(|_| {
        Denial::EvidenceMalformed("invalid expiry (must be YYYY-MM-DDTHH:MM:SSZ)".to_owned())
    })?;
    let late = |clock: SystemTime| until(clock, end);
    if late(now.min(asked)).is_zero() && late(now) <= MAX_WAIT {
        Ok(())
    } else {
        Err(Failure::EvidenceExpired.into())
    }
}

#[cfg(test)]
mod tests;
