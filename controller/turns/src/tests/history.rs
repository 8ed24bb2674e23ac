//! Random histories of turns.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// The Clusters in three namespaces.
const CLUSTERS: [(&str, &str); 6] = [
    ("a", "1"),
    ("a", "2"),
    ("a", "3"),
    ("b", "1"),
    ("b", "2"),
    ("c", "1"),
];

#[derive(Debug, Clone)]
enum Event {
    /// A caller for this Cluster waits for a turn.
    Waits(usize),
    /// A caller ends its turn, or stops waiting.
    Ends(Index),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..CLUSTERS.len()).prop_map(Event::Waits),
        2 => any::<Index>().prop_map(Event::Ends),
    ]
}

struct Caller {
    cluster: usize,
    is_running: bool,
    granted: oneshot::Receiver<()>,
    /// Dropping this value ends the turn.
    _turn: Turn,
}

struct World {
    limits: TurnLimits,
    turns: FairTurns,
    /// The callers, in the order of arrival.
    callers: Vec<Caller>,
}

fn namespace(cluster: usize) -> &'static str {
    CLUSTERS[cluster].0
}

impl World {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Waits(cluster) => {
                let (namespace, name) = CLUSTERS[*cluster];
                let (turn, granted) = self.turns.line(&key(namespace, name)).wait();
                self.callers.push(Caller {
                    cluster: *cluster,
                    is_running: false,
                    granted,
                    _turn: turn,
                });
            }
            Event::Ends(_) if self.callers.is_empty() => {}
            Event::Ends(which) => drop(self.callers.remove(which.index(self.callers.len()))),
        }
        self.check();
    }

    fn running(&self, is_counted: impl Fn(usize) -> bool) -> usize {
        let callers = self.callers.iter();
        let running = callers.filter(|caller| caller.is_running && is_counted(caller.cluster));
        running.count()
    }

    fn in_namespace(&self, of: &str) -> usize {
        self.running(|cluster| namespace(cluster) == of)
    }

    /// The Clusters with a waiting caller that have fewer turns than their limit.
    fn ready(&self) -> Vec<usize> {
        let waiting = self.callers.iter().filter(|caller| !caller.is_running);
        let clusters = waiting.map(|caller| caller.cluster);
        let is_ready =
            |cluster: &usize| self.running(|running| running == *cluster) < self.limits.of_cluster;
        clusters.filter(is_ready).collect()
    }

    /// The limit on turns for one namespace, and the number of turns that are reserved for namespaces without a turn.
    fn share(&self) -> (usize, usize) {
        let mut namespaces = self.callers.iter().map(|caller| namespace(caller.cluster));
        let first = namespaces.next();
        if namespaces.all(|other| Some(other) == first) {
            (self.limits.all, 0)
        } else {
            (self.limits.all.div_ceil(2), 1)
        }
    }

    /// Checks the turns that have started, and that every turn that can start has started.
    fn check(&mut self) {
        let mut begun = Vec::new();
        for (at, caller) in self.callers.iter_mut().enumerate() {
            if !caller.is_running && caller.granted.try_recv().is_ok() {
                caller.is_running = true;
                begun.push(at);
            }
        }
        let ((share, reserved), ready) = (self.share(), self.ready());
        let running = self.running(|_| true);
        let unreserved = self.limits.all - reserved;
        assert!(running <= self.limits.all);
        for at in &begun {
            let cluster = self.callers[*at].cluster;
            let mut earlier = self.callers[..*at].iter();
            let is_passed = |caller: &Caller| caller.cluster == cluster && !caller.is_running;
            assert!(!earlier.any(is_passed), "a later caller was first");
            let of_cluster = self.running(|running| running == cluster);
            assert!(of_cluster <= self.limits.of_cluster);
            let own = self.in_namespace(namespace(cluster));
            assert!(own <= share, "{own} of {share}");
            if begun.len() == 1 {
                assert!(own == 1 || running <= unreserved, "a turn is reserved");
            }
            // Only the order of a single turn is known.
            let others = ready.iter().filter(|_| begun.len() == 1);
            for other in others.map(|other| namespace(*other)) {
                let others = self.in_namespace(other);
                assert!(
                    other == namespace(cluster) || own - 1 <= others,
                    "{} had {} turns, and {other} has {others}",
                    namespace(cluster),
                    own - 1,
                );
            }
        }
        if running < self.limits.all {
            for cluster in ready {
                let own = self.in_namespace(namespace(cluster));
                let is_over = own >= share || own > 0 && running >= unreserved;
                assert!(is_over, "a turn of {:?} is missing", CLUSTERS[cluster]);
            }
        }
    }

    /// Ends all turns. Each waiting caller gets one turn.
    fn finish(&mut self) {
        while !self.callers.is_empty() {
            let running = self.callers.iter().position(|caller| caller.is_running);
            drop(self.callers.remove(running.unwrap()));
            self.check();
        }
        assert!(self.turns.is_idle());
    }
}

proptest! {
    #[test]
    fn no_history_loses_a_turn_or_exceeds_a_limit(
        events in prop::collection::vec(event(), 1..100),
        all in 1..7_usize,
        of_cluster in 1..4_usize,
    ) {
        let limits = TurnLimits { all, of_cluster };
        let mut world = World {
            limits,
            turns: FairTurns::new(limits),
            callers: Vec::new(),
        };
        for event in &events {
            world.apply(event);
        }
        world.finish();
    }
}
