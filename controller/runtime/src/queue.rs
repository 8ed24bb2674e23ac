//! The order of the requests of one cluster. No input or output.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

mod kept;
mod memory_budget;
mod places;
mod requesters;
mod retry;

pub(crate) use kept::{lean, memory};
pub(crate) use memory_budget::allowance;

use memory_budget::{MAX_RUNNING, Room};
use places::LeftOut;
use requesters::{Arrival, Requesters};
use retry::wait_after;

use crate::hardening::rate_limit::Budgets;
use crate::memory::{Holding, Share};
use crate::metrics::Pending;
use crate::turns::TurnLimits;

/// The limits of the requests in progress: those of all clusters together are four times those of one.
pub(crate) const TURNS: TurnLimits = TurnLimits {
    all: 4 * MAX_RUNNING,
    of_cluster: MAX_RUNNING,
};

/// A turn that is this late is charged anew: after a stall no requester has more at once than its burst.
const LATE: Duration = Duration::from_secs(10);

/// The pause before a request for which there is no memory has another turn.
const WITHOUT_MEMORY: Duration = Duration::from_secs(1);

/// The limit of the name of an object or a requester (RFC 1123).
const MAX_NAME_LEN: usize = 253;

/// The limit of a UID or a resource version. Kubernetes' own UIDs have 36 characters.
const MAX_ID_LEN: usize = 64;

/// The memory of an entry beside its texts, each of which it has up to three times.
const ENTRY_LEN: usize = 512;

/// The memory that is reserved for the requests of one cluster: those of a thousand machines.
const SHARE: usize = 4 * 1024 * 1024;

/// The known requests of one cluster, with their states.
///
/// An entry is one object, identified by its UID: another object with the same name has its own entry. No two workers
/// process one object. An answered request is not processed again: an answer is final.
///
/// # Guarantees
///
/// A flood of requests displaces no other requester's: if the queue is full, it leaves out the newest request of the
/// requester with the most.
#[derive(Debug)]
pub(crate) struct Queue {
    entries: HashMap<String, Entry>,
    /// The UIDs of those that wait, in order.
    turns: BTreeMap<Turn, String>,
    /// The turns that were charged to the budgets of their requesters, by requester.
    charged: HashMap<String, BTreeSet<Turn>>,
    budgets: Budgets,
    room: Room,
    requesters: Requesters,
    last_arrival: Arrival,
    /// The memory of the entries.
    entry_bytes: usize,
    memory: Holding,
    left_out: Option<LeftOut>,
    /// Whether the log has it that requests are left out. It ends with a list that leaves none out.
    is_told: bool,
    /// The arrival at which answered requests are forgotten next.
    purged_at: Arrival,
    /// Whether a list is in progress.
    is_listing: bool,
    pending: Pending,
}

impl Queue {
    /// An empty queue, which is held in the memory of the clusters of this namespace.
    pub(crate) fn new(namespace: &str) -> Self {
        let share = Share::new(namespace, SHARE);
        Self {
            entries: HashMap::new(),
            turns: BTreeMap::new(),
            charged: HashMap::new(),
            budgets: Budgets::default(),
            room: Room::new(&share),
            requesters: Requesters::default(),
            last_arrival: 0,
            entry_bytes: 0,
            memory: share.holding(),
            left_out: None,
            is_told: false,
            purged_at: 0,
            is_listing: false,
            pending: Pending::default(),
        }
    }
}

/// A place in the order of those that wait: not before this time, and of two at one time the first to arrive.
type Turn = (Instant, Arrival);

#[derive(Debug)]
struct Entry {
    name: String,
    requester: String,
    arrival: Arrival,
    /// The time of its creation (Unix, in seconds); where there is none, the latest.
    created: i64,
    version: Option<String>,
    /// Its size in memory.
    bytes: usize,
    /// Whether the current list has it so far.
    listed: bool,
    attempts: u32,
    state: State,
}

impl Entry {
    /// Its memory, with that of the collections that refer to it.
    fn len(&self, uid: &str) -> usize {
        let version = self.version.as_ref().map_or(0, String::len);
        ENTRY_LEN + self.name.len() + 3 * self.requester.len() + 3 * uid.len() + version
    }
}

#[derive(Debug)]
enum State {
    /// In `turns`.
    Waiting {
        due: Instant,
        /// Whether the turn is in `charged` too.
        is_charged: bool,
        /// The object, if there was room for the `bytes` of its entry.
        object: Option<Box<CertificateSigningRequest>>,
    },
    /// A worker processes it.
    Running(ChangedWhileRunning),
    /// It was answered, or is not ours.
    Settled,
    /// The API server rejects the answer to this version.
    GivenUp,
}

/// The change of an object during its processing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangedWhileRunning {
    Nothing,
    /// A new version, with its size in memory.
    Changed(usize),
    Deleted,
}

/// A request to process.
#[derive(Debug)]
pub(crate) struct Work {
    /// Its name.
    pub(crate) name: String,
    /// The object's UID.
    pub(crate) uid: String,
    /// The request as the watch showed it, lean; `None` if it must be read.
    pub(crate) object: Option<Box<CertificateSigningRequest>>,
    /// The limit of the memory of a request that is read: a larger one waits for another turn, with room for it.
    pub(crate) max_len: usize,
    /// The number of earlier attempts.
    pub(crate) attempts: u32,
}

fn created(metadata: &ObjectMeta) -> i64 {
    let created = metadata.creation_timestamp.as_ref();
    created.map_or(i64::MAX, |time| time.0.as_second())
}

impl Queue {
    /// The requests without an answer.
    pub(crate) fn pending(&self) -> Pending {
        self.pending.clone()
    }

    /// Begins a list.
    pub(crate) fn listing(&mut self) {
        self.left_out = None;
        self.is_listing = true;
        for entry in self.entries.values_mut() {
            entry.listed = false;
        }
    }

    /// Ends a list: requests that it did not have no longer exist.
    pub(crate) fn listed(&mut self) {
        self.is_listing = false;
        self.is_told = self.left_out.is_some();
        self.wait_before_relist();
        let gone: Vec<String> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.listed)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.gone(&uid);
        }
    }

    /// Adds or updates a request.
    ///
    /// An object without a name or a UID is ignored: the API server sets both.
    pub(crate) fn seen(&mut self, csr: CertificateSigningRequest) {
        let csr = lean(csr);
        let bytes = memory(&csr);
        let metadata = &csr.metadata;
        let given = |text: &Option<String>, max| text.clone().filter(|text| text.len() <= max);
        let (Some(name), Some(uid)) = (
            given(&metadata.name, MAX_NAME_LEN),
            given(&metadata.uid, MAX_ID_LEN),
        ) else {
            return;
        };
        let version = given(&metadata.resource_version, MAX_ID_LEN);
        let Some(entry) = self.entries.get_mut(&uid) else {
            // Longer names are refused by the checks, so they may share a budget.
            let requester = csr.spec.username.as_deref().unwrap_or_default();
            let requester: String = requester.chars().take(MAX_NAME_LEN).collect();
            let entry = Entry {
                name,
                requester,
                arrival: self.last_arrival + 1,
                created: created(metadata),
                version,
                bytes,
                listed: true,
                attempts: 0,
                state: State::Settled,
            };
            if self.admit(&uid, &entry) {
                self.last_arrival += 1;
                self.pending.add(entry.created, entry.arrival);
                self.entries.insert(uid.clone(), entry);
                self.wait(&uid, Instant::now(), Some(csr));
            }
            return;
        };
        entry.listed = true;
        if entry.version == version {
            return;
        }
        let before = entry.len(&uid);
        entry.version = version;
        self.entry_bytes = (self.entry_bytes + entry.len(&uid)).saturating_sub(before);
        let due = match &mut entry.state {
            State::Running(meanwhile) => {
                // Its `bytes` stay reserved until it was processed.
                *meanwhile = ChangedWhileRunning::Changed(bytes);
                return;
            }
            State::Waiting {
                is_charged: true, ..
            }
            | State::Settled => {
                entry.bytes = bytes;
                return;
            }
            State::Waiting { due, .. } => Instant::now().min(*due),
            State::GivenUp => Instant::now(),
        };
        self.end_wait(&uid);
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.bytes = bytes;
        }
        self.wait(&uid, due, Some(csr));
    }

    /// Removes the object of this UID.
    pub(crate) fn gone(&mut self, uid: &str) {
        if let Some(entry) = self.entries.get_mut(uid)
            && let State::Running(meanwhile) = &mut entry.state
        {
            *meanwhile = ChangedWhileRunning::Deleted;
            return;
        }
        if let Some((Some(due), _)) = self.end_wait(uid) {
            self.give_turn_back(uid, due);
        }
        self.forget(uid);
    }

    /// Whether a request could be processed at `now`, with a turn among those of all clusters.
    pub(crate) fn is_ready(&self, now: Instant) -> bool {
        let first = self.turns.first_key_value();
        !self.room.is_busy() && first.is_some_and(|((due, _), _)| *due <= now)
    }

    /// The next request to process at `now`.
    ///
    /// A request over its requester's budget gets a later turn, and delays no other requester's. At the limit of
    /// concurrent work, all requests wait.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Work> {
        while !self.room.is_busy() {
            let first = self.turns.first_entry();
            let uid = first.filter(|turn| turn.key().0 <= now)?.remove();
            let Some((charged, object)) = self.end_wait(&uid) else {
                continue;
            };
            let entry = self.entries.get_mut(&uid)?;
            let mut due = match charged {
                Some(due) if now.duration_since(due) < LATE => now,
                Some(_) | None => self.budgets.reserve(&entry.requester, now),
            };
            if due <= now && !self.room.begin(entry.bytes) {
                due = now + WITHOUT_MEMORY;
            }
            if due <= now {
                entry.state = State::Running(ChangedWhileRunning::Nothing);
                return Some(Work {
                    name: entry.name.clone(),
                    uid,
                    object,
                    max_len: allowance(entry.bytes),
                    attempts: entry.attempts,
                });
            }
            let turn = (due, entry.arrival);
            let charged = self.charged.entry(entry.requester.clone()).or_default();
            charged.insert(turn);
            self.turns.insert(turn, uid);
            entry.state = State::Waiting {
                due,
                is_charged: true,
                object: None,
            };
        }
        None
    }

    /// Gives the charged turn of a deleted request to the last in its requester's line, and the budget that one's.
    fn give_turn_back(&mut self, uid: &str, due: Instant) {
        let Some(requester) = self.entries.get(uid).map(|entry| entry.requester.clone()) else {
            return;
        };
        self.budgets.give_back(&requester, Instant::now());
        let Some(charged) = self.charged.get_mut(&requester) else {
            return;
        };
        if let Some(last) = charged.last().copied().filter(|(last, _)| *last > due)
            && let Some(uid) = self.turns.remove(&last)
        {
            let earlier = (due, last.1);
            charged.remove(&last);
            charged.insert(earlier);
            if let Some(Entry {
                state: State::Waiting { due, .. },
                ..
            }) = self.entries.get_mut(&uid)
            {
                *due = earlier.0;
            }
            self.turns.insert(earlier, uid);
        }
    }

    /// The time of the next turn; `None` if it depends on other events.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        if self.room.is_busy() {
            return None;
        }
        let turn = self.turns.first_key_value().map(|((due, _), _)| *due);
        turn.into_iter().chain(self.relistable()).min()
    }

    /// Ends the processing of a request that was answered, or is not ours.
    pub(crate) fn settled(&mut self, uid: &str) {
        if let Some((entry, _)) = self.worked_on(uid) {
            entry.state = State::Settled;
            let (requester, arrival) = (entry.requester.clone(), entry.arrival);
            let created = entry.created;
            self.requesters.remove(&requester, arrival);
            self.pending.remove(created, arrival);
        }
    }

    /// Ends the processing of a request whose answer is rejected, until the request changes.
    pub(crate) fn given_up(&mut self, uid: &str) {
        self.unanswered(uid, |_| None);
    }

    /// Ends the processing of a request that must be tried again.
    pub(crate) fn retry(&mut self, uid: &str, now: Instant) {
        self.unanswered(uid, |attempts| Some(now + wait_after(attempts)));
        if let Some(entry) = self.entries.get(uid) {
            self.pending.add(entry.created, entry.arrival);
        }
    }

    /// Ends the processing of a request that is another controller's until attestation is enforced: it is tried again,
    /// and is not pending.
    pub(crate) fn not_ours_yet(&mut self, uid: &str, now: Instant) {
        self.retry(uid, now);
        if let Some(entry) = self.entries.get(uid) {
            self.pending.remove(entry.created, entry.arrival);
        }
    }

    /// Ends the processing of a request without an answer. If it has changed, it is next; otherwise it waits `until`
    /// the time for its number of attempts.
    fn unanswered(&mut self, uid: &str, until: impl FnOnce(u32) -> Option<Instant>) {
        let Some((entry, meanwhile)) = self.worked_on(uid) else {
            return;
        };
        let until = until(entry.attempts);
        entry.attempts = entry.attempts.saturating_add(1);
        // The decision was about the former version: the change may be what it waited for.
        if let ChangedWhileRunning::Changed(_) = meanwhile {
            return self.wait(uid, Instant::now(), None);
        }
        match until {
            Some(until) => self.wait(uid, until, None),
            None => entry.state = State::GivenUp,
        }
    }

    /// The entry that was processed; an entry whose object was deleted is removed.
    fn worked_on(&mut self, uid: &str) -> Option<(&mut Entry, ChangedWhileRunning)> {
        let entry = self.entries.get(uid)?;
        let State::Running(meanwhile) = entry.state else {
            return None;
        };
        self.room.end(entry.bytes);
        if meanwhile == ChangedWhileRunning::Deleted {
            self.forget(uid);
            return None;
        }
        let entry = self.entries.get_mut(uid)?;
        if let ChangedWhileRunning::Changed(bytes) = meanwhile {
            entry.bytes = bytes;
        }
        Some((entry, meanwhile))
    }

    /// Gives the request a turn, not before `due`.
    fn wait(&mut self, uid: &str, due: Instant, csr: Option<CertificateSigningRequest>) {
        if let Some(entry) = self.entries.get_mut(uid) {
            self.requesters.add(&entry.requester, entry.arrival, uid);
            self.turns.insert((due, entry.arrival), uid.to_owned());
            entry.state = State::Waiting {
                due,
                is_charged: false,
                object: csr.and_then(|csr| self.room.keep(csr, entry.bytes)),
            };
        }
    }

    /// Removes the turn of an entry. Returns the time of a charged turn, and the object, if it was kept.
    fn end_wait(
        &mut self,
        uid: &str,
    ) -> Option<(Option<Instant>, Option<Box<CertificateSigningRequest>>)> {
        let entry = self.entries.get_mut(uid)?;
        let State::Waiting {
            due,
            is_charged,
            object,
        } = &mut entry.state
        else {
            return None;
        };
        let turn = (*due, entry.arrival);
        self.turns.remove(&turn);
        let charged = is_charged.then_some(*due);
        if *is_charged && let Some(turns) = self.charged.get_mut(&entry.requester) {
            turns.remove(&turn);
            if turns.is_empty() {
                self.charged.remove(&entry.requester);
            }
        }
        let object = object.take();
        if object.is_some() {
            self.room.free(entry.bytes);
        }
        Some((charged, object))
    }
}

#[cfg(test)]
impl Default for Queue {
    fn default() -> Self {
        Self::new("")
    }
}

#[cfg(test)]
mod tests;
