//! Objects that are not watched, and are therefore read again after a short time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use node_attestation_core::unshared::Unshared;

use super::super::objects::Reference;

/// The interval between two reads of an `InfraMachinePool`, which is not watched.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// Objects of one Cluster that were read within the last [`READ_AGAIN`], with the times of the reads.
#[derive(Debug, Default)]
pub(super) struct Recent<T>(Unshared<BTreeMap<Reference, (Instant, T)>>);

impl<T: Clone> Recent<T> {
    /// Removes old entries. The cost grows with the number of entries, so lookups do not do this.
    pub(super) fn clean(&self) {
        let mut entries = self.0.lock();
        entries.retain(|_, (at, _)| at.elapsed() < READ_AGAIN);
    }

    pub(super) fn get(&self, reference: &Reference) -> Option<T> {
        let entries = self.0.lock();
        let (at, read) = entries.get(reference)?;
        (at.elapsed() < READ_AGAIN).then(|| read.clone())
    }

    pub(super) fn note(&self, reference: Reference, read: T) {
        self.0.lock().insert(reference, (Instant::now(), read));
    }
}
