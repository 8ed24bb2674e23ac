//! The memory for Events that wait for their writer.

use std::mem;
use std::sync::Arc;

use k8s_openapi::api::events::v1::Event;
use node_attestation_core::unshared::Unshared;

use super::limiter::PendingEvent;
use super::{Addressed, Destination};
use crate::memory::{Holding, Share};

/// The memory that is reserved for one cluster's waiting Events.
const OWN_MEMORY: usize = 256 * 1024;

/// The memory for an Event in addition to its note and the names of its objects.
const EVENT_LEN: usize = 2 * 1024;

/// A waiting Event, with its memory.
#[derive(Debug)]
pub(super) struct Waiting {
    cluster: Destination,
    event: Event,
    bytes: usize,
    /// Not shared: only one cluster uses this lock.
    memory: Arc<Unshared<Memory>>,
}

/// The memory for one cluster's waiting Events.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) bytes: usize,
    pub(super) held: Holding,
}

impl Memory {
    pub(super) fn of(namespace: &str) -> Self {
        Self {
            bytes: 0,
            held: Share::new(namespace, OWN_MEMORY).holding(),
        }
    }

    /// Changes the size of the reserved memory. If there is not enough memory, returns `false` and does not change the
    /// size.
    fn resize(&mut self, bytes: usize) -> bool {
        let has_room = self.held.resize(bytes);
        if has_room {
            self.bytes = bytes;
        }
        has_room
    }
}

impl Waiting {
    /// Reserves memory for the Event. `None` if there is not enough memory.
    pub(super) fn new((cluster, event): Addressed, memory: &Arc<Unshared<Memory>>) -> Option<Self> {
        let (mut taken, bytes) = (memory.lock(), len(&event));
        let all = taken.bytes + bytes;
        taken.resize(all).then(|| Self {
            cluster,
            event,
            bytes,
            memory: memory.clone(),
        })
    }

    /// The cluster to write the Event to.
    pub(super) fn cluster(&self) -> Destination {
        self.cluster
    }

    /// Returns the Event, and releases its memory.
    pub(super) fn take(mut self) -> Addressed {
        (self.cluster, mem::take(&mut self.event))
    }
}

impl PendingEvent for Waiting {
    fn event(&self) -> &Event {
        &self.event
    }

    fn event_mut(&mut self) -> &mut Event {
        &mut self.event
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut memory = self.memory.lock();
        let bytes = memory.bytes.saturating_sub(self.bytes);
        memory.resize(bytes);
    }
}

/// An upper bound for the memory that an Event uses.
fn len(event: &Event) -> usize {
    let objects = [&event.regarding, &event.related];
    let named = objects.into_iter().flatten().flat_map(|object| {
        let names = [&object.name, &object.namespace, &object.uid];
        names.into_iter().flatten().map(String::len)
    });
    EVENT_LEN + event.note.as_ref().map_or(0, String::len) + named.sum::<usize>()
}
