//! Machines that hold records and are no longer in the inventory.
//!
//! Retiring a record revokes the node's certificates and deletes its Node. Only a new enrollment restores them. So one
//! lookup is not sufficient: an inventory can return half a list, a provider can rewrite its IDs, and a backup can be
//! restored in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::NodeName;

use super::record::Record;

use crate::unshared::Unshared;

/// The default time for which a machine must be missing before it counts as gone.
pub const MISSING_MACHINE_TIMEOUT: Duration = Duration::from_mins(10);

/// The number of records that one round can always retire, in any cluster.
const ALWAYS_ALLOWED: usize = 5;

/// In a larger cluster, one round can retire one of this number of live records.
const ONE_OF: usize = 5;

/// The times since which machines are missing, and the number of records that one round can retire.
///
/// Clones share their state, so it survives when a ledger is created again with other settings.
#[derive(Debug, Clone)]
pub struct Absences {
    timeout: Duration,
    /// Only one cluster uses it.
    state: Arc<Unshared<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The start of each absence, by a monotonic clock: the wall clock can be set ahead between two rounds.
    since: BTreeMap<Holding, Duration>,
    /// The machines that were being deleted when they were last seen.
    leaving: BTreeSet<Holding>,
    allowed: usize,
}

/// One holder of one name. For the next holder, the absence starts again.
pub(super) type Holding = (NodeName, u64);

pub(super) fn holding(record: &Record) -> Holding {
    (record.node_name.clone(), record.generation)
}

impl Absences {
    /// Creates the state. A machine counts as gone when it is missing for `timeout`, and in at least two rounds.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            state: Arc::default(),
        }
    }

    /// Sets the number of records that an operator allows one round to retire.
    pub fn allow(&self, retirements: usize) {
        self.state.lock().allowed = retirements;
    }

    /// Records a round. In this round, exactly the machines of `missing` are missing, and the machines of `leaving` are
    /// being deleted, or are missing after their deletion was seen. Returns the records whose machines are gone. `elapsed` is a monotonic time.
    pub(super) fn round(
        &self,
        missing: BTreeSet<Holding>,
        leaving: BTreeSet<Holding>,
        elapsed: Duration,
    ) -> BTreeSet<Holding> {
        // After a panic while the lock is held, the absence of some machines starts again.
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

    /// Whether one round can retire these records, out of `live` live records. Machines that were seen while they were
    /// being deleted do not count, because their deletion was intended, for example by a scale-down.
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
