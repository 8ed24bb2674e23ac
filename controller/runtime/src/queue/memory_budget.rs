//! How much of the requests of one cluster is held in memory: those that wait, and those that are
//! worked on.

use std::io;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::memory::{Holding, Share};

/// So many queued requests are kept whole; of the others only the name is, so that a flood of
/// requests cannot take all memory. What is not kept is read again when its turn comes.
pub(super) const MAX_OBJECTS: usize = 1024;

/// So much JSON is kept of the queued requests in all: what a thousand honest ones take.
pub(super) const MAX_OBJECT_BYTES: usize = 4 * 1024 * 1024;

/// How many requests are worked on at once: enough that machines which join together are asked
/// about together, and that some slow ones do not hold the others up. What an API server is asked
/// at once is bounded where it is asked.
pub(super) const MAX_RUNNING: usize = 256;

/// How much JSON is worked on at once: 256 requests, each as large as is taken without looking, or
/// one of the largest that an API server stores.
const MAX_RUNNING_BYTES: usize = MAX_RUNNING * SMALL;

/// What a request is taken for at least: more than an honest one has, and what it may grow by while
/// it waits.
const SMALL: usize = 16 * 1024;

/// The memory that a cluster's requests take.
#[derive(Debug)]
pub(super) struct Room {
    memory: Holding,
    objects: usize,
    object_bytes: usize,
    running: usize,
    running_bytes: usize,
}

impl Room {
    /// Room that is taken from this share.
    pub(super) fn new(share: &Share) -> Self {
        Self {
            memory: share.holding(),
            objects: 0,
            object_bytes: 0,
            running: 0,
            running_bytes: 0,
        }
    }

    /// Keeps the object if there is room for it. It is `bytes` of JSON.
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

    /// An object of so many bytes is not kept any longer.
    pub(super) fn free(&mut self, bytes: usize) {
        self.objects = self.objects.saturating_sub(1);
        self.object_bytes = self.object_bytes.saturating_sub(bytes);
        self.memory.resize(self.object_bytes);
    }

    /// Whether so much is worked on that nothing else is begun.
    pub(super) fn is_busy(&self) -> bool {
        self.running >= MAX_RUNNING || self.running_bytes >= MAX_RUNNING_BYTES
    }

    /// One of so many bytes is worked on.
    pub(super) fn begin(&mut self, bytes: usize) {
        self.running += 1;
        self.running_bytes = self.running_bytes.saturating_add(allowance(bytes));
    }

    /// It is worked on no longer.
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

/// How long a request that had so many bytes may be when it is read again.
pub(super) fn allowance(bytes: usize) -> usize {
    bytes.max(SMALL)
}

/// How long the object is as JSON, which is about what it takes in memory.
pub(crate) fn json_len(csr: &CertificateSigningRequest) -> usize {
    let mut length = Length(0);
    // What cannot be told of is not kept.
    serde_json::to_writer(&mut length, csr).map_or(usize::MAX, |()| length.0)
}

struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
