//! The trusted endorsement key of a machine, as specified by operators and platforms.
//!
//! These sources do not use any part of the request: the inventory identifies the machine.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::AllowedEndorsementKey;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::inventory::Machine;

use crate::hosts::Hosts;
use crate::invalid_settings::InvalidTpmSettings;

/// The machines and their endorsement keys in an operator's list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllowList {
    /// The keys, keyed by the name of the Machine.
    machines: BTreeMap<String, Vec<KeyDigest>>,
    hosts: Hosts,
}

impl AllowList {
    /// Creates the list from these settings. If a machine has several entries with different keys, a presented key can
    /// never match all of them.
    ///
    /// # Errors
    ///
    /// Returns an error if a digest is invalid or occurs twice, or if an entry does not identify exactly one machine.
    pub(crate) fn new(listed: &[AllowedEndorsementKey]) -> Result<Self, InvalidTpmSettings> {
        let mut machines: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut hosts = Vec::new();
        let mut keys = BTreeSet::new();
        for (index, entry) in listed.iter().enumerate() {
            let invalid = |rule| InvalidTpmSettings::new(format!("allowList[{index}]: {rule}"));
            let AllowedEndorsementKey {
                machine,
                provider_id,
                ek_sha256,
            } = entry;
            let key = KeyDigest::parse(ek_sha256)
                .map_err(|_| invalid("ekSha256 is not 64 lower-case hexadecimal digits"))?;
            if !keys.insert(key) {
                return Err(invalid("another entry has the same ekSha256"));
            }
            match (machine, provider_id) {
                (Some(machine), None) => machines.entry(machine.clone()).or_default().push(key),
                (None, Some(host)) => {
                    let host = ProviderId::parse(host).map_err(|_| {
                        invalid("providerID is neither a provider ID nor a provider ID prefix")
                    })?;
                    hosts.push((host, key));
                }
                (Some(_), Some(_)) | (None, None) => {
                    return Err(invalid("it must contain either machine or providerID"));
                }
            }
        }
        Ok(Self {
            machines,
            hosts: hosts.into_iter().collect(),
        })
    }

    /// Returns the listed keys for the machine. The presented key must match each of these keys.
    pub(crate) fn keys_of<'a>(
        &'a self,
        machine: &'a Machine,
        provider_id: &'a ProviderId,
    ) -> impl Iterator<Item = KeyDigest> {
        let named = self.machines.get(&machine.name).into_iter().flatten();
        named.copied().chain(self.hosts.keys_of(provider_id))
    }
}

/// The scheme of provider IDs that consist of the digest of an endorsement key.
const SCHEME: &str = "tpm://";

/// The endorsement key in a provider ID of the form `tpm://<digest>`.
pub(crate) fn of_provider_id(provider_id: &ProviderId) -> Option<KeyDigest> {
    let digest = provider_id.as_str().strip_prefix(SCHEME)?;
    KeyDigest::parse(digest).ok()
}
