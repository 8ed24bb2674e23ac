//! The order in which the requests of one cluster are processed, without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
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
use retry::RETRY;

use crate::hardening::rate_limit::Budgets;
use crate::log_lines::ClusterLines;
use crate::memory::{Holding, Share};
use crate::metrics::Pending;
use crate::turns::TurnLimits;

/// The limits on concurrent requests. The limit for all clusters together is four times the limit for one cluster.
pub(crate) const TURNS: TurnLimits = TurnLimits {
    all: 4 * MAX_RUNNING,
    of_cluster: MAX_RUNNING,
};

/// The delay after which a turn is charged again, so that a requester cannot exceed its burst after a stall.
const LATE: Duration = Duration::from_secs(10);

/// The pause before the next turn of a request for which there was not enough memory.
const WITHOUT_MEMORY: Duration = Duration::from_secs(1);

/// The maximum length of an object or requester name (RFC 1123).
const MAX_NAME_LEN: usize = 253;

/// The maximum length of a UID or a `resourceVersion`. Kubernetes UIDs have 36 characters.
const MAX_ID_LEN: usize = 64;

/// The memory for an entry in addition to its texts. It was measured for a requester with a single entry, and includes
/// all maps that refer to the entry.
const ENTRY_LEN: usize = 800;

/// An upper bound for the time between two turns: a requester has up to 1,000 requests, and their turns are 10 s apart.
const LATEST: Duration = Duration::from_hours(24);

/// The memory that is reserved for one cluster's requests, which is enough for the requests of 1,000 machines.
const SHARE: usize = 4 * 1024 * 1024;

/// The known requests of one cluster, with their states.
///
/// An entry represents one object, which its UID identifies. A different object with the same name has a separate
/// entry. Two workers never process the same object. An answer is final, so an answered request is not processed again.
///
/// # Guarantees
///
/// A flood of requests does not displace requests from other requesters. If the queue is full, it drops the newest
/// request from the requester that has the most requests.
#[derive(Debug)]
pub(crate) struct Queue {
    /// A `BTreeMap`, like all maps in this type, because it releases memory when it shrinks, unlike a `HashMap`.
    entries: BTreeMap<Arc<str>, Entry>,
    /// The UIDs of the waiting requests, in order.
    turns: BTreeMap<Turn, Arc<str>>,
    /// The turns that are charged to the budgets of their requesters, sorted by requester.
    charged: BTreeSet<(Arc<str>, Turn)>,
    budgets: Budgets,
    room: Room,
    requesters: Requesters,
    last_arrival: Arrival,
    /// The memory that the entries use, excluding the budgets.
    entry_bytes: usize,
    memory: Holding,
    left_out: Option<LeftOut>,
    /// Whether dropped requests have been logged. Reset after a list from which no request was dropped.
    is_logged: bool,
    /// The arrival number at which answered requests are removed next.
    purged_at: Arrival,
    /// Whether a list is in progress.
    is_listing: bool,
    pending: Pending,
    lines: ClusterLines,
}

impl Queue {
    /// Creates an empty queue for the cluster to which these log lines belong. The queue's memory is charged to the
    /// cluster's namespace.
    pub(crate) fn new(lines: &ClusterLines) -> Self {
        let share = Share::new(lines.namespace(), SHARE);
        Self {
            entries: BTreeMap::new(),
            turns: BTreeMap::new(),
            charged: BTreeSet::new(),
            budgets: Budgets::default(),
            room: Room::new(&share),
            requesters: Requesters::default(),
            last_arrival: 0,
            entry_bytes: 0,
            memory: share.holding(),
            left_out: None,
            is_logged: false,
            purged_at: 0,
            is_listing: false,
            pending: Pending::default(),
            lines: lines.clone(),
        }
    }
}

/// A position in the order of waiting requests: the earliest time, and then the order of arrival.
type Turn = (Instant, Arrival);

#[derive(Debug)]
struct Entry {
    name: String,
    requester: Arc<str>,
    arrival: Arrival,
    /// The creation time (in seconds since 1970). A missing time counts as the latest.
    created: i64,
    version: Option<String>,
    /// The size in memory.
    bytes: usize,
    /// Whether the current list has already returned the object.
    listed: bool,
    attempts: u32,
    state: State,
}

impl Entry {
    /// The memory that the entry uses, including the maps that refer to it.
    fn len(&self, uid: &str) -> usize {
        let version = self.version.as_ref().map_or(0, String::len);
        ENTRY_LEN + self.name.len() + self.requester.len() + uid.len() + version
    }
}

#[derive(Debug)]
enum State {
    /// The request has an entry in `turns`.
    Waiting {
        due: Instant,
        /// Whether the turn is also in `charged`.
        is_charged: bool,
        /// The object, if there was enough memory for its `bytes`.
        object: Option<Box<CertificateSigningRequest>>,
    },
    /// A worker processes the request.
    Running(ChangedWhileRunning),
    /// The request was answered, or does not belong to this controller.
    Settled,
    /// The API server rejected the answer to the current version of the request.
    GivenUp,
}

/// A change to an object while a worker processes it.
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
    /// The name of the request.
    pub(crate) name: String,
    /// The UID of the object.
    pub(crate) uid: String,
    /// The request from the watch, without unused fields. `None` if the request must be read.
    pub(crate) object: Option<Box<CertificateSigningRequest>>,
    /// The memory limit for reading the request. A larger request waits for a turn with enough memory.
    pub(crate) max_len: usize,
    /// The number of earlier attempts.
    pub(crate) attempts: u32,
}

fn created(metadata: &ObjectMeta) -> i64 {
    let created = metadata.creation_timestamp.as_ref();
    created.map_or(i64::MAX, |time| time.0.as_second())
}

impl Queue {
    /// The unanswered requests.
    pub(crate) fn pending(&self) -> Pending {
        self.pending.clone()
    }

    /// Records the start of a list.
    pub(crate) fn listing(&mut self) {
        self.left_out = None;
        self.is_listing = true;
        for entry in self.entries.values_mut() {
            entry.listed = false;
        }
    }

    /// Records the end of a list. Requests that the list did not return no longer exist.
    pub(crate) fn listed(&mut self) {
        self.is_listing = false;
        self.is_logged = self.left_out.is_some();
        self.wait_before_relist();
        let gone = self.entries.iter().filter(|(_, entry)| !entry.listed);
        let gone: Vec<Arc<str>> = gone.map(|(uid, _)| uid.clone()).collect();
        for uid in gone {
            self.gone(&uid);
        }
    }

    /// Adds or updates a request.
    ///
    /// An object without a name or a UID is ignored, because the API server sets both.
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
        let Some(entry) = self.entries.get_mut(&*uid) else {
            // The checks reject requesters with longer names, so these requesters can share a budget.
            let requester = csr.spec.username.as_deref().unwrap_or_default();
            let requester: String = requester.chars().take(MAX_NAME_LEN).collect();
            let entry = Entry {
                name,
                requester: requester.into(),
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
                self.entries.insert(uid.as_str().into(), entry);
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
                // The old `bytes` remain reserved until processing ends.
                *meanwhile = ChangedWhileRunning::Changed(bytes);
                return;
            }
            // A charged turn is kept, so that a requester cannot exceed its budget by changing a request. An answer is
            // final.
            State::Waiting {
                is_charged: true, ..
            }
            | State::Settled => {
                entry.bytes = bytes;
                return;
            }
            // A change ends the pause before a retry.
            State::Waiting { due, .. } => Instant::now().min(*due),
            // Only the answer to the earlier version was rejected.
            State::GivenUp => Instant::now(),
        };
        self.end_wait(&uid);
        if let Some(entry) = self.entries.get_mut(&*uid) {
            entry.bytes = bytes;
        }
        self.wait(&uid, due, Some(csr));
    }

    /// Removes the object with this UID.
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

    /// Whether a request could be processed at `now`, provided that it gets a turn.
    pub(crate) fn is_ready(&self, now: Instant) -> bool {
        let first = self.turns.first_key_value();
        !self.room.is_busy() && first.is_some_and(|((due, _), _)| *due <= now)
    }

    /// Returns the next request to process at `now`.
    ///
    /// A request that exceeds its requester's budget gets a later turn, and does not delay other requesters. If the
    /// limit on concurrent work is reached, all requests wait.
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
                    uid: uid.to_string(),
                    object,
                    max_len: allowance(entry.bytes),
                    attempts: entry.attempts,
                });
            }
            let turn = (due, entry.arrival);
            self.charged.insert((entry.requester.clone(), turn));
            self.turns.insert(turn, uid);
            entry.state = State::Waiting {
                due,
                is_charged: true,
                object: None,
            };
        }
        None
    }

    /// Gives a deleted request's charged turn to its requester's last request, and refunds that request's own turn.
    fn give_turn_back(&mut self, uid: &str, due: Instant) {
        let Some(requester) = self.entries.get(uid).map(|entry| entry.requester.clone()) else {
            return;
        };
        self.budgets.give_back(&requester, Instant::now());
        let (after, latest) = ((due, Arrival::MAX), (due + LATEST, Arrival::MAX));
        let later = (requester.clone(), after)..=(requester.clone(), latest);
        let last = self.charged.range(later).next_back().map(|(_, turn)| *turn);
        if let Some(last) = last
            && let Some(uid) = self.turns.remove(&last)
        {
            let earlier = (due, last.1);
            self.charged.remove(&(requester.clone(), last));
            self.charged.insert((requester, earlier));
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

    /// The time of the next turn. `None` if the next turn depends on other events.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        if self.room.is_busy() {
            return None;
        }
        let turn = self.turns.first_key_value().map(|((due, _), _)| *due);
        turn.into_iter().chain(self.relistable()).min()
    }

    /// Ends the processing of a request that was answered, or that does not belong to this controller.
    pub(crate) fn settled(&mut self, uid: &str) {
        if let Some((entry, _)) = self.worked_on(uid) {
            entry.state = State::Settled;
            let (requester, arrival) = (entry.requester.clone(), entry.arrival);
            let created = entry.created;
            self.requesters.remove(&requester, arrival);
            self.pending.remove(created, arrival);
        }
    }

    /// Ends the processing of a request whose answer was rejected, until the request changes.
    pub(crate) fn given_up(&mut self, uid: &str) {
        self.unanswered(uid, |_| None);
    }

    /// Ends the processing of a request that must be retried.
    pub(crate) fn retry(&mut self, uid: &str, now: Instant) {
        self.unanswered(uid, |attempts| Some(now + RETRY.after(attempts)));
        if let Some(entry) = self.entries.get(uid) {
            self.pending.add(entry.created, entry.arrival);
        }
    }

    /// Ends the processing of a request that belongs to another controller until attestation is enforced. The request
    /// is retried, but does not count as pending.
    pub(crate) fn not_ours_yet(&mut self, uid: &str, now: Instant) {
        self.retry(uid, now);
        if let Some(entry) = self.entries.get(uid) {
            self.pending.remove(entry.created, entry.arrival);
        }
    }

    /// Ends the processing of a request without an answer. If the request has changed, it is processed next. Otherwise,
    /// it waits until the time that `until` returns for its number of attempts.
    fn unanswered(&mut self, uid: &str, until: impl FnOnce(u32) -> Option<Instant>) {
        let Some((entry, meanwhile)) = self.worked_on(uid) else {
            return;
        };
        let until = until(entry.attempts);
        entry.attempts = entry.attempts.saturating_add(1);
        // The decision was based on the previous version, and the request might have waited for this change.
        if let ChangedWhileRunning::Changed(_) = meanwhile {
            return self.wait(uid, Instant::now(), None);
        }
        match until {
            Some(until) => self.wait(uid, until, None),
            None => entry.state = State::GivenUp,
        }
    }

    /// Returns the entry that was processed. If its object was deleted, removes the entry.
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

    /// Adds a turn for the request, at `due` or later.
    fn wait(&mut self, uid: &str, due: Instant, csr: Option<CertificateSigningRequest>) {
        let key = self.entries.get_key_value(uid).map(|(uid, _)| uid.clone());
        if let (Some(uid), Some(entry)) = (key, self.entries.get_mut(uid)) {
            self.requesters.add(&entry.requester, entry.arrival, &uid);
            self.turns.insert((due, entry.arrival), uid);
            entry.state = State::Waiting {
                due,
                is_charged: false,
                object: csr.and_then(|csr| self.room.keep(csr, entry.bytes)),
            };
        }
    }

    /// Removes the turn of an entry. Returns the time of the turn if it was charged, and the object if it was kept.
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
        if *is_charged {
            self.charged.remove(&(entry.requester.clone(), turn));
        }
        let object = object.take();
        if object.is_some() {
            self.room.free(entry.bytes);
        }
        Some((charged, object))
    }
}

#[cfg(test)]
mod tests;
