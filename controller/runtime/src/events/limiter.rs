//! Limits for Events on machines.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use node_attestation_core::cluster_line;
use node_attestation_core::rate_limit::Rate;
use tokio::time::Instant;

use super::cut;
use crate::log_lines::ClusterLines;

/// The rate of Events on one machine: enough for a join and a few failed attempts.
const OF_MACHINE: Rate = Rate {
    burst: 10,
    every: Duration::from_mins(1),
};

/// The rate of Events on all machines in a cluster: enough for 1,000 machines that join at the same time. Kubernetes
/// keeps Events for one hour, so a flood creates at most 4,600 Events.
const OF_CLUSTER: Rate = Rate {
    burst: 1000,
    every: Duration::from_secs(1),
};

/// The maximum number of machines with their own budget.
const MAX_MACHINES: usize = 5000;

/// The time at which a budget will be full again.
type WholeAt = Option<Instant>;

/// Takes one Event from the budgets of a machine and of the cluster, if neither is exhausted.
fn take(machine: &mut WholeAt, cluster: &mut WholeAt, now: Instant) -> bool {
    let [mut of_machine, mut of_cluster] = [&machine, &cluster].map(|at| at.unwrap_or(now));
    let taken = OF_MACHINE.take(&mut of_machine, now).is_ok()
        && OF_CLUSTER.take(&mut of_cluster, now).is_ok();
    if taken {
        (*machine, *cluster) = (Some(of_machine), Some(of_cluster));
    }
    taken
}

/// An Event that is not written yet, with or without the memory that is reserved for it.
pub(super) trait PendingEvent {
    fn event(&self) -> &Event;

    fn event_mut(&mut self) -> &mut Event;
}

/// Limits Events with a budget for each machine and a budget for the cluster.
#[derive(Debug)]
pub(super) struct Limiter<E> {
    lines: ClusterLines,
    cluster: WholeAt,
    /// The machines, keyed by a hash of their namespace and name. A tenant determines the number and the names of
    /// machines.
    machines: HashMap<u64, Machine<E>>,
    hashes: RandomState,
    /// The number of dropped Events for machines without their own budget.
    left_out: u64,
}

#[derive(Debug)]
struct Machine<E> {
    whole_at: WholeAt,
    left_out: u64,
    last: Option<Box<E>>,
}

impl<E> Default for Machine<E> {
    fn default() -> Self {
        Self {
            whole_at: None,
            left_out: 0,
            last: None,
        }
    }
}

impl<E: PendingEvent> Limiter<E> {
    /// Creates full budgets. `lines` is the cluster's log-line budget.
    pub(super) fn new(lines: ClusterLines) -> Self {
        Self {
            lines,
            cluster: None,
            machines: HashMap::new(),
            hashes: RandomState::new(),
            left_out: 0,
        }
    }

    /// Returns the Event if `has_room` is set and the budgets allow the Event.
    pub(super) fn admit(
        &mut self,
        pending: Box<E>,
        has_room: bool,
        now: Instant,
    ) -> Option<Box<E>> {
        let regarding = pending.event().regarding.as_ref();
        let machine = regarding.map(|object| (&object.namespace, &object.name));
        let key = self.hashes.hash_one(machine);
        if self.machines.len() >= MAX_MACHINES && !self.machines.contains_key(&key) {
            self.machines.retain(|_, machine| {
                machine.left_out > 0 || machine.whole_at.is_some_and(|at| at > now)
            });
            if self.machines.len() >= MAX_MACHINES {
                if self.left_out == 0 {
                    cluster_line!(
                        &self.lines,
                        WARN,
                        "skipping Events on machines: there are too many machines"
                    );
                }
                self.left_out += 1;
                return None;
            }
        }
        let machine = self.machines.entry(key).or_default();
        if !has_room || !take(&mut machine.whole_at, &mut self.cluster, now) {
            machine.left_out += 1;
            machine.last = Some(pending);
            return None;
        }
        Some(pending)
    }

    /// Returns the last dropped Event for each machine, with the number of dropped Events. The number of results is
    /// limited by the budgets and by `room`.
    pub(super) fn left_out(&mut self, now: Instant, room: usize) -> Vec<Box<E>> {
        let mut summaries = Vec::new();
        for machine in self.machines.values_mut() {
            if summaries.len() < room
                && machine.last.is_some()
                && take(&mut machine.whole_at, &mut self.cluster, now)
                && let Some(mut pending) = machine.last.take()
            {
                let more = std::mem::take(&mut machine.left_out) - 1;
                if more > 0 {
                    let event = pending.event_mut();
                    let note = event.note.take().unwrap_or_default();
                    let note = format!("{more} more Events were skipped before this one: {note}");
                    event.note = Some(cut(note));
                }
                summaries.push(pending);
            }
        }
        summaries
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    impl PendingEvent for Event {
        fn event(&self) -> &Event {
            self
        }

        fn event_mut(&mut self) -> &mut Event {
            self
        }
    }

    fn limiter() -> Limiter<Event> {
        Limiter::new(ClusterLines::of_namespace("a"))
    }

    fn event(machine: &str, note: &str) -> Event {
        Event {
            note: Some(note.to_owned()),
            regarding: Some(ObjectReference {
                name: Some(machine.to_owned()),
                ..ObjectReference::default()
            }),
            ..Event::default()
        }
    }

    /// Adds this many Events about one machine. Returns the number of Events that the budgets permit.
    fn admitted(limiter: &mut Limiter<Event>, machine: &str, count: usize, now: Instant) -> usize {
        let events = (0..count).map(|number| event(machine, &number.to_string()));
        events
            .filter_map(|event| limiter.admit(Box::new(event), true, now))
            .count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_events_limits_only_its_machine_and_is_summarized() {
        let (mut limiter, now) = (limiter(), Instant::now());

        assert_eq!(admitted(&mut limiter, "flooded", 10_000, now), 10);
        assert_eq!(admitted(&mut limiter, "other", 3, now), 3);
        assert!(limiter.left_out(now, MAX_MACHINES).is_empty());

        let later = now + OF_MACHINE.every;
        let summaries = limiter.left_out(later, MAX_MACHINES);
        let notes: Vec<_> = summaries
            .iter()
            .filter_map(|one| one.note.as_deref())
            .collect();
        assert_eq!(
            notes,
            ["9989 more Events were skipped before this one: 9999"]
        );
        assert!(
            limiter
                .left_out(later + OF_CLUSTER.every, MAX_MACHINES)
                .is_empty(),
            "once"
        );
        assert_eq!(admitted(&mut limiter, "flooded", 5, later), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_events_of_a_cluster_are_limited_for_any_number_of_machines() {
        let (mut limiter, now) = (limiter(), Instant::now());
        let machines = (0..4 * MAX_MACHINES).map(|number| number.to_string());
        let mut written = 0;
        for machine in machines {
            written += admitted(&mut limiter, &machine, 2, now);
        }

        assert_eq!(written, 1000);
        assert_eq!(limiter.machines.len(), MAX_MACHINES);
        let hour = 60 * 60;
        for second in 1..=hour {
            let later = now + Duration::from_secs(second);
            written += limiter.left_out(later, MAX_MACHINES).len();
        }
        assert!(written <= 4600, "{written}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_with_a_full_budget_leaves_room_for_another() {
        let (mut limiter, now) = (limiter(), Instant::now());
        for machine in 0..MAX_MACHINES {
            admitted(&mut limiter, &machine.to_string(), 1, now);
        }
        let full = now + OF_MACHINE.every;

        let before = full - Duration::from_millis(1);
        assert_eq!(admitted(&mut limiter, "early", 1, before), 0);
        assert_eq!(admitted(&mut limiter, "late", 1, full), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_above_the_limit_is_written_later_unchanged() {
        let (mut limiter, now) = (limiter(), Instant::now());
        for machine in ["1", "2", "3"] {
            let joined = Box::new(event(machine, "joined"));
            assert_eq!(limiter.admit(joined, false, now), None);
        }

        let mut summaries = limiter.left_out(now, 2);
        assert_eq!(summaries.len(), 2);
        summaries.extend(limiter.left_out(now, 2));

        let notes = summaries.iter().filter_map(|event| event.note.as_deref());
        assert_eq!(notes.collect::<Vec<_>>(), ["joined"; 3]);
        assert!(limiter.left_out(now, 2).is_empty());
    }
}
