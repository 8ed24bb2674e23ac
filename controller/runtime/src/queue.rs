//! What is to be done next: no input or output, and time comes as an argument.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use tokio::time::Instant;

mod memory_budget;
mod places;
mod requesters;
mod throttled;

pub(crate) use memory_budget::json_len;

use memory_budget::{Room, allowance};
use places::LeftOut;
use requesters::{Arrival, Requesters};
use throttled::Held;

use crate::memory::{Holding, Share};

/// The first wait of a request that must be tried again; a machine that is being made is there
/// within seconds.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The longest such wait: the time a node gives its request before it collects the answer on its
/// next run.
const LAST_RETRY: Duration = Duration::from_mins(1);

/// Of a name that an API server gives, or a requester's (RFC 1123).
const MAX_NAME_LEN: usize = 253;

/// Of a UID or a version that an API server gives; its own have 36.
const MAX_ID_LEN: usize = 64;

/// What an entry takes beside its texts, each of which is in it up to three times.
const ENTRY_LEN: usize = 512;

/// What the requests of one cluster may take whatever others take: those of a thousand machines.
const SHARE: usize = 4 * 1024 * 1024;

/// Every request of one cluster that is known, and where it stands.
///
/// An entry is one object, known by its UID: another under the same name has an entry of its own,
/// whichever watch tells of it, and before or after the first one's end. No object is worked on
/// twice at once. One that was answered is not looked at again: an answer is final.
///
/// # Guarantees
///
/// However many requests somebody files, they take nobody else's place: where there is no place
/// left, the newest of whoever has most is left out.
#[derive(Debug)]
pub(crate) struct Queue {
    entries: HashMap<String, Entry>,
    ready: BTreeMap<Seq, String>,
    held: Held,
    timers: BTreeSet<(Instant, String)>,
    last_ticket: Seq,
    room: Room,
    requesters: Requesters,
    last_arrival: Arrival,
    /// What the entries take.
    entry_bytes: usize,
    memory: Holding,
    left_out: Option<LeftOut>,
    /// Of how many arrivals those that were answered were forgotten.
    purged_at: Arrival,
    /// Whether a list has begun and not ended.
    is_listing: bool,
}

impl Default for Queue {
    fn default() -> Self {
        let share = Share::new(SHARE);
        Self {
            entries: HashMap::new(),
            ready: BTreeMap::new(),
            held: Held::default(),
            timers: BTreeSet::new(),
            last_ticket: 0,
            room: Room::new(&share),
            requesters: Requesters::default(),
            last_arrival: 0,
            entry_bytes: 0,
            memory: share.holding(),
            left_out: None,
            purged_at: 0,
            is_listing: false,
        }
    }
}

/// A place in the order of those that are ready.
type Seq = u64;

#[derive(Debug)]
struct Entry {
    name: String,
    requester: String,
    arrival: Arrival,
    version: Option<String>,
    /// How long it is as JSON.
    bytes: usize,
    /// Whether the list, as far as it was read, has it.
    listed: bool,
    attempts: u32,
    state: State,
}

impl Entry {
    /// What it takes in memory, with the places that name it.
    fn len(&self, uid: &str) -> usize {
        let version = self.version.as_ref().map_or(0, String::len);
        ENTRY_LEN + self.name.len() + 2 * self.requester.len() + 3 * uid.len() + version
    }
}

#[derive(Debug)]
enum State {
    /// In `ready`, with the object where there was room for it: for `bytes` of its entry.
    Ready(Seq, Option<Box<CertificateSigningRequest>>),
    /// In `held`.
    OverBudget(Seq),
    /// Worked on.
    Running(ChangedWhileRunning),
    /// In `timers`.
    Waiting(Instant),
    /// Answered, or none of our business.
    Settled,
    /// The API server takes no answer of ours for it as it is.
    GivenUp,
}

/// What became of an object while it was worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangedWhileRunning {
    Nothing,
    /// It has so many bytes of JSON now.
    Changed(usize),
    Deleted,
}

/// One request whose turn it is.
#[derive(Debug)]
pub(crate) struct Work {
    /// Its name.
    pub(crate) name: String,
    /// The object's UID.
    pub(crate) uid: String,
    /// The request as it was watched; `None`: read it.
    pub(crate) object: Option<Box<CertificateSigningRequest>>,
    /// How long the request may be where it is read: a longer one waits for a turn in which there
    /// is room for it.
    pub(crate) max_len: usize,
    /// How often it was tried before.
    pub(crate) attempts: u32,
}

impl Queue {
    /// A list begins.
    pub(crate) fn listing(&mut self) {
        self.left_out = None;
        self.is_listing = true;
        for entry in self.entries.values_mut() {
            entry.listed = false;
        }
    }

    /// The list has ended: what it did not name is gone.
    pub(crate) fn listed(&mut self) {
        self.is_listing = false;
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

    /// The request exists in this version.
    ///
    /// One without a name or a UID is none: the API server gives both.
    pub(crate) fn seen(&mut self, csr: CertificateSigningRequest) {
        let metadata = &csr.metadata;
        let given = |text: &Option<String>, max| text.clone().filter(|text| text.len() <= max);
        let (Some(name), Some(uid)) = (
            given(&metadata.name, MAX_NAME_LEN),
            given(&metadata.uid, MAX_ID_LEN),
        ) else {
            return;
        };
        let version = given(&metadata.resource_version, MAX_ID_LEN);
        let bytes = json_len(&csr);
        let Some(entry) = self.entries.get_mut(&uid) else {
            // Longer ones, which the checks refuse, may share a budget.
            let requester = csr.spec.username.as_deref().unwrap_or_default();
            let requester: String = requester.chars().take(MAX_NAME_LEN).collect();
            let entry = Entry {
                name,
                requester,
                arrival: self.last_arrival + 1,
                version,
                bytes,
                listed: true,
                attempts: 0,
                state: State::Settled,
            };
            if self.admit(&uid, &entry) {
                self.last_arrival += 1;
                self.entries.insert(uid.clone(), entry);
                self.make_ready(uid, Some(csr));
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
        if let State::Running(meanwhile) = &mut entry.state {
            // Its `bytes` are set aside until its work ends.
            *meanwhile = ChangedWhileRunning::Changed(bytes);
            return;
        }
        let bytes_before = std::mem::replace(&mut entry.bytes, bytes);
        match &mut entry.state {
            State::Ready(_, kept) => {
                if kept.take().is_some() {
                    self.room.free(bytes_before);
                    *kept = self.room.keep(csr, bytes);
                }
            }
            State::Waiting(until) => {
                let timer = (*until, uid.clone());
                self.timers.remove(&timer);
                self.make_ready(uid, Some(csr));
            }
            State::GivenUp => self.make_ready(uid, Some(csr)),
            State::Running(_) | State::Settled | State::OverBudget(_) => {}
        }
    }

    /// The object of this UID exists no longer.
    pub(crate) fn gone(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else {
            return;
        };
        match &mut entry.state {
            State::Running(meanwhile) => {
                *meanwhile = ChangedWhileRunning::Deleted;
                return;
            }
            State::Waiting(until) => {
                self.timers.remove(&(*until, uid.to_owned()));
            }
            State::OverBudget(ticket) => self.held.gone(&entry.requester, *ticket),
            State::Ready(ticket, kept) => {
                self.ready.remove(ticket);
                if kept.is_some() {
                    self.room.free(entry.bytes);
                }
            }
            State::Settled | State::GivenUp => {}
        }
        self.forget(uid);
    }

    /// The request whose turn it is, if any's is at `now`.
    ///
    /// One whose requester is over its budget waits until there is something left of it; where much
    /// is worked on already, all wait until something of it is done.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Work> {
        while let Some((until, _)) = self.timers.first()
            && *until <= now
        {
            let Some((_, uid)) = self.timers.pop_first() else {
                break;
            };
            self.make_ready(uid, None);
        }
        if self.room.is_busy() {
            return None;
        }
        // It waited longer than any that is ready.
        if let Some(uid) = self.held.next(now) {
            return self.start(uid);
        }
        while let Some((ticket, uid)) = self.ready.pop_first() {
            let Some(entry) = self.entries.get_mut(&uid) else {
                continue;
            };
            if self.held.admit(&entry.requester, ticket, &uid, now) {
                return self.start(uid);
            }
            let state = std::mem::replace(&mut entry.state, State::OverBudget(ticket));
            if let State::Ready(_, Some(_)) = state {
                self.room.free(entry.bytes);
            }
        }
        None
    }

    fn start(&mut self, uid: String) -> Option<Work> {
        let entry = self.entries.get_mut(&uid)?;
        let running = State::Running(ChangedWhileRunning::Nothing);
        let before = std::mem::replace(&mut entry.state, running);
        let object = if let State::Ready(_, object) = before {
            object
        } else {
            None
        };
        self.room.begin(entry.bytes);
        if object.is_some() {
            self.room.free(entry.bytes);
        }
        Some(Work {
            name: entry.name.clone(),
            uid,
            object,
            max_len: allowance(entry.bytes),
            attempts: entry.attempts,
        })
    }

    /// When the next waiting request's turn comes; `None`: not before something else happens.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        if self.room.is_busy() {
            return None;
        }
        let timer = self.timers.first().map(|(until, _)| *until);
        let relist = self.relistable();
        let turns = timer.into_iter().chain(self.held.next_turn());
        turns.chain(relist).min()
    }

    /// The request was answered, or is none of ours.
    pub(crate) fn settled(&mut self, uid: &str) {
        if let Some((entry, _)) = self.worked_on(uid) {
            entry.state = State::Settled;
            let (requester, arrival) = (entry.requester.clone(), entry.arrival);
            self.requesters.remove(&requester, arrival);
        }
    }

    /// No answer can be written; one may be when the request has changed.
    pub(crate) fn given_up(&mut self, uid: &str) {
        self.unanswered(uid, |_| None);
    }

    /// The request must be tried again.
    pub(crate) fn retry(&mut self, uid: &str, now: Instant) {
        self.unanswered(uid, |attempts| Some(now + wait_after(attempts)));
    }

    /// The request has no answer: it is ready if it has changed meanwhile, and otherwise waits as long as after so
    /// many attempts.
    fn unanswered(&mut self, uid: &str, until: impl FnOnce(u32) -> Option<Instant>) {
        let Some((entry, meanwhile)) = self.worked_on(uid) else {
            return;
        };
        let until = until(entry.attempts);
        entry.attempts = entry.attempts.saturating_add(1);
        // What was decided was about the request as it was: the change may be what it waited for.
        if let ChangedWhileRunning::Changed(_) = meanwhile {
            return self.make_ready(uid.to_owned(), None);
        }
        entry.state = until.map_or(State::GivenUp, State::Waiting);
        self.timers
            .extend(until.map(|until| (until, uid.to_owned())));
    }

    /// The entry that was worked on, unless its object is gone: then it is forgotten.
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

    fn make_ready(&mut self, uid: String, csr: Option<CertificateSigningRequest>) {
        if let Some(entry) = self.entries.get_mut(&uid) {
            self.requesters.add(&entry.requester, entry.arrival, &uid);
            let object = csr.and_then(|csr| self.room.keep(csr, entry.bytes));
            self.last_ticket += 1;
            entry.state = State::Ready(self.last_ticket, object);
            self.ready.insert(self.last_ticket, uid);
        }
    }
}

/// The wait after the attempt that `attempts` others came before: doubled each time.
fn wait_after(attempts: u32) -> Duration {
    let wait = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(attempts));
    wait.min(LAST_RETRY)
}

#[cfg(test)]
mod tests;
