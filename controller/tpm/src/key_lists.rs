//! Lists of hosts and their endorsement keys outside the settings, in `ConfigMaps`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::TryFutureExt as _;
use kubelet_attestation::names::ProviderId;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::conditions::{self, ConditionReport, ConditionStatus, reason};
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::refusal::{Deferral, Unavailable};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::config_maps::ConfigMaps;
use node_attestation_runtime::log_lines::ClusterLines;

use crate::hosts::Hosts;

/// The maximum number of malformed entries from one `ConfigMap` that a message contains. The message also contains the
/// number of the other entries. The note of an Event has space for this number of digests.
const MAX_NAMED: usize = 2;

/// Lists of hosts and their endorsement keys.
///
/// An implementation enforces its own deadlines.
#[async_trait::async_trait]
pub trait KeyLists: Debug + Send + Sync {
    /// Returns the current lists.
    ///
    /// # Errors
    ///
    /// Returns an error if a list cannot be read. The request then waits.
    async fn read(&self) -> Result<Arc<[Arc<KeyList>]>, Unavailable>;

    /// Returns a condition about the lists, without reading them.
    fn report(&self) -> ConditionReport;
}

/// A list.
#[derive(Debug)]
pub struct KeyList {
    pub(crate) hosts: Hosts,
    /// The malformed entries. Each of these entries could be intended for any machine.
    pub(crate) malformed: Option<MalformedEntries>,
}

/// Entries in a `ConfigMap` that do not consist of an endorsement key and a host.
///
/// The `Display` text contains the first two entries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ConfigMap {config_map} has {count} malformed entries: {}", named.join(", "))]
pub struct MalformedEntries {
    config_map: ObjectKey,
    count: usize,
    /// The keys of the first malformed entries.
    named: Vec<String>,
}

impl KeyList {
    /// Parses the entries of a `ConfigMap`.
    pub fn of(config_map: &ObjectKey, data: BTreeMap<String, String>) -> Self {
        let mut hosts = Vec::with_capacity(data.len());
        let mut malformed = Vec::new();
        for (digest, host) in data {
            match (KeyDigest::parse(&digest), ProviderId::parse(&host)) {
                (Ok(key), Ok(host)) => hosts.push((host, key)),
                (Err(_), _) | (_, Err(_)) => malformed.push(digest),
            }
        }
        let malformed = (!malformed.is_empty()).then(|| MalformedEntries {
            config_map: config_map.clone(),
            count: malformed.len(),
            named: malformed.into_iter().take(MAX_NAMED).collect(),
        });
        if let Some(malformed) = &malformed {
            let lines = ClusterLines::of_namespace(&config_map.namespace);
            cluster_line!(
                &lines,
                WARN,
                error = %malformed,
                "ignoring malformed entries in a list of endorsement keys"
            );
        }
        Self {
            hosts: hosts.into_iter().collect(),
            malformed,
        }
    }
}

/// The endorsement keys in the lists for the host that a machine uses.
pub(crate) fn listed_in<'a>(
    lists: &'a [Arc<KeyList>],
    provider_id: &'a ProviderId,
) -> impl Iterator<Item = KeyDigest> {
    let keys = lists
        .iter()
        .map(move |list| list.hosts.keys_of(provider_id));
    keys.flatten()
}

/// Checks that the lists contain no malformed entry. A malformed entry could be intended for any machine.
pub(crate) fn are_well_formed(lists: &[Arc<KeyList>]) -> Result<(), Deferral> {
    match lists.iter().find_map(|list| list.malformed.as_ref()) {
        Some(malformed) => {
            let malformed = Unavailable::new(malformed.clone());
            Err(Deferral::VerifierUnavailable(malformed))
        }
        None => Ok(()),
    }
}

#[async_trait::async_trait]
impl KeyLists for ConfigMaps<KeyList> {
    async fn read(&self) -> Result<Arc<[Arc<KeyList>]>, Unavailable> {
        self.read().map_err(Unavailable::new).await
    }

    fn report(&self) -> ConditionReport {
        report(match self.last_outcome() {
            None => (
                ConditionStatus::Unknown,
                reason::PENDING,
                "the ConfigMaps have not been read yet: no machine has sent a request".to_owned(),
            ),
            Some(Err(unread)) => (
                ConditionStatus::False,
                reason::CONFIG_MAP_UNREADABLE,
                unread.to_string(),
            ),
            Some(Ok(lists)) => of_read(&lists),
        })
    }
}

fn of_read(lists: &[Arc<KeyList>]) -> (ConditionStatus, &'static str, String) {
    let malformed = lists.iter().filter_map(|list| list.malformed.as_ref());
    let malformed: Vec<_> = malformed.map(ToString::to_string).collect();
    if malformed.is_empty() {
        let message = format!("ConfigMaps that were read: {}", lists.len());
        (ConditionStatus::True, reason::LISTS_READ, message)
    } else {
        let message = format!("{}; {WELL_FORMED}", malformed.join("; "));
        (ConditionStatus::False, reason::ENTRIES_MALFORMED, message)
    }
}

const WELL_FORMED: &str = "an entry's key must have 64 lower-case hexadecimal digits, and its value must be a \
    provider ID, or a provider ID prefix that ends with '/'";

/// Returns the condition without lists. The condition is true if the settings do not list a `ConfigMap`.
pub(crate) fn report_without_lists(are_named: bool) -> ConditionReport {
    report(if are_named {
        (
            ConditionStatus::False,
            reason::CONFIG_MAP_UNREADABLE,
            NOT_READ_HERE.to_owned(),
        )
    } else {
        let message = "configMaps is empty".to_owned();
        (ConditionStatus::True, reason::NOT_APPLICABLE, message)
    })
}

fn report((holds, reason, message): (ConditionStatus, &'static str, String)) -> ConditionReport {
    ConditionReport {
        of: conditions::ENDORSEMENT_KEY_LISTS_READ,
        holds,
        reason,
        message,
    }
}

/// The reason why requests wait if the settings list `ConfigMaps` but the verifier has no reader for them.
pub(crate) const NOT_READ_HERE: &str =
    "this controller does not read the ConfigMaps of endorsementKeys";

#[cfg(test)]
mod tests;
