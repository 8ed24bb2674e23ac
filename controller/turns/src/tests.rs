use std::fmt;

use futures::future::FutureExt;
use parking_lot::Mutex;
use tokio::task::{JoinHandle, yield_now};

use super::*;
use crate::shared::testing::most_visited;

mod history;

impl Owner for Key {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

fn key(namespace: &str, name: &str) -> Key {
    Key {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn turns(all: usize, of_cluster: usize) -> FairTurns {
    FairTurns::new(TurnLimits { all, of_cluster })
}

/// Callers that take a turn, record their Cluster, and end the turn on command.
#[derive(Debug, Clone)]
struct Callers {
    turns: FairTurns,
    order: Arc<Mutex<Vec<String>>>,
    open: Arc<Mutex<Vec<Turn>>>,
}

impl Callers {
    fn new(turns: FairTurns) -> Self {
        Self {
            turns,
            order: Arc::default(),
            open: Arc::default(),
        }
    }

    async fn call(&self, cluster: &Key, count: usize) -> Vec<JoinHandle<()>> {
        let mut callers = Vec::new();
        for _ in 0..count {
            let (this, line) = (self.clone(), self.turns.line(cluster));
            let cluster = cluster.to_string();
            callers.push(tokio::spawn(async move {
                let turn = line.turn().await;
                this.order.lock().push(cluster);
                this.open.lock().push(turn);
            }));
            settle().await;
        }
        callers
    }

    /// Ends the oldest turn of this Cluster.
    async fn end(&self, cluster: &str) {
        let turn = {
            let mut open = self.open.lock();
            let found = open
                .iter()
                .position(|turn| turn.line.owner.to_string() == cluster);
            open.remove(found.unwrap())
        };
        drop(turn);
        settle().await;
    }

    /// Ends turns, oldest first, until no turn is left. Returns the order of all turns.
    async fn finish(&self) -> Vec<String> {
        loop {
            let turn = {
                let mut open = self.open.lock();
                (!open.is_empty()).then(|| open.remove(0))
            };
            let Some(turn) = turn else {
                return self.order.lock().clone();
            };
            drop(turn);
            settle().await;
        }
    }

    fn order(&self) -> Vec<String> {
        self.order.lock().clone()
    }
}

async fn settle() {
    for _ in 0..8 {
        yield_now().await;
    }
}

#[tokio::test]
async fn turns_alternate_by_namespace_and_then_by_cluster() {
    let callers = Callers::new(turns(1, 1));
    for name in ["a1", "a2", "a3"] {
        callers.call(&key("a", name), 3).await;
    }
    callers.call(&key("b", "b1"), 3).await;

    let order = callers.finish().await;

    let expected = [
        "a/a1", "b/b1", "a/a2", "b/b1", "a/a3", "b/b1", "a/a1", "a/a2", "a/a3", "a/a1", "a/a2",
        "a/a3",
    ];
    assert_eq!(order, expected);
}

#[tokio::test]
async fn a_cluster_waits_for_at_most_one_turn_of_each_other_cluster() {
    // In another namespace, the caller gets the next turn. In the same namespace, each Cluster gets one turn before the
    // caller.
    for (namespace, expected) in [("b", 1), ("a", 200)] {
        let callers = Callers::new(turns(1, 1));
        for number in 0..200 {
            callers.call(&key("a", &format!("{number:03}")), 4).await;
        }
        callers.call(&key(namespace, "victim"), 1).await;

        let order = callers.finish().await;

        let victim = format!("{namespace}/victim");
        let turn = order.iter().position(|cluster| *cluster == victim);
        assert_eq!((order.len(), turn), (801, Some(expected)));
    }
}

#[tokio::test]
async fn a_namespace_gets_all_turns_or_half_of_them_if_others_wait() {
    let callers = Callers::new(turns(8, 8));
    callers.call(&key("a", "1"), 20).await;
    assert_eq!(callers.order().len(), 8);

    let other = callers.turns.line(&key("b", "1"));
    for _ in 0..4 {
        callers.end("a/1").await;
    }
    assert_eq!(callers.order().len(), 8, "half of them are in progress");
    callers.end("a/1").await;
    assert_eq!(callers.order().len(), 9);

    let others: Vec<_> = (0..5).map(|_| other.try_turn()).collect();
    assert_eq!(others.iter().flatten().count(), 3, "one is reserved");
    drop((other, others));
    settle().await;
    assert_eq!(callers.order().len(), 13, "it is without others again");
}

#[tokio::test]
async fn a_namespace_whose_turns_never_end_does_not_block_others() {
    let turns = turns(4, 4);
    let victim = turns.line(&key("b", "1"));
    let hung: Vec<_> = (0..9)
        .map(|number| turns.line(&key("a", &number.to_string())))
        .collect();
    let hung: Vec<_> = hung.iter().map(Line::turn).collect();
    let mut hung: Vec<_> = hung.into_iter().map(Box::pin).collect();
    let begun: Vec<_> = hung
        .iter_mut()
        .filter_map(FutureExt::now_or_never)
        .collect();
    assert_eq!(begun.len(), 2);

    for _ in 0..100 {
        assert!(victim.try_turn().is_some());
    }
}

#[tokio::test]
async fn the_hung_turns_of_two_namespaces_leave_a_turn_to_each_of_two_more() {
    let turns = turns(32, 32);
    let hung = ["a", "b"].map(|namespace| turns.line(&key(namespace, "1")));
    let begun: Vec<_> = hung
        .iter()
        .flat_map(|line| (0..32).map(move |_| line.try_turn()))
        .flatten()
        .collect();
    assert_eq!(begun.len(), 30);

    let others = ["c", "d"].map(|namespace| turns.line(&key(namespace, "1")));
    for _ in 0..100 {
        let each = others.each_ref().map(Line::try_turn);
        assert!(each.iter().all(Option::is_some));
    }
    let _first = others[0].try_turn().unwrap();
    assert!(
        others[0].try_turn().is_none(),
        "the last turn is for another namespace"
    );

    drop(begun);
    assert!(others[0].try_turn().is_some());
}

#[tokio::test]
async fn hung_turns_of_two_namespaces_leave_one_of_few_turns_to_a_third() {
    // With at most three turns, half of the turns for one namespace, and one turn for another namespace, are all turns.
    for (all, of_two, of_third) in [(3, 3, 0), (4, 3, 1), (8, 7, 1), (15, 14, 1)] {
        let turns = turns(all, all);
        let hung = ["a", "b"].map(|namespace| turns.line(&key(namespace, "1")));
        let begun: Vec<_> = hung
            .iter()
            .flat_map(|line| (0..all).map(move |_| line.try_turn()))
            .flatten()
            .collect();
        assert_eq!(begun.len(), of_two, "{all}");

        let third = turns.line(&key("c", "1"));
        let third: Vec<_> = (0..2).filter_map(|_| third.try_turn()).collect();
        assert_eq!(third.len(), of_third, "{all}");
    }
}

#[tokio::test]
async fn any_number_of_queues_gives_a_cluster_only_its_limit_of_turns() {
    let turns = turns(8, 2);
    let lines: Vec<_> = (0..4).map(|_| turns.line(&key("a", "1"))).collect();

    let begun: Vec<_> = lines.iter().map(Line::try_turn).collect();

    assert_eq!(begun.iter().flatten().count(), 2);
    assert!(turns.line(&key("a", "2")).try_turn().is_some());
}

#[tokio::test]
async fn a_caller_that_stops_waiting_does_not_use_a_turn() {
    let turns = turns(1, 1);
    let (first, second) = (turns.line(&key("a", "1")), turns.line(&key("b", "1")));
    let turn = first.turn().await;
    let mut given_up = Box::pin(second.turn());
    assert!(given_up.as_mut().now_or_never().is_none());
    let mut granted_unseen = Box::pin(second.turn());
    assert!(granted_unseen.as_mut().now_or_never().is_none());

    drop(given_up);
    drop(turn);
    assert!(first.try_turn().is_none(), "it was granted to the second");
    drop(granted_unseen);

    assert!(first.try_turn().is_some());
}

#[tokio::test]
async fn a_dropped_queue_releases_its_memory() {
    let turns = turns(2, 1);
    for number in 0..100 {
        let line = turns.line(&key(&number.to_string(), "1"));
        let turn = line.turn().await;
        drop(line);
        assert_eq!(turns.0.state.read(|state| state.namespaces.len()), 1);
        drop(turn);
    }

    turns.0.state.read(|state| {
        assert!(state.namespaces.is_empty() && state.ready.is_empty());
        assert_eq!(state.running, 0);
    });
}

#[test]
fn a_line_keeps_only_a_hash_of_a_long_name() {
    let turns = turns(4, 1);
    let long = "n".repeat(16_000);

    let line = turns.line(&key("a", &long));

    assert_eq!(line.owner.name.len(), 16);
    let _turn = line.try_turn().unwrap();
    assert!(turns.line(&key("a", &long)).try_turn().is_none());
    for other in [key("b", &long), key("a", &format!("{long}o"))] {
        assert!(
            turns.line(&other).try_turn().is_some(),
            "{}",
            other.namespace
        );
    }
    let longest = "n".repeat(MAX_NAME_LEN);
    assert_eq!(turns.line(&key("a", &longest)).owner.name, longest);
}

/// The lines of waiting callers for 1,000 Clusters in each of two namespaces. Each line has one caller.
fn crowd(turns: &FairTurns) -> Vec<(Turn, oneshot::Receiver<()>)> {
    let namespaces = ["a", "b"].into_iter();
    let keys = namespaces.flat_map(|of| (0..1000).map(move |number| key(of, &number.to_string())));
    keys.map(|key| turns.line(&key).wait()).collect()
}

#[tokio::test]
async fn a_turn_visits_few_of_many_queues() {
    let turns = turns(4, 1);
    let mut waiting = crowd(&turns);

    let visited = most_visited(|| {
        let last = waiting.pop();
        let first = waiting.remove(0);
        drop((first, last));
        drop(turns.line(&key("c", "1")).wait());
    });

    assert!(visited[&Lock::Turns] <= 4, "{visited:?}");
}
