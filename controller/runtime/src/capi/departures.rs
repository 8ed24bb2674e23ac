//! Machines whose deletion was observed in a watch.
//!
//! The sweep of the records reads the Machines only once per minute, and a Machine can be deleted in less time. A
//! deletion that a watch reports is intended. A Machine that is only missing from a list does not count as deleted. The
//! same applies to a pool member without a Machine, which a scale-down removes from the pool's list.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::objects::ObjectKey;
use crate::memory::KeptLimit;
use crate::shared::{Lock, Shared, Swept};

/// The time for which a deletion is kept. The next sweep reads the deletion, and remembers it as long as the Machine is
/// missing. During an outage of the workload cluster, and while a Cluster is not served, no sweep reads it.
const KEPT: Duration = Duration::from_hours(24);

/// The time for which a deletion is kept if there are many deletions. It is longer than the pause between two sweeps.
const KEPT_AMONG_MANY: Duration = Duration::from_hours(1);

/// The maximum number of deletions in one namespace: the number of nodes in the largest cluster that Kubernetes
/// supports. If there are more deletions, the other deleted Machines count as missing.
const MAX_OF_NAMESPACE: usize = 5_000;

/// The maximum number of deletions in all namespaces. Each deletion contains a name, or a provider ID, of at most 253
/// bytes.
const MAX: usize = 50_000;

/// The limit for all namespaces. The largest namespaces together leave a part of [`MAX`] for other namespaces.
const ALL: KeptLimit = KeptLimit::new(MAX);

/// The number of entries that each addition checks for expiry.
const CHECKED: usize = 8;

/// The Machines whose deletion was observed.
#[derive(Debug)]
pub(super) struct Departures(Shared<State>);

#[derive(Debug, Default)]
struct State {
    /// The time at which each deletion was last observed.
    seen: Swept<ObjectKey, Instant>,
    /// The number of entries in each namespace.
    of_namespace: BTreeMap<String, usize>,
}

impl Default for Departures {
    fn default() -> Self {
        Self(Shared::new(Lock::Departures, State::default()))
    }
}

impl Departures {
    /// Records that the deletion of this Machine was observed.
    pub(super) fn note(&self, machine: &ObjectKey) {
        let now = Instant::now();
        self.0.write(|State { seen, of_namespace }| {
            let is_crowded = seen.len() > MAX / 2;
            seen.sweep(CHECKED, |other, at| {
                let count = of_namespace.get(&other.namespace).copied();
                let are_many = is_crowded || count > Some(MAX_OF_NAMESPACE / 2);
                let kept = if are_many { KEPT_AMONG_MANY } else { KEPT };
                let is_over = now.duration_since(*at) >= kept;
                if is_over {
                    release(of_namespace, &other.namespace);
                }
                is_over
            });
            if let Some(at) = seen.get_mut(machine) {
                *at = now;
                return;
            }
            let known = of_namespace.get(&machine.namespace).copied();
            let namespaces = of_namespace.len() + usize::from(known.is_none());
            let count = known.unwrap_or_default();
            let has_room = ALL.room((count, seen.len()), namespaces) > 0;
            if has_room && count < MAX_OF_NAMESPACE {
                of_namespace.insert(machine.namespace.clone(), count + 1);
                seen.insert(machine.clone(), now, |_, _| false);
            }
        });
    }

    /// Discards the deletion, because a Machine with this name exists.
    pub(super) fn forget(&self, machine: &ObjectKey) {
        // Fast path without the write lock: for most Machines, no deletion is recorded.
        if self.0.read(|state| state.seen.get(machine).is_none()) {
            return;
        }
        self.0.write(|State { seen, of_namespace }| {
            if seen.remove(machine).is_some() {
                release(of_namespace, &machine.namespace);
            }
        });
    }

    /// Whether the deletion of this Machine was observed.
    pub(super) fn has(&self, machine: &ObjectKey) -> bool {
        let at = self.0.read(|state| state.seen.get(machine).copied());
        at.is_some_and(|at| at.elapsed() < KEPT)
    }
}

/// Removes one entry from the count of its namespace.
fn release(of_namespace: &mut BTreeMap<String, usize>, namespace: &str) {
    if let Some(count) = of_namespace.get_mut(namespace) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            of_namespace.remove(namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::shared::testing::most_visited;

    fn key(namespace: &str, number: usize) -> ObjectKey {
        ObjectKey::new(namespace, format!("m{number}"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_is_kept_for_a_day_after_it_was_last_seen() {
        let departures = Departures::default();
        let machine = key("a", 1);
        departures.note(&machine);
        advance(Duration::from_mins(30)).await;
        departures.note(&machine);
        advance(KEPT.saturating_sub(Duration::from_secs(1))).await;
        assert!(departures.has(&machine));
        assert!(!departures.has(&key("b", 1)));

        advance(Duration::from_secs(1)).await;
        assert!(!departures.has(&machine));
    }

    #[tokio::test(start_paused = true)]
    async fn the_deletions_of_a_namespace_are_limited() {
        let departures = Departures::default();
        let note = |namespace: &str, count: usize| {
            let numbers = 0..count;
            numbers.for_each(|number| departures.note(&key(namespace, number)));
        };
        note("a", MAX_OF_NAMESPACE + 1);
        assert!(departures.has(&key("a", MAX_OF_NAMESPACE - 1)));
        assert!(!departures.has(&key("a", MAX_OF_NAMESPACE)));
        // When one deletion is discarded, there is space for another deletion.
        departures.forget(&key("a", 0));
        departures.forget(&key("a", 0));
        note("a", MAX_OF_NAMESPACE + 1);
        assert!(departures.has(&key("a", 0)));
        assert!(!departures.has(&key("a", MAX_OF_NAMESPACE)));

        // Expired deletions are discarded first, even if they are in other namespaces.
        advance(KEPT).await;
        note("c", 1);
        assert!(departures.has(&key("c", 0)));
        (0..MAX / CHECKED + 3).for_each(|_| departures.note(&key("c", 0)));
        let left = departures
            .0
            .read(|state| (state.seen.len(), state.of_namespace.clone()));
        assert_eq!(left, (1, BTreeMap::from([("c".to_owned(), 1)])));
    }

    #[tokio::test(start_paused = true)]
    async fn many_deletions_of_a_namespace_are_kept_for_an_hour() {
        let departures = Departures::default();
        (0..MAX_OF_NAMESPACE).for_each(|number| departures.note(&key("a", number)));
        departures.note(&key("b", 0));

        advance(KEPT_AMONG_MANY).await;
        (0..MAX_OF_NAMESPACE / CHECKED + 3).for_each(|_| departures.note(&key("c", 0)));

        let left = departures.0.read(|state| state.of_namespace.clone());
        let expected = [("a", MAX_OF_NAMESPACE / 2), ("b", 1), ("c", 1)];
        let expected = expected.map(|(namespace, count)| (namespace.to_owned(), count));
        assert_eq!(left, BTreeMap::from(expected));
        assert!(departures.has(&key("b", 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_deletions_of_many_namespaces_leave_a_part_to_another() {
        let departures = Departures::default();
        for namespace in 0..2 * MAX / MAX_OF_NAMESPACE {
            let namespace = namespace.to_string();
            (0..MAX_OF_NAMESPACE).for_each(|number| departures.note(&key(&namespace, number)));
        }
        let all = departures.0.read(|state| state.seen.len());
        assert!(all <= MAX, "{all}");

        departures.note(&key("c", 0));

        assert!(departures.has(&key("c", 0)));
    }

    #[tokio::test]
    async fn recording_a_deletion_visits_few_others() {
        let departures = Departures::default();
        (0..1000).for_each(|number| departures.note(&key("a", number)));

        let visited = most_visited(|| {
            departures.note(&key("a", 1000));
            assert!(departures.has(&key("a", 1000)));
            departures.forget(&key("a", 1000));
        });

        assert!(visited[&Lock::Departures] <= 2 * CHECKED, "{visited:?}");
    }
}
