//! Platforms that report facts about machines with TPMs.
//!
//! A platform does not use any part of the request: the inventory identifies the machine.

use std::fmt::Debug;
use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::identifiers::{KeyDigest, ServingName};
use crate::refusal::{Reason, Refusal, Unavailable};

/// A platform that creates machines with TPMs.
///
/// An implementation enforces its own deadlines.
#[async_trait::async_trait]
pub trait Platform: Debug + Send + Sync {
    /// Returns the digest of the machine's endorsement key of this type: SHA-256 of the DER of its
    /// `SubjectPublicKeyInfo` ([`KeyDigest::of`]). `None` if the platform does not have the machine, or its TPM has no
    /// endorsement key of this type.
    ///
    /// # Errors
    ///
    /// Returns an error if the platform cannot be queried. The request then waits.
    async fn endorsement_key(
        &self,
        provider_id: &ProviderId,
        kind: KeyKind,
    ) -> Result<Option<KeyDigest>, Unavailable>;

    /// Checks, with the rules of the platform, whether the machine with this provider ID can belong to this cluster.
    /// The default implementation accepts every machine.
    ///
    /// # Errors
    ///
    /// Denies a machine that cannot belong to the cluster. Defers if the platform cannot be queried.
    async fn check(&self, _provider_id: &ProviderId, _now: SystemTime) -> Result<(), Refusal> {
        Ok(())
    }

    /// The reasons for denials by [`check`](Self::check).
    fn denials(&self) -> &'static [Reason] {
        &[]
    }

    /// Returns the Node name for the machine with this provider ID, as set by its infrastructure. `None` if the
    /// platform does not report a name. The inventory then determines the name.
    ///
    /// # Errors
    ///
    /// Returns an error if the platform cannot be queried, or does not report the name yet. The request then waits.
    async fn node_name(&self, _provider_id: &ProviderId) -> Result<Option<NodeName>, Unavailable> {
        Ok(None)
    }

    /// Returns the names and addresses of the machine with this provider ID. `None` if the platform does not report
    /// them.
    ///
    /// # Errors
    ///
    /// The same errors as for [`node_name`](Self::node_name).
    async fn serving_names(
        &self,
        _provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        Ok(None)
    }
}

/// The type of an endorsement key. Each type has a template, and a TPM can have one key of each type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyKind {
    /// RSA with 2048 bits (template L-1).
    Rsa2048,
    /// ECC on P-256 (template L-2).
    P256,
    /// ECC on P-384 (template H-3).
    P384,
}

/// A platform that has no machines.
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
