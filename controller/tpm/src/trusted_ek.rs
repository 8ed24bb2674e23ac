//! Which endorsement key a machine has, by the word of those who gave it to the machine.
//!
//! Nothing of a request takes part: the machine is the one that the inventory found.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::SystemTime;

use futures::future::{BoxFuture, FutureExt as _, ready};
use kubelet_attestation::names::ProviderId;
use node_attestation_controller::crd::AllowedEndorsementKey;
use node_attestation_controller::inventory::Machine;
use node_attestation_controller::ledger::KeyDigest;
use node_attestation_controller::refusal::Unavailable;

use crate::policy::InvalidTpmSettings;

/// Knows the endorsement keys of machines: a platform that made their TPMs.
///
/// An implementation brings its own deadlines.
pub trait EndorsementKeys: Debug + Send + Sync {
    /// The digest of the endorsement key of this kind that the machine's TPM has: SHA-256 of the
    /// DER of its `SubjectPublicKeyInfo` ([`KeyDigest::of`]). `None` where nothing is known of the
    /// machine, or it has no such key.
    ///
    /// # Errors
    ///
    /// It could not be asked; the request waits.
    fn trusted<'a>(
        &'a self,
        asked: Asked<'a>,
    ) -> BoxFuture<'a, Result<Option<KeyDigest>, Unavailable>>;
}

/// Of which machine the endorsement key is asked for.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Asked<'a> {
    /// The machine, as the inventory has it.
    pub machine: &'a Machine,
    /// The machine's provider ID, as its infrastructure set it.
    pub provider_id: &'a ProviderId,
    /// Of which kind: a TPM has a key of each.
    pub kind: KeyKind,
    /// What time it is.
    pub now: SystemTime,
}

/// A kind of endorsement key, one for each template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum KeyKind {
    /// RSA with 2048 bits (L-1).
    Rsa2048,
    /// ECC on P-256 (L-2).
    P256,
    /// ECC on P-384 (H-3).
    P384,
}

/// Where no platform knows the machines.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing to know")]
pub struct NoPlatform;

impl EndorsementKeys for NoPlatform {
    fn trusted<'a>(
        &'a self,
        _asked: Asked<'a>,
    ) -> BoxFuture<'a, Result<Option<KeyDigest>, Unavailable>> {
        ready(Ok(None)).boxed()
    }
}

/// Machines and their endorsement keys, as an operator listed them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllowList(BTreeMap<String, KeyDigest>);

impl AllowList {
    /// The list of these settings.
    ///
    /// # Errors
    ///
    /// [`InvalidTpmSettings::EndorsementKey`]: a digest is none, or a machine or a key stands there
    /// twice.
    pub(crate) fn new(listed: &[AllowedEndorsementKey]) -> Result<Self, InvalidTpmSettings> {
        let mut by_machine = BTreeMap::new();
        for AllowedEndorsementKey { machine, ek_sha256 } in listed {
            let invalid = || InvalidTpmSettings::EndorsementKey {
                machine: machine.clone(),
            };
            let key = KeyDigest::parse(ek_sha256).map_err(|_| invalid())?;
            let is_another_s = by_machine.values().any(|other| *other == key);
            if is_another_s || by_machine.insert(machine.clone(), key).is_some() {
                return Err(invalid());
            }
        }
        Ok(Self(by_machine))
    }

    fn of(&self, machine: &Machine) -> Option<KeyDigest> {
        self.0.get(&machine.name).copied()
    }

    /// Every key that is known of the machine without asking anybody: they must all be the one that
    /// it presents.
    pub(crate) fn known<'a>(
        &'a self,
        machine: &'a Machine,
        provider_id: &ProviderId,
    ) -> impl Iterator<Item = KeyDigest> + use<'a> {
        [of_provider_id(provider_id), self.of(machine)]
            .into_iter()
            .flatten()
    }
}

/// What a machine is called by that has no name but its TPM's.
const SCHEME: &str = "tpm://";

/// The endorsement key that the provider ID `tpm://<digest>` names.
fn of_provider_id(provider_id: &ProviderId) -> Option<KeyDigest> {
    let digest = provider_id.as_str().strip_prefix(SCHEME)?;
    KeyDigest::parse(digest).ok()
}
