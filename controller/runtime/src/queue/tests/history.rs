//! Tests with random histories of the queue.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::Index;
use tokio::runtime::Builder;
use tokio::time::advance;

use super::super::Share;
use super::super::memory_budget::{Room, charge};
use super::*;
use crate::hardening::rate_limit::NODE_RATE;

/// The maximum number of objects that exist at the same time.
const OBJECTS: usize = 8;

/// The requesters of the objects. A node has a smaller budget than a token.
const REQUESTERS: [&str; 3] = ["system:node:a", "system:node:b", "system:bootstrap:c"];

/// The size of a large request. If four such requests are in progress, the limit is reached.
const LARGE: usize = 512 * 1024;

/// The memory for requests that wait or are in progress.
const SHARE: usize = 9 * 1024 * 1024;

/// The maximum number of turns until all requests are answered.
const MANY: usize = 1000;

#[derive(Debug, Clone)]
enum Event {
    Seen {
        object: usize,
        is_new: bool,
        is_large: bool,
    },
    Deleted(usize),
    /// A list that contains only some of the objects.
    Listed([bool; OBJECTS]),
    Next,
    Ended(Index, End),
    /// Seconds pass.
    Passed(u64),
}

/// The result of a request that was processed.
#[derive(Debug, Clone, Copy)]
enum End {
    Settled,
    GivenUp,
    Retry,
    NotOursYet,
}

fn event() -> impl Strategy<Value = Event> {
    let end = prop::sample::select(vec![
        End::Settled,
        End::GivenUp,
        End::Retry,
        End::NotOursYet,
    ]);
    prop_oneof![
        6 => (0..OBJECTS, any::<bool>(), prop::bool::weighted(0.3)).prop_map(
            |(object, is_new, is_large)| Event::Seen { object, is_new, is_large }
        ),
        1 => (0..OBJECTS).prop_map(Event::Deleted),
        1 => any::<[bool; OBJECTS]>().prop_map(Event::Listed),
        8 => Just(Event::Next),
        6 => (any::<Index>(), end).prop_map(|(which, end)| Event::Ended(which, end)),
        3 => (0..40_u64).prop_map(Event::Passed),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Waiting,
    Running { changed: bool, deleted: bool },
    Settled,
    GivenUp,
}

#[derive(Debug)]
struct Object {
    requester: &'static str,
    version: u32,
    is_pending: bool,
    state: Expected,
}

struct World {
    queue: Queue,
    /// The objects, keyed by UID. A deleted request remains in the map while it is in progress.
    objects: BTreeMap<String, Object>,
    /// The number of deleted objects with each name.
    deleted: [usize; OBJECTS],
    /// The number of turns that each requester has had.
    turns: BTreeMap<&'static str, u64>,
    began: Instant,
}

impl World {
    fn new() -> Self {
        let room = Room::new(&Share::alone(SHARE));
        Self {
            queue: Queue {
                room,
                ..Queue::default()
            },
            objects: BTreeMap::new(),
            deleted: [0; OBJECTS],
            turns: BTreeMap::new(),
            began: Instant::now(),
        }
    }

    async fn apply(&mut self, event: Event) {
        match event {
            Event::Seen {
                object,
                is_new,
                is_large,
            } => self.seen(object, is_new, is_large),
            Event::Deleted(object) => {
                self.queue.gone(&self.uid(object));
                self.expect_gone(object);
            }
            Event::Listed(listed) => self.list(listed),
            Event::Next => drop(self.next()),
            Event::Ended(which, end) => {
                let running = self.running();
                if !running.is_empty() {
                    let uid: &String = which.get(&running);
                    self.end(uid, end);
                }
            }
            Event::Passed(seconds) => advance(Duration::from_secs(seconds)).await,
        }
    }

    fn uid(&self, object: usize) -> String {
        format!("{object}-{}", self.deleted[object])
    }

    fn running(&self) -> Vec<String> {
        let is_running = |object: &Object| matches!(object.state, Expected::Running { .. });
        let running = self.objects.iter();
        let running = running.filter(|(_, object)| is_running(object));
        running.map(|(uid, _)| uid.clone()).collect()
    }

    fn seen(&mut self, object: usize, is_new: bool, is_large: bool) {
        let uid = self.uid(object);
        let requester = REQUESTERS[object % REQUESTERS.len()];
        let known = self.objects.get(&uid).map_or(0, |known| known.version);
        let version = known + u32::from(is_new || known == 0);
        let bytes = if is_large { LARGE } else { 0 };
        let mut csr = csr_of(&object.to_string(), &version.to_string(), bytes);
        csr.metadata.uid = Some(uid.clone());
        csr.spec.username = Some(requester.to_owned());

        self.queue.seen(csr);

        if version == known {
            return;
        }
        let known = self.objects.entry(uid).or_insert(Object {
            requester,
            version,
            is_pending: true,
            state: Expected::Waiting,
        });
        known.version = version;
        known.state = match known.state {
            Expected::GivenUp => Expected::Waiting,
            Expected::Running { deleted, .. } => Expected::Running {
                changed: true,
                deleted,
            },
            state @ (Expected::Waiting | Expected::Settled) => state,
        };
    }

    fn list(&mut self, listed: [bool; OBJECTS]) {
        self.queue.listing();
        for (object, _) in listed.iter().enumerate().filter(|(_, listed)| **listed) {
            if self.objects.contains_key(&self.uid(object)) {
                self.seen(object, false, false);
            }
        }
        self.queue.listed();
        for (object, _) in listed.iter().enumerate().filter(|(_, listed)| !**listed) {
            self.expect_gone(object);
        }
    }

    fn expect_gone(&mut self, object: usize) {
        let uid = self.uid(object);
        let Some(known) = self.objects.get_mut(&uid) else {
            return;
        };
        if let Expected::Running { deleted, .. } = &mut known.state {
            *deleted = true;
        } else {
            self.objects.remove(&uid);
        }
        self.deleted[object] += 1;
    }

    /// Starts the next request, and returns its UID.
    fn next(&mut self) -> Option<String> {
        let was_busy = self.queue.room.is_busy();
        let work = self.queue.next(Instant::now())?;
        assert!(!was_busy, "{work:?}");
        let object = self.objects.get_mut(&work.uid).unwrap();
        assert_eq!(object.state, Expected::Waiting, "{}", work.uid);
        object.state = Expected::Running {
            changed: false,
            deleted: false,
        };
        let turns = self.turns.entry(object.requester).or_default();
        *turns += 1;
        if object.requester.starts_with("system:node:") {
            let elapsed = self.began.elapsed().as_secs() / NODE_RATE.every.as_secs();
            assert!(*turns <= u64::from(NODE_RATE.burst) + elapsed, "{turns}");
        }
        Some(work.uid)
    }

    fn end(&mut self, uid: &str, end: End) {
        let now = Instant::now();
        match end {
            End::Settled => self.queue.settled(uid),
            End::GivenUp => self.queue.given_up(uid),
            End::Retry => self.queue.retry(uid, now),
            End::NotOursYet => self.queue.not_ours_yet(uid, now),
        }
        let object = self.objects.get_mut(uid).unwrap();
        let Expected::Running { changed, deleted } = object.state else {
            panic!("{uid} is not in progress: {object:?}");
        };
        if deleted {
            self.objects.remove(uid);
            return;
        }
        object.state = match end {
            End::Settled => Expected::Settled,
            End::GivenUp if !changed => Expected::GivenUp,
            End::GivenUp | End::Retry | End::NotOursYet => Expected::Waiting,
        };
        match end {
            End::Retry => object.is_pending = true,
            End::Settled | End::NotOursYet => object.is_pending = false,
            End::GivenUp => {}
        }
    }

    /// Answers all requests. Each waiting request gets a turn.
    async fn finish(&mut self) {
        for uid in self.running() {
            self.end(&uid, End::Settled);
        }
        let waiting = self.objects.iter();
        let waiting = waiting.filter(|(_, object)| object.state == Expected::Waiting);
        let waiting: BTreeSet<String> = waiting.map(|(uid, _)| uid.clone()).collect();
        let mut answered = BTreeSet::new();
        for _ in 0..MANY {
            while let Some(uid) = self.next() {
                self.end(&uid, End::Settled);
                self.check();
                answered.insert(uid);
            }
            let Some(turn) = self.queue.next_turn() else {
                break;
            };
            advance(turn.saturating_duration_since(Instant::now())).await;
        }
        assert_eq!(answered, waiting);
        assert_eq!(self.queue.next_turn(), None);
        assert!(self.queue.room.is_empty());
    }

    /// Compares the queue with the expected states, and its indices with its entries.
    fn check(&self) {
        let queue = &self.queue;
        let uids: Vec<&str> = queue.entries.keys().map(|uid| &**uid).collect();
        assert_eq!(uids, self.objects.keys().collect::<Vec<_>>());
        let (mut turns, mut charged) = (BTreeMap::new(), BTreeSet::new());
        let mut open = BTreeMap::<&str, usize>::new();
        let [mut kept, mut kept_bytes, mut running, mut running_bytes] = [0; 4];
        let mut entry_bytes = 0;
        for (uid, entry) in &queue.entries {
            let state = match &entry.state {
                State::Waiting {
                    due,
                    is_charged,
                    object,
                } => {
                    let turn = (*due, entry.arrival);
                    turns.insert(turn, uid.clone());
                    if *is_charged {
                        charged.insert((entry.requester.clone(), turn));
                    }
                    if object.is_some() {
                        kept += 1;
                        kept_bytes += entry.bytes;
                    }
                    Expected::Waiting
                }
                State::Running(meanwhile) => {
                    running += 1;
                    running_bytes += charge(entry.bytes);
                    Expected::Running {
                        changed: matches!(meanwhile, ChangedWhileRunning::Changed(_)),
                        deleted: *meanwhile == ChangedWhileRunning::Deleted,
                    }
                }
                State::Settled => Expected::Settled,
                State::GivenUp => Expected::GivenUp,
            };
            let expected = match self.objects[&**uid].state {
                // The queue does not remember a change before the deletion.
                Expected::Running { deleted: true, .. } => Expected::Running {
                    changed: false,
                    deleted: true,
                },
                expected @ (Expected::Waiting
                | Expected::Running { .. }
                | Expected::Settled
                | Expected::GivenUp) => expected,
            };
            assert_eq!(state, expected, "{uid}");
            entry_bytes += entry.len(uid);
            if state != Expected::Settled {
                *open.entry(&*entry.requester).or_default() += 1;
            }
        }
        assert_eq!(queue.turns, turns);
        assert_eq!(queue.charged, charged);
        assert_eq!(
            queue.room.in_use(),
            [kept, kept_bytes, running, running_bytes]
        );
        assert_eq!(queue.entry_bytes, entry_bytes);
        for requester in REQUESTERS {
            let expected = open.get(requester).copied().unwrap_or_default();
            assert_eq!(queue.requesters.count(requester), expected, "{requester}");
        }
        let pending = self.objects.values().filter(|object| object.is_pending);
        assert_eq!(queue.pending().summary().0, pending.count());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_history_loses_a_request_or_processes_it_twice_at_once(
        events in prop::collection::vec(event(), 1..120),
    ) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let mut world = World::new();
            for event in events {
                world.apply(event).await;
                world.check();
            }
            world.finish().await;
        });
    }
}
