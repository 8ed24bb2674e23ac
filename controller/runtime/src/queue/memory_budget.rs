//! Limits of the memory for the requests of one cluster, waiting and in progress.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::memory::{Holding, Share};

/// The limit of waiting requests that are kept whole. Of the others only the name is kept, so that a flood of
/// requests does not take all memory; they are read again at their turn.
pub(super) const MAX_OBJECTS: usize = 2048;

/// The limit of the JSON of these requests together: that of two thousand honest ones.
pub(super) const MAX_OBJECT_BYTES: usize = 8 * 1024 * 1024;

/// The limit of concurrent requests: high enough that machines that join together are looked up together, and that
/// slow requests do not delay others. The clients limit concurrent calls of an API server.
pub(super) const MAX_RUNNING: usize = 256;

/// The limit of the JSON of concurrent requests: 256 small ones, or one of the largest that an API server stores.
const MAX_RUNNING_BYTES: usize = MAX_RUNNING * SMALL;

/// The least that is reserved for a request: more than an honest one has, with room to grow while it waits.
const SMALL: usize = 16 * 1024;

/// The memory of a cluster's requests.
#[derive(Debug)]
pub(super) struct Room {
    memory: Holding,
    objects: usize,
    object_bytes: usize,
    running: usize,
    running_bytes: usize,
}

impl Room {
    /// Room within this share.
    pub(super) fn new(share: &Share) -> Self {
        Self {
            memory: share.holding(),
            objects: 0,
            object_bytes: 0,
            running: 0,
            running_bytes: 0,
        }
    }

    /// Keeps the object, of `bytes` of JSON, if there is room for it.
    pub(super) fn keep(
        &mut self,
        csr: CertificateSigningRequest,
        bytes: usize,
    ) -> Option<Box<CertificateSigningRequest>> {
        let all = self.object_bytes.saturating_add(bytes);
        let is_full = self.objects >= MAX_OBJECTS || all > MAX_OBJECT_BYTES;
        if is_full || !self.memory.resize(all) {
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
        self.memory.resize(self.object_bytes);
    }

    /// Whether the concurrent work has reached its limit.
    pub(super) fn is_busy(&self) -> bool {
        self.running >= MAX_RUNNING || self.running_bytes >= MAX_RUNNING_BYTES
    }

    /// Reserves memory to process a request of so many bytes.
    pub(super) fn begin(&mut self, bytes: usize) {
        self.running += 1;
        self.running_bytes = self.running_bytes.saturating_add(allowance(bytes));
    }

    /// Releases this memory.
    pub(super) fn end(&mut self, bytes: usize) {
        self.running = self.running.saturating_sub(1);
        self.running_bytes = self.running_bytes.saturating_sub(allowance(bytes));
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

/// The length of `apiVersion` and `kind`, at least: an item of a list has them only when it is read again.
const TYPES: usize = 128;

/// The limit of a request of so many bytes when it is read again.
pub(super) fn allowance(bytes: usize) -> usize {
    bytes.saturating_add(TYPES).max(SMALL)
}

/// The length of the object's JSON, which is close to its size in memory.
pub(crate) fn json_len(csr: &CertificateSigningRequest) -> usize {
    // An object that cannot be serialized is not kept.
    serde_json::to_vec(csr).map_or(usize::MAX, |json| json.len())
}
