//! The records of one cluster, from a watch.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::Resource as _;
use kubelet_attestation::ensure;
use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::NodeIdentity;
use node_attestation_core::identifiers::{KeyDigest, RecordUid};
use node_attestation_core::ledger::{AllRecords, Stored, Version};
use node_attestation_core::pace::Pace;
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::unshared::Unshared;
use node_attestation_core::verifier::Identity;
use tokio::sync::watch;
use tokio::time::timeout;

use super::index::{CLUSTERS, RECORDS};
use super::object::{self, BrokenRecord};
use crate::shared::{Lock, PAGE, Shared};
use crate::table::{Indexed, Table};
use crate::watch::{Heard, Lenient, Skipped};

/// The maximum time until the watch shows a write. If the watch works, this takes milliseconds. After this time, the
/// claim waits for its next turn, as in any other outage.
const ECHO_DEADLINE: Duration = Duration::from_secs(5);

/// The maximum number of records for one machine, TPM, key or UID. A host whose name changes every hour has a few
/// hundred records with valid certificates.
const MAX_OF_MACHINE: usize = 1024;

/// The maximum number of further invalid records that a condition counts.
const MAX_NAMED: usize = 100;

/// The record in an object. `Err` if the object is invalid.
pub(super) type Entry = Result<Arc<Stored>, BrokenRecord>;

/// The cached records of one cluster.
///
/// The watch of all clusters waits for this lock. Therefore records are copied in pages, and only after a change.
pub(super) struct Cache {
    namespace: String,
    state: Shared<RecordTable>,
    /// The number of changes so far.
    changes: AtomicU64,
    watched: Arc<RecordWatch>,
    /// Notifies the claims that wait for a record, by object name. A change of one record does not wake the claims that
    /// wait for other records. Not shared: only this cluster uses this lock, and few claims are in progress.
    awaited: Unshared<BTreeMap<String, watch::Sender<()>>>,
    /// The last copy, until the next change. Not shared: only this cluster uses this lock.
    copy: Unshared<Option<Snapshot>>,
}

/// The state of the watch, which all caches share.
#[derive(Debug)]
pub(super) struct RecordWatch {
    pub(super) heard: Heard,
    /// The namespaces that have more records than the limit.
    over_the_limit: Shared<BTreeSet<String>>,
}

/// A claim that waits for a record. When this value is dropped, the sender is removed, unless other claims wait for the
/// same record.
struct Awaited<'a> {
    cache: &'a Cache,
    object: &'a str,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let mut awaited = self.cache.awaited.lock();
        if awaited
            .get(self.object)
            .is_some_and(watch::Sender::is_closed)
        {
            awaited.remove(self.object);
        }
    }
}

/// A copy of all records.
struct Snapshot {
    /// The number of changes when the copy was made.
    changes: u64,
    records: AllRecords,
}

/// The namespace has too many records. Decisions without all of them could be wrong, so the requests in the namespace
/// wait.
#[derive(Debug, thiserror::Error)]
#[error(
    "namespace {namespace} has more than {RECORDS} node identities, or node identities of more than {CLUSTERS} \
     clusters, or the node identities of all namespaces use all memory that is reserved for them. Delete the node \
     identities that do not belong to a node"
)]
struct TooManyRecords {
    namespace: String,
}

/// The records, keyed by object name.
pub(super) type RecordTable = Table<Entry>;

/// A value by which a record is indexed.
#[derive(Hash)]
enum Value<'a> {
    ProviderId(&'a ProviderId),
    /// The endorsement key of a TPM, or the key with which the record was opened.
    Key(KeyDigest),
    Uid(RecordUid),
    /// The value of each invalid record, whose other values are unknown.
    Invalid,
}

/// An invalid record can have any UID.
#[derive(Debug, thiserror::Error)]
#[error("the UID of a node identity is unknown")]
struct UnknownUid(#[source] BrokenRecord);

fn values(
    provider_id: &ProviderId,
    endorsement_key: Option<KeyDigest>,
    key: KeyDigest,
) -> impl Iterator<Item = Value<'_>> {
    let keys = [Some(key), endorsement_key].into_iter().flatten();
    [Value::ProviderId(provider_id)]
        .into_iter()
        .chain(keys.map(Value::Key))
}

impl Indexed for Entry {
    fn values<'a>(&'a self, _name: &'a str) -> impl Iterator<Item = impl Hash> {
        let valid = self.iter().flat_map(|stored| {
            let record = &stored.record;
            let holder = &record.holder;
            let of_machine = values(
                &holder.provider_id,
                holder.endorsement_key,
                record.opened.key,
            );
            of_machine.chain([Value::Uid(record.uid)])
        });
        valid.chain(self.is_err().then_some(Value::Invalid))
    }
}

impl Default for RecordWatch {
    fn default() -> Self {
        Self {
            heard: Heard::default(),
            over_the_limit: Shared::new(Lock::RecordLimits, BTreeSet::new()),
        }
    }
}

impl RecordWatch {
    /// Records whether a namespace has more records than the limit. Returns whether this has changed.
    pub(super) fn set_over_the_limit(&self, namespace: &str, is_over: bool) -> bool {
        let is_same = |known: &BTreeSet<String>| known.contains(namespace) == is_over;
        if self.over_the_limit.read(is_same) {
            return false;
        }
        self.over_the_limit.write(|known| {
            if is_over {
                known.insert(namespace.to_owned())
            } else {
                known.remove(namespace)
            }
        })
    }

    fn is_over_the_limit(&self, namespace: &str) -> bool {
        self.over_the_limit.read(|known| known.contains(namespace))
    }
}

impl Cache {
    pub(super) fn new(namespace: &str, watched: Arc<RecordWatch>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            state: Shared::new(Lock::ClusterRecords, RecordTable::default()),
            changes: AtomicU64::default(),
            watched,
            awaited: Unshared::default(),
            copy: Unshared::default(),
        }
    }

    /// Returns the result of `look` for the cached records.
    pub(super) fn look<T>(&self, look: impl FnOnce(&RecordTable) -> T) -> T {
        self.state.read(look)
    }

    /// Waits until the records are listed, and the API server has responded recently.
    pub(super) async fn synced(&self) -> Result<(), Unavailable> {
        let heard = &self.watched.heard;
        if !heard.is_recent() {
            let mut changes = heard.changes();
            let waiting = async {
                while !heard.is_recent() {
                    changes.changed().await.map_err(Unavailable::new)?;
                }
                Ok(())
            };
            let waited = timeout(ECHO_DEADLINE, waiting).await;
            waited.unwrap_or_else(|_| Err(delayed()))?;
        }
        self.complete()
    }

    /// Waits until the watch shows this version of the object, or a later version.
    pub(super) async fn caught_up(
        &self,
        object: &str,
        version: &Version,
    ) -> Result<(), Unavailable> {
        let has = || self.look(|state| state.has(object, version));
        if has() {
            return Ok(());
        }
        let waiting = async {
            // The receiver is dropped first.
            let _awaited = Awaited {
                cache: self,
                object,
            };
            let mut changes = self.changes_of(object);
            while !has() {
                changes.changed().await.map_err(Unavailable::new)?;
            }
            Ok(())
        };
        let waited = timeout(ECHO_DEADLINE, waiting).await;
        waited.unwrap_or_else(|_| Err(delayed()))
    }

    fn changes_of(&self, object: &str) -> watch::Receiver<()> {
        let mut awaited = self.awaited.lock();
        awaited.entry(object.to_owned()).or_default().subscribe()
    }

    /// Checks that all records are in the cache. A list that completes between [`synced`](Self::synced) and a lookup
    /// might not contain all records.
    pub(super) fn complete(&self) -> Result<(), Unavailable> {
        ensure!(
            !self.watched.is_over_the_limit(&self.namespace),
            Unavailable::new(TooManyRecords {
                namespace: self.namespace.clone(),
            })
        );
        Ok(())
    }

    /// Returns all valid records. They are copied only after a change. Other tasks run between pages.
    pub(super) async fn all(&self) -> AllRecords {
        let changes = self.changes.load(Ordering::Acquire);
        let is_current = |copy: &&Snapshot| copy.changes == changes;
        if let Some(current) = self.copy.lock().as_ref().filter(is_current) {
            return current.records.clone();
        }
        let (mut records, mut last) = (Vec::new(), None::<String>);
        let mut pace = Pace::default();
        loop {
            let next = self.look(|state| {
                let (mut next, mut last_of_page) = (Vec::new(), None);
                for (name, entry) in state.after(last.as_deref()).take(PAGE) {
                    next.extend(entry.as_ref().ok().cloned());
                    last_of_page = Some(name);
                }
                (next, last_of_page.map(str::to_owned))
            });
            records.extend(next.0);
            last = next.1;
            if last.is_none() {
                break;
            }
            pace.steps(PAGE).await;
        }
        let records: AllRecords = records.into();
        let mut copy = self.copy.lock();
        // If a record changed during the copy, the next call copies the records again. Then nothing would drop this copy.
        if self.changes.load(Ordering::Acquire) == changes {
            *copy = Some(Snapshot {
                changes,
                records: records.clone(),
            });
        }
        records
    }

    /// Replaces all records.
    pub(super) fn replace(&self, objects: RecordTable) {
        let former = self.state.write(|state| std::mem::replace(state, objects));
        self.changed();
        for claims in self.awaited.lock().values() {
            claims.send_replace(());
        }
        // The previous objects are dropped after the lock is released.
        drop(former);
    }

    pub(super) fn put(&self, name: &str, entry: Entry) {
        drop(self.state.write(|state| state.put(name, entry)));
        self.changed();
        if let Some(claims) = self.awaited.lock().get(name) {
            claims.send_replace(());
        }
    }

    pub(super) fn remove(&self, name: &str) {
        drop(self.state.write(|state| state.remove(name)));
        self.changed();
    }

    /// The records for this machine, its TPM or this key.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many records.
    pub(super) fn of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        let found = self.look(|state| state.with_values(identity, key))?;
        let concerned = |stored: &&Arc<Stored>| stored.record.concerns(identity, key);
        let concerned = found.iter().filter(concerned);
        Ok(concerned.map(|stored| Stored::clone(stored)).collect())
    }

    /// The records with this UID.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many records, or if a record of the cluster is invalid.
    pub(super) fn of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        let found = self.look(|state| state.with_uid(uid))?;
        let found = found.iter().filter(|stored| stored.record.uid == uid);
        Ok(found.map(|stored| Stored::clone(stored)).collect())
    }

    /// The first invalid record, and the number of other invalid records, up to [`MAX_NAMED`].
    pub(super) fn invalid(&self) -> Option<String> {
        let (first, others) = self.look(|state| {
            let entries = state.with(Value::Invalid).take(MAX_NAMED + 1);
            let mut invalid = entries.filter_map(|(_, entry)| entry.as_ref().err());
            Some((invalid.next()?.clone(), invalid.count()))
        })?;
        Some(match others {
            0 => first.to_string(),
            MAX_NAMED => format!("{first}, and at least {others} more are invalid"),
            _ => format!("{first}, and {others} more are invalid"),
        })
    }

    /// Notes a change. Drops the copy, which is outdated, because it would keep removed records in memory that no limit
    /// counts. The next copy might never be made.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let outdated = self.copy.lock().take();
        drop(outdated);
    }
}

/// The error if the watch does not show a write in time.
fn delayed() -> Unavailable {
    Unavailable::new("the watch of node identities is delayed")
}

/// The name of an object of `cluster`, and its record.
pub(super) fn entry(
    seen: &Lenient<NodeIdentity>,
    cluster: &str,
    skipped: &mut Skipped,
) -> (String, Entry) {
    let name = seen.meta().name.clone().unwrap_or_default();
    let stored = match &seen.object {
        Ok(object) => {
            let stored = object::stored(object, cluster);
            if let Err(broken) = &stored {
                skipped.note(seen.meta(), broken);
            }
            stored.map(Arc::new)
        }
        Err(error) => {
            skipped.note(seen.meta(), error);
            Err(BrokenRecord {
                object: name.clone(),
                field: "spec or status",
            })
        }
    };
    (name, stored)
}

impl RecordTable {
    /// The records for this machine, its TPM or this key. The result can contain other records. The cost does not grow
    /// with the number of records.
    ///
    /// # Errors
    ///
    /// Returns an error if there are more than [`MAX_OF_MACHINE`] such records.
    fn with_values(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Arc<Stored>>, Unavailable> {
        let values = values(&identity.provider_id, identity.endorsement_key, key);
        let found = values.flat_map(|value| self.with(value).take(MAX_OF_MACHINE + 1));
        let found: BTreeMap<_, _> = found.collect();
        ensure!(
            found.len() <= MAX_OF_MACHINE,
            Unavailable::new(format!(
                "more than {MAX_OF_MACHINE} node identities contain the machine, TPM or key of this request"
            ))
        );
        Ok(found.into_values().flatten().cloned().collect())
    }

    /// The records with this UID. The result can contain other records. The cost does not grow with the number of
    /// records.
    ///
    /// # Errors
    ///
    /// Returns an error if there are more than [`MAX_OF_MACHINE`] such records, or if a record is invalid.
    fn with_uid(&self, uid: RecordUid) -> Result<Vec<Arc<Stored>>, Unavailable> {
        let mut invalid = self.with(Value::Invalid);
        let invalid = invalid.find_map(|(_, entry)| entry.as_ref().err());
        if let Some(invalid) = invalid {
            return Err(Unavailable::new(UnknownUid(invalid.clone())));
        }
        let found = self.with(Value::Uid(uid)).take(MAX_OF_MACHINE + 1);
        let found: Vec<_> = found.collect();
        ensure!(
            found.len() <= MAX_OF_MACHINE,
            Unavailable::new(format!(
                "more than {MAX_OF_MACHINE} node identities contain the UID of this certificate"
            ))
        );
        let found = found.into_iter().flat_map(|(_, entry)| entry);
        Ok(found.cloned().collect())
    }

    /// Whether the cache contains the object in this version or a later version.
    pub(super) fn has(&self, object: &str, version: &Version) -> bool {
        let Some(Ok(known)) = self.get(object) else {
            return false;
        };
        // Resource versions are increasing write counters (KEP-5504).
        let number = |version: &Version| version.as_str().parse::<u128>().ok();
        let numbers = number(&known.version).zip(number(version));
        known.version == *version || numbers.is_some_and(|(known, wanted)| known >= wanted)
    }
}

#[cfg(test)]
mod tests;
