//! The `KubeletAuthentication`s in memory, reduced to the required fields, and the limit on their memory.
//!
//! Each object remains in memory as long as it exists, and has a task. A tenant can create any number of objects of up
//! to 1.5 MB, even without a Cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kubelet_attestation::errors::shortened;
use node_attestation_core::crd::{KubeletAuthentication, RELEASED_MACHINES_ANNOTATION, conditions};
use node_attestation_core::ledger::{MAX_RELEASED, MAX_RELEASED_LEN};
use serde::Serialize;

use super::places::created;
use crate::capi::{ObjectKey, PAUSED_ANNOTATION, WATCH_FILTER_LABEL};
use crate::memory::KeptLimit;

/// The prefix of the annotations that are kept.
const OWN_ANNOTATIONS: &str = "attestation.cluster.x-k8s.io/";

/// The maximum number of these annotations, and of owners, that are kept for an object. Normal objects have only a few
/// annotations and owners.
const MAX_METADATA: usize = 64;

/// The maximum length of each text in an owner reference: the maximum length of an object name.
const MAX_OWNER_TEXT: usize = 253;

/// The maximum length of an annotation's value. A longer value is truncated, which has no effect because it is invalid
/// anyway.
const MAX_ANNOTATION: usize = 512;

/// The maximum length of the list of released machines. It exceeds the maximum length of a valid list by 4 bytes, the
/// length of the longest character, so a truncated list remains invalid.
const MAX_LIST: usize = MAX_RELEASED_LEN + 4;

/// The memory for a released machine in addition to its text, in the decisions that are read from the list.
const RELEASED_LEN: usize = 128;

/// The container's memory divided by this number is the limit for all `KubeletAuthentication`s: 128 MiB of 1 GiB. One
/// namespace uses at most half of this memory, which is enough for 4,096 objects without lists of authorities or keys.
const PART: usize = 8;

/// The memory for an object and its task, in addition to the object's values.
const OBJECT_LEN: usize = 6 * 1024;

/// The unit in which memory is counted. It is so large that an object's conditions do not change its count.
const STEP: usize = 16 * 1024;

/// The memory for a value in addition to its text.
const VALUE_LEN: usize = 32;

/// The number of copies of the spec in the tasks and the verifiers of a served cluster.
const SPEC_COPIES: usize = 2;

/// The reason why an object is not kept.
pub(super) const TOO_MUCH_MEMORY: &str = "the controller does not serve this KubeletAuthentication: the \
     KubeletAuthentications of its namespace use 1/16 of the controller's memory limit, or the KubeletAuthentications of \
     all namespaces use 1/8. Delete the KubeletAuthentications of Clusters that no \
     longer exist";

/// A `KubeletAuthentication`, reduced to the required fields.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KeptAuthentication {
    object: KubeletAuthentication,
    /// Whether the object has conditions from other controllers. These conditions are not kept in memory, and must not
    /// be removed from the object.
    pub(super) has_other_conditions: bool,
}

/// A cluster's `KubeletAuthentication`, or `None` after it is deleted. The channel is closed when this replica is no
/// longer the leader.
pub(super) type Authentication = Option<Arc<KeptAuthentication>>;

impl Deref for KeptAuthentication {
    type Target = KubeletAuthentication;

    fn deref(&self) -> &KubeletAuthentication {
        &self.object
    }
}

impl KeptAuthentication {
    /// Removes the fields that are not used, and truncates the messages of the controller's own conditions to the
    /// length that the controller writes.
    pub(super) fn new(mut object: KubeletAuthentication) -> Self {
        object.metadata = lean(object.metadata);
        let mut has_other_conditions = false;
        if let Some(status) = &mut object.status {
            let all = status.conditions.len();
            status
                .conditions
                .retain(|one| conditions::is_own(&one.type_));
            has_other_conditions = status.conditions.len() < all;
            status.conditions.iter_mut().for_each(conditions::shorten);
            status.conditions.shrink_to_fit();
        }
        Self {
            object,
            has_other_conditions,
        }
    }

    /// The approximate memory for the object, including the copies of its spec.
    fn memory(&self) -> usize {
        let copies = weight(&self.object.spec).saturating_mul(SPEC_COPIES);
        let memory = weight(&self.object).saturating_add(copies);
        let memory = memory.saturating_add(OBJECT_LEN + self.decisions_memory());
        memory.checked_next_multiple_of(STEP).unwrap_or(usize::MAX)
    }

    /// The approximate memory for the decisions that are read from the list of released machines.
    fn decisions_memory(&self) -> usize {
        let annotations = self.object.metadata.annotations.as_ref();
        let list = annotations.and_then(|all| all.get(RELEASED_MACHINES_ANNOTATION));
        list.map_or(0, |list| {
            let released = list.split_whitespace().take(MAX_RELEASED).count();
            list.len() + released * RELEASED_LEN
        })
    }
}

fn lean(metadata: ObjectMeta) -> ObjectMeta {
    let is_filter = |(key, _): &(String, String)| key == WATCH_FILTER_LABEL;
    let labels = metadata.labels.map(|labels| {
        let kept = labels.into_iter().filter(is_filter);
        kept.collect()
    });
    let is_used = |key: &str| key == PAUSED_ANNOTATION || key.starts_with(OWN_ANNOTATIONS);
    let annotations = metadata.annotations.map(|annotations| {
        let used = annotations.into_iter().filter(|(key, _)| is_used(key));
        let used = used.take(MAX_METADATA).map(|(key, value)| {
            let longest = if key == RELEASED_MACHINES_ANNOTATION {
                MAX_LIST
            } else {
                MAX_ANNOTATION
            };
            let value = if value.len() <= longest {
                value
            } else {
                shortened(&value, longest).to_owned()
            };
            (key, value)
        });
        used.collect()
    });
    // Either all owners are kept or none, because all of them are written again when the API version of one owner
    // changes.
    let owners = metadata.owner_references;
    let owner_references =
        owners.filter(|owners| owners.len() <= MAX_METADATA && owners.iter().all(is_short));
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        labels,
        annotations,
        owner_references,
        ..ObjectMeta::default()
    }
}

fn is_short(owner: &OwnerReference) -> bool {
    let OwnerReference {
        api_version,
        kind,
        name,
        uid,
        ..
    } = owner;
    let mut texts = [api_version, kind, name, uid].into_iter();
    texts.all(|text| text.len() <= MAX_OWNER_TEXT)
}

/// The approximate memory for a value: its length as JSON, and the memory for each nested value.
fn weight(value: &impl Serialize) -> usize {
    let mut weight = Weight(0);
    match serde_json::to_writer(&mut weight, value) {
        Ok(()) => weight.0,
        // Neither the serialization of the values nor the writer can fail.
        Err(_) => usize::MAX,
    }
}

/// A writer that counts the written bytes and values.
struct Weight(usize);

impl io::Write for Weight {
    fn write(&mut self, json: &[u8]) -> io::Result<usize> {
        // Each list element and each field begins with one of these characters.
        let is_value = |byte: &&u8| matches!(byte, b',' | b'[' | b'{');
        let values = json.iter().filter(is_value).count();
        self.0 += json.len() + values * VALUE_LEN;
        Ok(json.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The memory for the kept objects in each namespace. The oldest objects of a namespace are kept.
#[derive(Debug)]
pub(super) struct KeptMemory {
    limit: KeptLimit,
    namespaces: BTreeMap<String, OfNamespace>,
    /// The memory for all kept objects.
    all: usize,
    /// The number of objects that are not kept.
    left_out: usize,
    digest: RandomState,
}

#[derive(Debug, Default)]
struct OfNamespace {
    /// The kept objects by name, with their creation times and their memory. Also contains the tasks of deleted
    /// objects. Their creation time is the earliest possible time, so that no object displaces them.
    kept: BTreeMap<String, (i64, usize)>,
    /// The kept objects by age.
    by_age: BTreeSet<(i64, String)>,
    bytes: usize,
    left_out: LeftOut,
}

/// The objects that are not kept, as digests of their names, with the memory that they need. A tenant can create any
/// number of them.
#[derive(Debug, Default)]
struct LeftOut {
    by_digest: BTreeMap<u64, usize>,
    by_memory: BTreeSet<(usize, u64)>,
}

/// The result of [`KeptMemory::put`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AuthenticationPut {
    /// Whether the limits allow keeping the object.
    pub(super) is_kept: bool,
    /// The younger objects in the namespace that are no longer kept, because this object replaces them.
    pub(super) displaced: Vec<ObjectKey>,
}

impl Default for KeptMemory {
    fn default() -> Self {
        Self::new(KeptLimit::of_memory(PART, 1))
    }
}

impl KeptMemory {
    pub(super) fn new(limit: KeptLimit) -> Self {
        Self {
            limit,
            namespaces: BTreeMap::new(),
            all: 0,
            left_out: 0,
            digest: RandomState::new(),
        }
    }

    /// A digest of an object's key, which takes less memory than the key.
    pub(super) fn digest(&self, key: &ObjectKey) -> u64 {
        self.digest.hash_one(key)
    }

    /// Counts this object. If there is not enough memory, drops younger objects in its namespace, or the object itself.
    /// An object that does not grow is never dropped.
    pub(super) fn put(
        &mut self,
        key: &ObjectKey,
        object: &KeptAuthentication,
    ) -> AuthenticationPut {
        let (created, bytes) = (created(object), object.memory());
        let former = self.remove(key);
        let is_new = !self.namespaces.contains_key(&key.namespace);
        let namespaces = self.namespaces.len() + usize::from(is_new);
        let namespace = self.namespaces.entry(key.namespace.clone()).or_default();
        let room = |freed: usize| {
            let own = namespace.bytes.saturating_sub(freed);
            let all = self.all.saturating_sub(freed);
            self.limit.room((own, all), namespaces)
        };
        let age = (created, key.name.clone());
        let (mut freed, mut displaced) = (0, Vec::new());
        let younger = namespace.by_age.iter().rev();
        let mut younger = younger.take_while(|other| **other > age);
        let is_kept = loop {
            if bytes <= room(freed).max(former) {
                break true;
            }
            let Some((_, name)) = younger.next() else {
                break false;
            };
            freed += namespace.kept.get(name).map_or(0, |(_, bytes)| *bytes);
            displaced.push(ObjectKey::new(key.namespace.as_str(), name.as_str()));
        };
        if !is_kept {
            self.leave_out(key, bytes);
            return AuthenticationPut {
                is_kept,
                displaced: Vec::new(),
            };
        }
        for other in &displaced {
            let bytes = self.remove(other);
            self.leave_out(other, bytes);
        }
        self.count(key, created, bytes);
        AuthenticationPut { is_kept, displaced }
    }

    fn count(&mut self, key: &ObjectKey, created: i64, bytes: usize) {
        self.all += bytes;
        let namespace = self.namespaces.entry(key.namespace.clone()).or_default();
        namespace.bytes += bytes;
        namespace.kept.insert(key.name.clone(), (created, bytes));
        namespace.by_age.insert((created, key.name.clone()));
    }

    /// Counts the task of a deleted object instead of the object, until [`remove`](Self::remove). The task can last as
    /// long as the Cluster exists. No object displaces it, because it releases the Cluster.
    pub(super) fn deleted(&mut self, key: &ObjectKey) {
        if self.remove(key) > 0 {
            self.count(key, i64::MIN, STEP);
        }
    }

    /// Drops a kept object, even though there is memory for it.
    pub(super) fn postpone(&mut self, key: &ObjectKey) {
        let bytes = self.remove(key);
        self.leave_out(key, bytes);
    }

    fn leave_out(&mut self, key: &ObjectKey, bytes: usize) {
        let digest = self.digest(key);
        let namespace = self.namespaces.entry(key.namespace.clone()).or_default();
        namespace.left_out.by_digest.insert(digest, bytes);
        namespace.left_out.by_memory.insert((bytes, digest));
        self.left_out += 1;
    }

    /// Removes an object, or the task of a deleted object. Returns its memory if it was kept.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> usize {
        let digest = self.digest(key);
        let Some(namespace) = self.namespaces.get_mut(&key.namespace) else {
            return 0;
        };
        let kept = namespace.kept.remove(&key.name);
        let bytes = kept.map_or(0, |(created, bytes)| {
            namespace.by_age.remove(&(created, key.name.clone()));
            bytes
        });
        namespace.bytes = namespace.bytes.saturating_sub(bytes);
        self.all = self.all.saturating_sub(bytes);
        if namespace.left_out.remove(digest) {
            self.left_out = self.left_out.saturating_sub(1);
        }
        if namespace.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        bytes
    }

    /// Removes objects that were not kept and that no longer exist.
    pub(super) fn retain_left_out(&mut self, exists: impl Fn(u64) -> bool) {
        for namespace in self.namespaces.values_mut() {
            let digests = namespace.left_out.by_digest.keys().copied();
            let gone: Vec<u64> = digests.filter(|digest| !exists(*digest)).collect();
            for digest in gone {
                namespace.left_out.remove(digest);
                self.left_out = self.left_out.saturating_sub(1);
            }
        }
        self.namespaces.retain(|_, namespace| !namespace.is_empty());
    }

    /// Whether this object exists but is not kept.
    pub(super) fn has_left_out(&self, key: &ObjectKey) -> bool {
        let namespace = self.namespaces.get(&key.namespace);
        let digest = self.digest(key);
        namespace.is_some_and(|one| one.left_out.by_digest.contains_key(&digest))
    }

    /// The number of objects that are not kept.
    pub(super) const fn left_out(&self) -> usize {
        self.left_out
    }

    /// The namespaces with a dropped object for which there is now enough memory. This can occur after a change in a
    /// different namespace, because all namespaces share memory.
    pub(super) fn due(&self) -> impl Iterator<Item = &str> {
        let namespaces = self.namespaces.len();
        let is_due = move |namespace: &OfNamespace| {
            let room = self.limit.room((namespace.bytes, self.all), namespaces);
            let smallest = namespace.left_out.by_memory.first();
            smallest.is_some_and(|(bytes, _)| *bytes <= room)
        };
        let due = self.namespaces.iter();
        let due = due.filter(move |(_, namespace)| is_due(namespace));
        due.map(|(name, _)| name.as_str())
    }

    /// The memory that is counted.
    #[cfg(test)]
    pub(super) const fn used(&self) -> usize {
        self.all
    }

    #[cfg(test)]
    fn is_list_due(&self) -> bool {
        self.due().next().is_some()
    }
}

impl OfNamespace {
    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.left_out.by_digest.is_empty()
    }
}

impl LeftOut {
    /// Removes an object. Returns whether it was one of the objects that are not kept.
    fn remove(&mut self, digest: u64) -> bool {
        let Some(bytes) = self.by_digest.remove(&digest) else {
            return false;
        };
        self.by_memory.remove(&(bytes, digest))
    }
}

#[cfg(test)]
mod tests;
