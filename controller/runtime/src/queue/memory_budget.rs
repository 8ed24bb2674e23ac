//! Limits of the memory for the requests of one cluster, waiting and in progress.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use super::kept::has_no_other_metadata;
use crate::memory::{Holding, Share};

/// The limit of waiting requests that are kept. Of the others only the name is kept, so that a flood of requests does
/// not take all memory; they are read again at their turn.
pub(super) const MAX_OBJECTS: usize = 2048;

/// The limit of the memory of these requests together: that of two thousand honest ones.
pub(super) const MAX_OBJECT_BYTES: usize = 8 * 1024 * 1024;

/// The limit of concurrent requests: high enough that machines that join together are looked up together, and that
/// slow requests do not delay others. The clients limit concurrent calls of an API server.
pub(super) const MAX_RUNNING: usize = 256;

/// The limit of the memory of concurrent requests: 256 small ones, or one of the largest that an API server stores.
const MAX_RUNNING_BYTES: usize = MAX_RUNNING * COPIES * SMALL;

/// The least that is reserved for a request: more than most honest ones have, with room to grow while it waits.
const SMALL: usize = 8 * 1024;

/// The most of a request that is processed also without memory for it, so that honest requests are always answered. One
/// of each cluster can be in progress so.
const ALWAYS: usize = 2 * SMALL;

/// The copies of a request in progress: as it was read, parsed, answered, and as the JSON of the answer.
const COPIES: usize = 4;

/// The memory of a cluster's requests.
#[derive(Debug)]
pub(super) struct Room {
    kept: Holding,
    objects: usize,
    object_bytes: usize,
    in_progress: Holding,
    running: usize,
    running_bytes: usize,
    /// Whether there is no memory for more requests in progress.
    is_short: bool,
}

impl Room {
    /// Room within this share.
    pub(super) fn new(share: &Share) -> Self {
        Self {
            kept: share.holding(),
            objects: 0,
            object_bytes: 0,
            in_progress: share.holding(),
            running: 0,
            running_bytes: 0,
            is_short: false,
        }
    }

    /// Keeps the request, of `bytes` in memory, if there is room for it.
    ///
    /// A request with other metadata than the ones in use is not kept: it is read again at its turn, and its answer
    /// carries them.
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

    /// Releases the room of an object of so many bytes.
    pub(super) fn free(&mut self, bytes: usize) {
        self.objects = self.objects.saturating_sub(1);
        self.object_bytes = self.object_bytes.saturating_sub(bytes);
        self.kept.resize(self.object_bytes);
    }

    /// Whether the concurrent work has reached its limit. One request is always in progress.
    pub(super) fn is_busy(&self) -> bool {
        let is_full = self.running >= MAX_RUNNING || self.running_bytes >= MAX_RUNNING_BYTES;
        is_full || self.is_short
    }

    /// Reserves memory to process a request of so many bytes. Returns whether it can begin: a large one waits for
    /// memory, or the large ones of many clusters would exceed all limits together.
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

    /// Releases this memory.
    pub(super) fn end(&mut self, bytes: usize) {
        self.running = self.running.saturating_sub(1);
        self.running_bytes = self.running_bytes.saturating_sub(charge(bytes));
        self.is_short = !self.in_progress.resize(self.running_bytes);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            objects,
            object_bytes,
            running,
            running_bytes,
            ..
        } = *self;
        [objects, object_bytes, running, running_bytes] == [0; 4]
    }
}

/// The memory of a request of so many bytes in progress.
fn charge(bytes: usize) -> usize {
    allowance(bytes).saturating_mul(COPIES)
}

/// The limit of a request of so many bytes when it is read again.
pub(crate) fn allowance(bytes: usize) -> usize {
    bytes.max(SMALL)
}
