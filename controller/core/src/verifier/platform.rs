//! A platform's knowledge of the machines whose TPMs it made.
//!
//! Nothing of a request takes part: the machine is the one that the inventory found.

use std::fmt::Debug;
use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::identifiers::{KeyDigest, ServingName};
use crate::refusal::{Reason, Refusal, Unavailable};

/// A platform that makes machines with TPMs.
///
/// An implementation brings its own deadlines.
#[async_trait::async_trait]
pub trait Platform: Debug + Send + Sync {
    /// The digest of the endorsement key of this kind that the TPM of the machine with this provider ID
    /// has: SHA-256 of the DER of its `SubjectPublicKeyInfo` ([`KeyDigest::of`]). `None` where the platform
    /// does not know the machine, or the TPM has no such key.
    ///
    /// # Errors
    ///
    /// The platform could not be asked; the request waits.
    async fn endorsement_key(
        &self,
        provider_id: &ProviderId,
        kind: KeyKind,
    ) -> Result<Option<KeyDigest>, Unavailable>;

    /// The platform's own checks of the machine with this provider ID: whether it may be of this cluster. A platform that
    /// has no say accepts it.
    ///
    /// # Errors
    ///
    /// It may not be of the cluster, or the platform could not be asked.
    async fn check(&self, _provider_id: &ProviderId, _now: SystemTime) -> Result<(), Refusal> {
        Ok(())
    }

    /// The reasons for which [`check`](Self::check) denies.
    fn denials(&self) -> &'static [Reason] {
        &[]
    }

    /// The name of the Node of the machine with this provider ID, as its infrastructure set it.
    /// `None` where the platform has no say: then the inventory's name counts.
    ///
    /// # Errors
    ///
    /// The platform could not be asked, or does not know yet; the request waits.
    async fn node_name(&self, _provider_id: &ProviderId) -> Result<Option<NodeName>, Unavailable> {
        Ok(None)
    }

    /// The names and addresses of the machine with this provider ID; `None` where the platform has no
    /// say.
    ///
    /// # Errors
    ///
    /// As [`node_name`](Self::node_name).
    async fn serving_names(
        &self,
        _provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        Ok(None)
    }
}

/// A kind of endorsement key, one for each template: a TPM has a key of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyKind {
    /// RSA with 2048 bits (L-1).
    Rsa2048,
    /// ECC on P-256 (L-2).
    P256,
    /// ECC on P-384 (H-3).
    P384,
}

/// A platform that knows no machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPlatform;

#[async_trait::async_trait]
impl Platform for NoPlatform {
    async fn endorsement_key(
        &self,
        _provider_id: &ProviderId,
        _kind: KeyKind,
    ) -> Result<Option<KeyDigest>, Unavailable> {
        Ok(None)
    }
}
