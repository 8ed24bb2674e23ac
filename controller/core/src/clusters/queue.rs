//! What is to be done next: no input or output, and time comes as an argument.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use tokio::time::Instant;

/// The first wait of a request that must be tried again; a machine that is being made is there within seconds.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The longest such wait: the time a node gives its request before it collects the answer on its next run.
const LAST_RETRY: Duration = Duration::from_mins(1);

/// So many queued requests are kept whole; of the others only the name is, so that a flood of large requests cannot
/// take all memory. What is not kept is read again when its turn comes.
const MAX_OBJECTS: usize = 256;

/// Every request of one cluster that is known, and where it stands.
///
/// No request is worked on twice at once. One that was answered is not looked at again: an answer is final.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: HashMap<String, Entry>,
    ready: VecDeque<String>,
    timers: BTreeSet<(Instant, String)>,
    objects: usize,
}

/// Which watch a request came from; each has its own list.
pub(crate) type Source = usize;

#[derive(Debug)]
struct Entry {
    uid: Option<String>,
    version: Option<String>,
    source: Source,
    /// Whether the source's list, as far as it was read, has it.
    listed: bool,
    attempts: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    /// In `ready`, with the object where there was room for it.
    Ready(Option<Box<CertificateSigningRequest>>),
    /// Worked on; `again` when it has changed meanwhile, `gone` when it was deleted.
    Running { again: bool, gone: bool },
    /// In `timers`.
    Waiting(Instant),
    /// Answered, or none of our business.
    Settled,
}

/// One request whose turn it is.
#[derive(Debug)]
pub(crate) struct Work {
    /// Its name.
    pub(crate) name: String,
    /// The request as it was watched; `None`: read it.
    pub(crate) object: Option<Box<CertificateSigningRequest>>,
    /// How often it was tried before.
    pub(crate) attempts: u32,
}

impl Queue {
    /// A source begins to list what it has.
    pub(crate) fn listing(&mut self, source: Source) {
        for entry in self.entries.values_mut().filter(|e| e.source == source) {
            entry.listed = false;
        }
    }

    /// The source has listed all: what it did not name is gone.
    pub(crate) fn listed(&mut self, source: Source) {
        let gone: Vec<String> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.source == source && !entry.listed)
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.gone(&name);
        }
    }

    /// The request exists in this version.
    pub(crate) fn seen(&mut self, source: Source, csr: CertificateSigningRequest) {
        let Some(name) = csr.metadata.name.clone() else {
            return;
        };
        let uid = csr.metadata.uid.clone();
        let version = csr.metadata.resource_version.clone();
        let Some(entry) = self.entries.get_mut(&name) else {
            let object = self.room_for(csr);
            self.entries.insert(
                name.clone(),
                Entry {
                    uid,
                    version,
                    source,
                    listed: true,
                    attempts: 0,
                    state: State::Ready(object),
                },
            );
            self.ready.push_back(name);
            return;
        };
        entry.listed = true;
        let replaced = entry.uid != uid;
        if !replaced && entry.version == version {
            return;
        }
        entry.version = version;
        if replaced {
            entry.uid = uid;
            entry.attempts = 0;
        }
        match &mut entry.state {
            State::Ready(object) => {
                if object.is_some() {
                    *object = Some(Box::new(csr));
                }
            }
            State::Running { again, gone } => {
                *again = true;
                *gone = false;
            }
            State::Waiting(until) => {
                let timer = (*until, name.clone());
                self.timers.remove(&timer);
                self.make_ready(name, Some(csr));
            }
            State::Settled if replaced => self.make_ready(name, Some(csr)),
            State::Settled => {}
        }
    }

    /// The request exists no longer.
    pub(crate) fn gone(&mut self, name: &str) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        match &mut entry.state {
            State::Running { again, gone } => {
                *again = true;
                *gone = true;
                return;
            }
            State::Waiting(until) => {
                self.timers.remove(&(*until, name.to_owned()));
            }
            State::Ready(object) => {
                self.objects = self.objects.saturating_sub(usize::from(object.is_some()));
                self.ready.retain(|ready| ready != name);
            }
            State::Settled => {}
        }
        self.entries.remove(name);
    }

    /// The request whose turn it is, if any's is at `now`.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Work> {
        while let Some((until, _)) = self.timers.first()
            && *until <= now
        {
            let Some((_, name)) = self.timers.pop_first() else {
                break;
            };
            self.make_ready(name, None);
        }
        let name = self.ready.pop_front()?;
        let entry = self.entries.get_mut(&name)?;
        let state = std::mem::replace(
            &mut entry.state,
            State::Running {
                again: false,
                gone: false,
            },
        );
        let object = match state {
            State::Ready(object) => object,
            State::Running { .. } | State::Waiting(_) | State::Settled => None,
        };
        self.objects = self.objects.saturating_sub(usize::from(object.is_some()));
        Some(Work {
            name,
            object,
            attempts: entry.attempts,
        })
    }

    /// When the next waiting request's turn comes.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        self.timers.first().map(|(until, _)| *until)
    }

    /// The request was answered, or is none of ours.
    pub(crate) fn settled(&mut self, name: &str) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        if matches!(entry.state, State::Running { gone: true, .. }) {
            self.entries.remove(name);
        } else {
            entry.state = State::Settled;
        }
    }

    /// The request must be tried again.
    pub(crate) fn retry(&mut self, name: &str, now: Instant) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let changed = matches!(entry.state, State::Running { again: true, .. });
        let wait = wait_after(entry.attempts);
        entry.attempts = entry.attempts.saturating_add(1);
        if changed {
            self.make_ready(name.to_owned(), None);
        } else {
            let until = now + wait;
            entry.state = State::Waiting(until);
            self.timers.insert((until, name.to_owned()));
        }
    }

    fn make_ready(&mut self, name: String, csr: Option<CertificateSigningRequest>) {
        let object = csr.and_then(|csr| self.room_for(csr));
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.state = State::Ready(object);
            self.ready.push_back(name);
        }
    }

    fn room_for(
        &mut self,
        csr: CertificateSigningRequest,
    ) -> Option<Box<CertificateSigningRequest>> {
        if self.objects >= MAX_OBJECTS {
            return None;
        }
        self.objects += 1;
        Some(Box::new(csr))
    }
}

/// The wait after the attempt that `attempts` others came before: doubled each time.
fn wait_after(attempts: u32) -> Duration {
    2_u32
        .checked_pow(attempts)
        .and_then(|factor| FIRST_RETRY.checked_mul(factor))
        .map_or(LAST_RETRY, |wait| wait.min(LAST_RETRY))
}

#[cfg(test)]
mod tests;
