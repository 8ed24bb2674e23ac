//! Recent STS refusals, which are repeated without another call.
//!
//! A refusal must never affect a legitimate request. Refused credentials are remembered only together with this
//! identity document. A refused signature is remembered only for this call. Therefore a copy of evidence with a
//! different signature does not affect the original.

use std::time::Duration;

use kubelet_attestation::evidence::aws::Proof;
use node_attestation_core::refusal::{Denial, Refusal};
use node_attestation_runtime::shared::{Lock, Share, Shared, Shares, Swept};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::request::Call;
use crate::denial::AwsDenial;
use crate::document::VerifiedDocument;

/// The time for which a refusal is remembered.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The maximum number of remembered refusals. At the limit, STS is called again.
pub(super) const MAX_REFUSED: usize = 4096;

/// The maximum number of remembered refusals for one namespace, because a tenant can cause any number of refusals. A
/// namespace also cannot have more refusals than the number of free places, so several namespaces together leave room
/// for other namespaces.
pub(super) const MAX_OF_NAMESPACE: usize = MAX_REFUSED / 4;

/// The number of entries that are checked for removal at the limit.
const SWEPT: usize = 64;

/// STS codes that reject the credentials, regardless of the signature.
const OF_CREDENTIALS: [&str; 3] = [
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
];

/// The subject of a refusal, as a digest, because it contains a session token.
type Subject = [u8; 32];

/// The cache.
#[derive(Debug)]
pub(super) struct Refused(Shared<Inner>);

#[derive(Debug, Default)]
struct Inner {
    refusals: Swept<Subject, Remembered>,
    namespaces: Shares,
}

#[derive(Debug)]
struct Remembered {
    until: Instant,
    denial: AwsDenial,
    /// The share of the Cluster's namespace.
    _share: Share,
}

impl Default for Refused {
    fn default() -> Self {
        Self(Shared::new(Lock::StsRefusals, Inner::default()))
    }
}

impl Refused {
    /// Returns the refusal of this call or of its credentials, if it is remembered.
    pub(super) fn look(
        &self,
        call: &Call,
        proof: &Proof,
        document: &VerifiedDocument,
    ) -> Option<AwsDenial> {
        let now = Instant::now();
        let subjects = [of_call(call), of_credentials(proof, document)];
        self.0.read(|Inner { refusals, .. }| {
            let mut known = subjects.iter().filter_map(|subject| refusals.get(subject));
            // One of the two refusals might have expired while the other refusal is still valid.
            let known = known.find(|known| now < known.until)?;
            Some(known.denial.clone())
        })
    }

    /// Remembers `refusal` for a Cluster in this namespace if it is a refusal by STS.
    pub(super) fn remember(
        &self,
        namespace: &str,
        refusal: &Refusal,
        call: &Call,
        proof: &Proof,
        document: &VerifiedDocument,
    ) {
        let Refusal::Deny(Denial::Evidence(denial)) = refusal else {
            return;
        };
        let Some(denial @ AwsDenial::CallerRefused(code)) = denial.downcast_ref() else {
            return;
        };
        let subject = if OF_CREDENTIALS.contains(&code.as_ref()) {
            of_credentials(proof, document)
        } else {
            of_call(call)
        };
        let now = Instant::now();
        let denial = denial.clone();
        self.0.write(|inner| {
            let Inner {
                refusals,
                namespaces,
            } = inner;
            let share = namespaces.of(namespace);
            let is_over = |_: &Subject, known: &mut Remembered| known.until <= now;
            let left = MAX_REFUSED.saturating_sub(refusals.len());
            if share.count() <= left.min(MAX_OF_NAMESPACE) {
                let known = Remembered {
                    until: now + REMEMBERED,
                    denial,
                    _share: share,
                };
                refusals.insert(subject, known, is_over);
            } else {
                refusals.sweep(SWEPT, is_over);
            }
        });
    }
}

fn of_call(call: &Call) -> Subject {
    let digest = Sha256::new_with_prefix("call");
    digest
        .chain_update(call.signature)
        .chain_update(call.content)
        .finalize()
        .into()
}

fn of_credentials(proof: &Proof, document: &VerifiedDocument) -> Subject {
    let mut digest = Sha256::new_with_prefix("credentials");
    digest.update(document.digest);
    for part in [&proof.access_key_id, &proof.session_token] {
        digest.update(Sha256::digest(part));
    }
    digest.finalize().into()
}
