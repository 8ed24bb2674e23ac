//! Machines that hold records and are no longer in the inventory.
//!
//! When a record is retired, the controller revokes the node's certificates and deletes its Node, and the node must
//! enroll again. Therefore one failed lookup is not sufficient for a retirement. An inventory can return an incomplete
//! list, an infrastructure provider can change its provider IDs, and an operator can restore backups in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::NodeName;

use super::record::Record;
use crate::pace::{Pace, retain};
use crate::unshared::Unshared;

/// The default time for which a machine must be missing before it counts as deleted.
pub const MISSING_MACHINE_TIMEOUT: Duration = Duration::from_mins(10);

/// The number of records that one round is allowed to retire in a cluster of any size.
const ALWAYS_ALLOWED: usize = 5;

/// In a larger cluster, the limit for one round is the number of live records divided by this number.
const ONE_OF: usize = 5;

/// The start time of each machine's absence, and the number of records that one round is allowed to retire.
///
/// All clones share the state, so the state is kept when a ledger is created again with different settings.
#[derive(Debug, Clone)]
pub struct Absences {
    timeout: Duration,
    /// Not shared: only one cluster uses this lock.
    state: Arc<Unshared<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The start of each absence on a monotonic clock, because the wall clock can be set forward between two rounds.
    since: BTreeMap<Holding, Duration>,
    /// The machines that were being deleted when they were last seen, with the time of the round.
    leaving: BTreeMap<Holding, Duration>,
    allowed: usize,
}

/// The records whose machines no longer exist.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// The records whose machines were deleted, as the controller observed.
    deleted: BTreeSet<Holding>,
    /// The records whose machines are missing without an observed deletion.
    unexpected: BTreeSet<Holding>,
}

impl Gone {
    /// Whether the machine of this record no longer exists.
    pub(super) fn contains(&self, holding: &Holding) -> bool {
        self.deleted.contains(holding) || self.unexpected.contains(holding)
    }
}

/// The holder of a name. When the holder changes, a new absence starts.
pub(super) type Holding = (NodeName, u64);

pub(super) fn holding(record: &Record) -> Holding {
    (record.node_name.clone(), record.generation)
}

impl Absences {
    /// Creates the state. A machine counts as deleted if it was missing for `timeout`, in at least two rounds.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            state: Arc::default(),
        }
    }

    /// Sets the number of records that one round is allowed to retire, as configured by an operator.
    pub fn allow(&self, retirements: usize) {
        self.state.lock().allowed = retirements;
    }

    /// Records a round. `missing` contains all missing machines. `leaving` contains the machines that are being
    /// deleted, and the missing machines whose deletion was observed. `unknown` contains the machines that could not be
    /// looked up, which restarts their absence, but does not undo an observed deletion. Returns the records whose
    /// machines no longer exist. `elapsed` is a monotonic time.
    pub(super) async fn round(
        &self,
        missing: BTreeSet<Holding>,
        (leaving, unknown): (BTreeSet<Holding>, BTreeSet<Holding>),
        elapsed: Duration,
    ) -> Gone {
        let is_missing = |holding: &Holding| missing.contains(holding);
        let may_be_gone = |holding: &Holding| is_missing(holding) || unknown.contains(holding);
        retain(&self.state, |state| &mut state.leaving, may_be_gone).await;
        retain(&self.state, |state| &mut state.since, is_missing).await;
        let mut pace = Pace::default();
        for holding in leaving {
            self.state.lock().leaving.insert(holding, elapsed);
            pace.step().await;
        }
        let mut gone = Gone::default();
        for holding in missing {
            // The lock is not held across an `await`. If the round is cancelled, the next round continues.
            let (since, was_leaving) = {
                let mut state = self.state.lock();
                let was_leaving = state.leaving.contains_key(&holding);
                let since = state.since.get(&holding).copied();
                if since.is_none() {
                    state.since.insert(holding.clone(), elapsed);
                }
                (since, was_leaving)
            };
            if since.is_some_and(|since| elapsed >= since + self.timeout) {
                let found = if was_leaving {
                    &mut gone.deleted
                } else {
                    &mut gone.unexpected
                };
                found.insert(holding);
            }
            pace.step().await;
        }
        gone
    }

    /// Removes the records that one round is not allowed to retire, because too many machines are missing without an
    /// observed deletion. Returns the number of removed records. `live` is the number of live records. A machine whose
    /// deletion was observed does not count and is not held back, because its deletion was intended, for example by a
    /// scale-down.
    pub(super) fn hold_back(&self, gone: &mut Gone, live: usize) -> Option<usize> {
        let unexpected = gone.unexpected.len();
        let may_retire = unexpected <= ALWAYS_ALLOWED
            || unexpected.saturating_mul(ONE_OF) <= live
            || unexpected <= self.state.lock().allowed;
        (!may_retire).then(|| {
            gone.unexpected.clear();
            unexpected
        })
    }
}

impl Default for Absences {
    fn default() -> Self {
        Self::new(MISSING_MACHINE_TIMEOUT)
    }
}
