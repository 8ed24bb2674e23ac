//! Limits on the memory for one cluster's waiting and running requests.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use tokio::time::Instant;

use super::kept::has_no_other_metadata;
use super::{Queue, State};
use crate::memory::{Holding, Share};

/// The maximum number of waiting requests that are kept. For further requests, only the name is kept, so that a flood
/// of requests does not use all memory. These requests are read again at their turn.
pub(super) const MAX_OBJECTS: usize = 2048;

/// The total memory limit for these requests, which is enough for 2,000 normal requests.
pub(super) const MAX_OBJECT_BYTES: usize = 8 * 1024 * 1024;

/// The maximum number of concurrent requests. It is high so that machines that join together are looked up together,
/// and slow requests do not delay other requests. The clients limit concurrent calls to an API server.
pub(super) const MAX_RUNNING: usize = 256;

/// The memory limit for concurrent requests: 256 small requests, or one request of the maximum size that an API server
/// stores.
const MAX_RUNNING_BYTES: usize = MAX_RUNNING * COPIES * SMALL;

/// The minimum reservation for a request. Most normal requests need less, which leaves a reserve for growth while they
/// wait.
const SMALL: usize = 8 * 1024;

/// The maximum size of a request that is processed even if there is no memory for it, so that normal requests are
/// always answered. Each cluster can have one request like this in progress.
const ALWAYS: usize = 2 * SMALL;

/// The number of copies of a request in progress: as read, as parsed, as answered, and as the JSON of the answer.
const COPIES: usize = 4;

/// The pause between two checks whether the namespace uses too much memory.
const CHECK: Duration = Duration::from_secs(5);

/// The memory for a cluster's requests.
#[derive(Debug)]
pub(super) struct Room {
    /// The time of the next check whether the namespace uses too much memory.
    next_check: Instant,
    kept: Holding,
    objects: usize,
    object_bytes: usize,
    in_progress: Holding,
    running: usize,
    running_bytes: usize,
    /// Whether the memory for requests in progress is exhausted.
    is_short: bool,
}

impl Room {
    /// Creates a budget within this share.
    pub(super) fn new(share: &Share) -> Self {
        Self {
            next_check: Instant::now(),
            kept: share.holding(),
            objects: 0,
            object_bytes: 0,
            in_progress: share.holding(),
            running: 0,
            running_bytes: 0,
            is_short: false,
        }
    }

    /// Keeps the request, which uses `bytes` of memory, if there is enough memory.
    ///
    /// A request with unused metadata is not kept. It is read again at its turn, so that its answer contains the
    /// metadata.
    pub(super) fn keep(
        &mut self,
        csr: CertificateSigningRequest,
        bytes: usize,
    ) -> Option<Box<CertificateSigningRequest>> {
        let all = self.object_bytes.saturating_add(bytes);
        let is_full = self.objects >= MAX_OBJECTS || all > MAX_OBJECT_BYTES;
        if is_full || !has_no_other_metadata(&csr) || !self.kept.resize(all) {
            return None;
        }
        self.objects += 1;
        self.object_bytes = all;
        Some(Box::new(csr))
    }

    /// Releases the memory of an object with this number of bytes.
    pub(super) fn free(&mut self, bytes: usize) {
        self.objects = self.objects.saturating_sub(1);
        self.object_bytes = self.object_bytes.saturating_sub(bytes);
        self.kept.resize(self.object_bytes);
    }

    /// Whether kept requests use memory that the namespace must give back, if a check is due.
    fn exceeds(&mut self, now: Instant) -> bool {
        if self.objects == 0 || now < self.next_check {
            return false;
        }
        self.next_check = now + CHECK;
        self.kept.excess() > 0
    }

    /// Whether the concurrent work has reached its limit. One request can always be processed.
    pub(super) fn is_busy(&self) -> bool {
        let is_full = self.running >= MAX_RUNNING || self.running_bytes >= MAX_RUNNING_BYTES;
        is_full || self.is_short
    }

    /// Reserves memory for processing a request with this number of bytes. Returns whether processing can start.
    ///
    /// A large request waits for memory. Otherwise, large requests in many clusters would together exceed all limits.
    pub(super) fn begin(&mut self, bytes: usize) -> bool {
        let all = self.running_bytes.saturating_add(charge(bytes));
        let has_memory = self.in_progress.resize(all);
        if !has_memory && bytes > ALWAYS {
            return false;
        }
        self.running += 1;
        self.running_bytes = all;
        self.is_short = !has_memory;
        true
    }

    /// Releases the memory of a processed request.
    pub(super) fn end(&mut self, bytes: usize) {
        self.running = self.running.saturating_sub(1);
        self.running_bytes = self.running_bytes.saturating_sub(charge(bytes));
        self.is_short = !self.in_progress.resize(self.running_bytes);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.in_use() == [0; 4]
    }

    /// The number and the memory of kept requests, and of requests in progress.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> [usize; 4] {
        let Self {
            objects,
            object_bytes,
            running,
            running_bytes,
            ..
        } = *self;
        [objects, object_bytes, running, running_bytes]
    }
}

impl Queue {
    /// Drops kept requests, the last ones first, while their namespace uses more than half of the memory, and another
    /// namespace has a share. A dropped request is read again at its turn.
    pub(crate) fn give_back_excess(&mut self, now: Instant) {
        if !self.room.exceeds(now) {
            return;
        }
        let has_object = |uid: &&Arc<str>| {
            let entry = self.entries.get(*uid);
            entry.is_some_and(|entry| {
                matches!(
                    entry.state,
                    State::Waiting {
                        object: Some(_),
                        ..
                    }
                )
            })
        };
        let kept = self.turns.values().filter(has_object);
        let kept: Vec<Arc<str>> = kept.take(self.room.objects).cloned().collect();
        for uid in kept.into_iter().rev() {
            if self.room.kept.excess() == 0 {
                return;
            }
            if let Some(entry) = self.entries.get_mut(&uid)
                && let State::Waiting { object, .. } = &mut entry.state
                && object.take().is_some()
            {
                self.room.free(entry.bytes);
            }
        }
    }
}

/// The memory for processing a request with this number of bytes.
pub(super) fn charge(bytes: usize) -> usize {
    allowance(bytes).saturating_mul(COPIES)
}

/// The size limit for a request with this number of bytes when it is read again.
pub(crate) fn allowance(bytes: usize) -> usize {
    bytes.max(SMALL)
}
