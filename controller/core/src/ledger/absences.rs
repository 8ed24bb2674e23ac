//! Machines that hold records and that the inventory does not list any more.
//!
//! A record that is retired takes the node's certificates and its Node along, and nothing brings
//! them back but another enrolment. So one look is not enough: an inventory may answer with half a
//! list, a provider may rewrite its IDs, a backup may be restored in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::NodeName;
use parking_lot::Mutex;

use super::record::Record;

/// For how long a machine has to be missing, unless an operator says otherwise.
pub const MISSING_MACHINE_TIMEOUT: Duration = Duration::from_mins(10);

/// One round may retire as many records in any cluster.
const ALWAYS_ALLOWED: usize = 5;

/// In a larger cluster, one record of so many.
const ONE_OF: usize = 5;

/// Since when machines are missing, and how many records one round may retire.
///
/// A clone is the same memory: it outlives a ledger that is made anew with other settings.
#[derive(Debug, Clone)]
pub struct Absences {
    timeout: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// By a monotonic clock: the wall clock can be set ahead between two rounds.
    since: BTreeMap<Holding, Duration>,
    /// Machines that were being deleted when they were last seen.
    leaving: BTreeSet<Holding>,
    allowed: usize,
}

/// One holder of one name: the next one's absence begins anew.
pub(super) type Holding = (NodeName, u64);

pub(super) fn holding(record: &Record) -> Holding {
    (record.node_name.clone(), record.generation)
}

impl Absences {
    /// Machines are gone that are missing for so long, and in two rounds.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            state: Arc::default(),
        }
    }

    /// A person allows one round to retire as many records.
    pub fn allow(&self, retirements: usize) {
        self.state.lock().allowed = retirements;
    }

    /// Takes note of a round in which the machines of exactly these records are missing, and those of others are being
    /// deleted; gives those that are gone. `elapsed` is a monotonic time.
    pub(super) fn round(
        &self,
        missing: BTreeSet<Holding>,
        leaving: BTreeSet<Holding>,
        elapsed: Duration,
    ) -> BTreeSet<Holding> {
        // What a panic elsewhere leaves half done is a machine whose absence begins anew.
        let mut state = self.state.lock();
        state.leaving.retain(|holding| missing.contains(holding));
        state.leaving.extend(leaving);
        let former = std::mem::take(&mut state.since);
        let mut gone = BTreeSet::new();
        for holding in missing {
            let since = former.get(&holding).copied();
            if since.is_some_and(|since| elapsed >= since + self.timeout) {
                gone.insert(holding.clone());
            }
            state.since.insert(holding, since.unwrap_or(elapsed));
        }
        gone
    }

    /// Whether one round may retire these of `live` records. Machines that were seen while they were being deleted are
    /// not counted: somebody deleted them, as in a scale-down.
    pub(super) fn may_retire(&self, gone: &BTreeSet<Holding>, live: usize) -> bool {
        let state = self.state.lock();
        let unexpected = gone.difference(&state.leaving).count();
        unexpected <= ALWAYS_ALLOWED
            || unexpected.saturating_mul(ONE_OF) <= live
            || gone.len() <= state.allowed
    }
}

impl Default for Absences {
    fn default() -> Self {
        Self::new(MISSING_MACHINE_TIMEOUT)
    }
}
