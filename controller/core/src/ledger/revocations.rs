//! The revoked certificates and machines, which are rejected regardless of the records.
//!
//! After a backup is restored, records can be older than a revocation. Therefore the list in the workload cluster takes
//! precedence, and each entry is kept until it expires.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kubelet_attestation::names::ProviderId;

use super::record::{MAX_CLOCK_DIFFERENCE, PresentTime, Record};
use super::records::Stored;
use crate::crd::{
    LOWEST_VALID_GENERATION_ANNOTATION, RELEASED_MACHINES_ANNOTATION, RevokedKey,
    RevokedNodeCredentialsSpec, WORKLOAD_UID_ANNOTATION,
};
use crate::identifiers::{CertificateUid, KeyDigest, RecordUid};
use crate::pace::Pace;
use crate::refusal::Unavailable;
use crate::time::unix_seconds;
use crate::unshared::Unshared;

/// The maximum number of released machines. Entries in the revocation list expire, and a machine is released at most
/// once for each entry.
pub const MAX_RELEASED: usize = 300;

/// The maximum length of the list of released machines that a command writes. Each entry contains a provider ID of up
/// to 512 bytes, an `@` and a time of up to 20 digits, and a space follows.
pub const MAX_RELEASED_LEN: usize = MAX_RELEASED * (512 + 1 + 20 + 1);

/// Decisions that apply to all records of one cluster. Operators make these decisions, or the controller makes them
/// after the cluster was created again. The decisions are stored in annotations on the `KubeletAuthentication`, which
/// `clusterctl move` keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RevocationDecisions {
    /// The lowest valid generation for all records. 0 if no lowest valid generation is set.
    pub floor: u64,
    /// The released machines, with the time of release. Earlier revocations do not affect these machines.
    pub released: BTreeMap<ProviderId, SystemTime>,
    /// The UID of the namespace `kube-system` in the first workload cluster that was served.
    pub workload_uid: Option<String>,
}

impl RevocationDecisions {
    /// Reads the decisions from the annotations on a `KubeletAuthentication`. An invalid value has no effect: the
    /// lowest valid generation in the workload cluster is kept, and no machine is released. Only the latest
    /// [`MAX_RELEASED`] releases are read, and a list of more than [`MAX_RELEASED_LEN`] bytes is invalid. Revocations
    /// of the other machines remain.
    pub fn of_annotations(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let text = |name| {
            let text = annotations.and_then(|all| all.get(name));
            text.map(String::as_str).unwrap_or_default()
        };
        let floor = text(LOWEST_VALID_GENERATION_ANNOTATION).parse().ok();
        // With a larger number, the revocation list or the next record could not be written.
        let floor = floor.filter(|floor: &u64| *floor < i64::MAX.unsigned_abs());
        let mut latest = BTreeSet::new();
        for release in releases(text(RELEASED_MACHINES_ANNOTATION)) {
            latest.insert(release);
            if latest.len() > MAX_RELEASED {
                latest.pop_first();
            }
        }
        Self {
            floor: floor.unwrap_or_default(),
            released: latest.into_iter().map(|(at, id)| (id, at)).collect(),
            workload_uid: annotations.and_then(|all| all.get(WORKLOAD_UID_ANNOTATION).cloned()),
        }
    }

    /// Returns the reason why some of the releases in these annotations are not read.
    pub fn unread(annotations: Option<&BTreeMap<String, String>>) -> Option<String> {
        let name = RELEASED_MACHINES_ANNOTATION;
        let text = annotations.and_then(|all| all.get(name))?;
        if text.len() > MAX_RELEASED_LEN {
            return Some(format!(
                "the annotation {name} has more than {MAX_RELEASED_LEN} bytes, so no release has an effect"
            ));
        }
        releases(text).nth(MAX_RELEASED).map(|_| {
            format!(
                "the annotation {name} has more than {MAX_RELEASED} releases, so only the latest {MAX_RELEASED} have \
                 an effect"
            )
        })
    }

    /// Removes the decisions that are later than `now`, because no command writes such decisions. A floor in the future
    /// would revoke each new certificate of a node, and an operator could not raise the floor to the present time. A
    /// release in the future would end revocations that an operator has not made yet.
    #[must_use]
    pub fn until(mut self, now: SystemTime) -> Self {
        let latest = now + MAX_CLOCK_DIFFERENCE;
        if self.floor > unix_seconds(latest) {
            self.floor = 0;
        }
        self.released.retain(|_, at| *at <= latest);
        self
    }

    /// Does the same as [`until`](Self::until), but a lowest valid generation that is later than `now` does not replace
    /// `known`, the previous lowest valid generation.
    #[must_use]
    pub fn until_or(self, now: SystemTime, known: u64) -> Self {
        let is_set = self.floor > 0;
        let mut decisions = self.until(now);
        if is_set && decisions.floor == 0 {
            decisions.floor = known;
        }
        decisions
    }

    /// Does the same as [`until_or`](Self::until_or), for shared decisions. The decisions are copied only if one of
    /// them is later than `now`.
    #[must_use]
    pub fn shared_until_or(self: Arc<Self>, now: SystemTime, known: u64) -> Arc<Self> {
        let latest = now + MAX_CLOCK_DIFFERENCE;
        let is_late = |at: &SystemTime| *at > latest;
        if self.floor > unix_seconds(latest) || self.released.values().any(is_late) {
            return Arc::new(Self::clone(&self).until_or(now, known));
        }
        self
    }

    /// Releases the machine from revocations up to `at`. If there are too many releases, the oldest releases are
    /// removed.
    pub fn release(&mut self, machine: ProviderId, at: SystemTime) {
        let released = self.released.entry(machine).or_insert(at);
        *released = at.max(*released);
        while self.released.len() > MAX_RELEASED {
            let first = self.released.iter().min_by_key(|(_, at)| **at);
            let Some(first) = first.map(|(machine, _)| machine.clone()) else {
                break;
            };
            self.released.remove(&first);
        }
    }

    /// Withdraws the release of the machine. Otherwise, a later revocation whose time comes from a slow clock would
    /// have no effect. Returns whether the machine was released.
    pub fn take_back(&mut self, machine: &ProviderId) -> bool {
        self.released.remove(machine).is_some()
    }

    /// The value of [`RELEASED_MACHINES_ANNOTATION`].
    pub fn released_text(&self) -> String {
        let released = self.released.iter();
        let released = released.map(|(machine, at)| format!("{machine}@{}", unix_seconds(*at)));
        released.collect::<Vec<_>>().join(" ")
    }

    /// Applies these decisions to the list.
    fn apply(&self, list: &mut RevokedNodeCredentialsSpec) {
        list.lowest_valid_generation = list.lowest_valid_generation.max(self.floor);
        for key in list.revoked_keys.values_mut() {
            let machine = key.provider_id.as_deref().map(ProviderId::parse);
            let released = machine.and_then(|machine| self.released.get(&machine.ok()?));
            if released.is_some_and(|at| key.revoked_at <= *at) {
                key.provider_id = None;
            }
        }
    }
}

/// The valid entries in this list of released machines. A list that no command writes has no entries.
fn releases(text: &str) -> impl Iterator<Item = (SystemTime, ProviderId)> {
    let text = if text.len() > MAX_RELEASED_LEN {
        ""
    } else {
        text
    };
    text.split_whitespace().filter_map(|one| {
        let (machine, at) = one.rsplit_once('@')?;
        let at = Duration::from_secs(at.parse().ok()?);
        let at = UNIX_EPOCH.checked_add(at)?;
        Some((at, ProviderId::parse(machine).ok()?))
    })
}

/// The known revocation list of one workload cluster.
///
/// Clones share their state. Only one cluster uses this state. By default, the list is empty, for a cluster without a
/// revocation list.
#[derive(Debug, Clone, Default)]
pub struct Revocations(Arc<Unshared<State>>);

#[derive(Debug)]
struct State {
    decisions: Arc<RevocationDecisions>,
    /// `None` until the list is read.
    list: Option<Arc<KnownRevocations>>,
}

/// A revocation list, with an index by machine.
#[derive(Debug, Default, derive_more::Deref)]
pub(super) struct KnownRevocations {
    #[deref]
    list: RevokedNodeCredentialsSpec,
    /// The first key of each machine, by its provider ID.
    machines: BTreeMap<String, String>,
}

impl KnownRevocations {
    fn new(list: RevokedNodeCredentialsSpec) -> Self {
        let mut machines = BTreeMap::new();
        for (key, entry) in &list.revoked_keys {
            if let Some(machine) = &entry.provider_id {
                machines.entry(machine.clone()).or_insert(key.clone());
            }
        }
        Self { list, machines }
    }

    /// Returns the entry for this key, or else an entry for this machine.
    pub(super) fn stops(&self, key: KeyDigest, machine: &ProviderId) -> Option<&RevokedKey> {
        let by_key = self.list.revoked_keys.get(&key.to_string());
        by_key.or_else(|| self.stops_machine(machine))
    }

    /// Returns an entry for this machine.
    pub(super) fn stops_machine(&self, machine: &ProviderId) -> Option<&RevokedKey> {
        let key = self.machines.get(machine.as_str())?;
        self.list.revoked_keys.get(key)
    }
}

/// The revocations in all records of a cluster.
#[derive(Debug, Clone, Default)]
pub struct RecordRevocations {
    /// The list.
    pub list: RevokedNodeCredentialsSpec,
    /// The earliest expiry time of an entry. `None` if the list is empty.
    pub first_end: Option<SystemTime>,
}

impl RecordRevocations {
    /// Returns the revoked certificates and keys from these records, as [`RevokedNodeCredentialsSpec::of_records`]
    /// does. Other tasks run between pages of records.
    pub async fn read(
        records: &[Arc<Stored>],
        longest: Duration,
        now: impl Into<PresentTime>,
    ) -> Self {
        let (mut read, now) = (Self::default(), now.into());
        let mut pace = Pace::default();
        for stored in records {
            if let Some(end) = read.list.add(&stored.record, longest, now) {
                read.first_end = Some(read.first_end.map_or(end, |first| first.min(end)));
            }
            pace.step().await;
        }
        read
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            decisions: Arc::default(),
            list: Some(Arc::default()),
        }
    }
}

impl Revocations {
    /// Creates a list that has not been read yet. Until the list has been read, no certificate is granted.
    pub fn unread() -> Self {
        let revocations = Self::default();
        revocations.forget();
        revocations
    }

    /// Discards the list, because a different cluster might have a different list.
    pub fn forget(&self) {
        self.0.lock().list = None;
    }

    /// Replaces the operators' decisions. The change takes effect immediately.
    pub fn decide(&self, decisions: impl Into<Arc<RevocationDecisions>>) {
        let decisions = decisions.into();
        let mut state = self.0.lock();
        if state.decisions == decisions {
            return;
        }
        state.decisions = decisions;
        let list = state.list.as_deref().map(|known| known.list.clone());
        state.list = list.map(|list| Arc::new(state.decided(list)));
    }

    /// Merges the list from the workload cluster with the previously known list and with the list from the records. An
    /// entry is removed only when it expires. `bounded` limits the size of the first two lists after they are merged,
    /// because a workload cluster's API server can return different entries in each response.
    pub fn merged(
        &self,
        listed: RevokedNodeCredentialsSpec,
        records: RevokedNodeCredentialsSpec,
        bounded: impl FnOnce(RevokedNodeCredentialsSpec) -> RevokedNodeCredentialsSpec,
        now: SystemTime,
    ) -> RevokedNodeCredentialsSpec {
        let state = self.0.lock();
        let mut list = listed;
        if let Some(known) = &state.list {
            list.merge(known.list.clone());
        }
        list.prune(now);
        let mut list = bounded(list);
        list.merge(records);
        list.prune(now);
        state.decisions.apply(&mut list);
        list
    }

    /// The number of entries for records, and the number of entries for keys.
    pub fn len(&self) -> (usize, usize) {
        let state = self.0.lock();
        let list = state.list.as_deref();
        list.map(|list| (list.revoked.len(), list.revoked_keys.len()))
            .unwrap_or_default()
    }

    /// Stores the list from the workload cluster.
    pub fn read(&self, list: RevokedNodeCredentialsSpec) {
        let mut state = self.0.lock();
        state.list = Some(Arc::new(state.decided(list)));
    }

    /// Whether the list has been read.
    pub fn is_read(&self) -> bool {
        self.0.lock().list.is_some()
    }

    /// Returns the list, or an error until the list has been read.
    pub(super) fn known(&self) -> Result<Arc<KnownRevocations>, Unavailable> {
        let list = self.0.lock().list.clone();
        let unread = "the list of revoked certificates has not been read yet";
        list.ok_or_else(|| Unavailable::new(unread))
    }

    /// Whether the known list is empty.
    pub fn is_empty(&self) -> bool {
        let state = self.0.lock();
        let list = state.list.as_deref();
        list.is_none_or(|known| known.list == RevokedNodeCredentialsSpec::default())
    }

    /// The decisions.
    pub fn decisions(&self) -> Arc<RevocationDecisions> {
        self.0.lock().decisions.clone()
    }

    /// The lowest valid generation in the decisions or, if it is greater, in the list. A value in the list that is later
    /// than `now` does not count. `None` if the value is unknown: after a restart, the decisions can lack a value that
    /// the list contains, and the list has not been read yet.
    pub fn known_floor(&self, now: SystemTime) -> Option<u64> {
        let latest = unix_seconds(now + MAX_CLOCK_DIFFERENCE);
        let state = self.0.lock();
        let decided = state.decisions.floor;
        let Some(known) = &state.list else {
            return (decided > 0).then_some(decided);
        };
        let listed = known.lowest_valid_generation;
        Some(if listed > latest {
            decided
        } else {
            listed.max(decided)
        })
    }
}

impl State {
    fn decided(&self, mut list: RevokedNodeCredentialsSpec) -> KnownRevocations {
        self.decisions.apply(&mut list);
        KnownRevocations::new(list)
    }
}

impl RevokedNodeCredentialsSpec {
    /// Returns the revoked certificates and keys from these records. `longest` is the maximum validity of a
    /// certificate. The writer of a record chooses its UID and key, so several records can have the same UID or key. In
    /// this case, the stricter revocation applies.
    pub fn of_records<'a>(
        records: impl IntoIterator<Item = &'a Record>,
        longest: Duration,
        now: SystemTime,
    ) -> Self {
        let mut list = Self::default();
        for record in records {
            list.add(record, longest, now.into());
        }
        list
    }

    /// Adds the revoked certificates and the key of this record. Returns the time at which these entries expire.
    fn add(&mut self, record: &Record, longest: Duration, now: PresentTime) -> Option<SystemTime> {
        let revoked = record.revoked_generations(longest, now)?;
        let mut own = Self::default();
        own.revoked.insert(record.uid.to_string(), revoked);
        if let Some(by_operator) = record.revoked.filter(|_| record.is_revoked()) {
            let key = RevokedKey {
                node_name: record.node_name.to_string(),
                generation: record.generation,
                provider_id: Some(record.holder.provider_id.to_string()),
                revoked_at: record.revocation_time(by_operator, now),
                until: revoked.until,
            };
            own.revoked_keys.insert(record.opened.key.to_string(), key);
        }
        self.merge(own);
        Some(revoked.until)
    }

    /// Merges the entries of the other list into this list. A merged entry has the higher generation, the later expiry
    /// time, and the later revocation of a key.
    pub fn merge(&mut self, other: Self) {
        let floor = &mut self.lowest_valid_generation;
        *floor = other.lowest_valid_generation.max(*floor);
        for (uid, revoked) in other.revoked {
            let entry = self.revoked.entry(uid).or_insert(revoked);
            entry.lowest_valid = entry.lowest_valid.max(revoked.lowest_valid);
            entry.until = entry.until.max(revoked.until);
        }
        for (key, revoked) in other.revoked_keys {
            let entry = self.revoked_keys.entry(key).or_insert(revoked.clone());
            let until = entry.until.max(revoked.until);
            // If a machine was released, its entry has no provider ID.
            let order = |one: &RevokedKey| (one.revoked_at, one.provider_id.is_some());
            if order(entry) < order(&revoked) {
                *entry = revoked;
            }
            entry.until = until;
        }
    }

    /// Removes the entries whose certificates have expired.
    pub fn prune(&mut self, now: SystemTime) {
        self.revoked.retain(|_, revoked| revoked.until > now);
        self.revoked_keys.retain(|_, revoked| revoked.until > now);
    }

    /// The lowest valid generation of this record.
    pub(super) fn lowest_valid(&self, record: RecordUid) -> u64 {
        let listed = self.revoked.get(&record.to_string());
        let lowest = listed.map(|listed| listed.lowest_valid).unwrap_or_default();
        lowest.max(self.lowest_valid_generation)
    }

    /// Whether the list revokes certificates with this UID.
    pub(super) fn refuses(&self, uid: CertificateUid) -> bool {
        uid.generation < self.lowest_valid(uid.record)
    }
}

#[cfg(test)]
mod tests;
