//! Tests with more requests than the queue can store.

use super::super::tests::{csr, csr_by};
use super::super::{MAX_ID_LEN, MAX_NAME_LEN, Room, SHARE, Share};
use super::*;

/// The maximum memory for one cluster's requests, if no other cluster needs the memory. 20 such clusters fit into 400
/// MiB.
const MOST: usize = 20 * 1024 * 1024;

#[tokio::test(start_paused = true)]
async fn an_endless_list_of_requests_uses_bounded_memory() {
    let mut queue = Queue::default();

    for number in 0..MAX_ENTRIES + 20 {
        // The strings have the same lengths as a Kubernetes UID and a node name.
        let (uid, node) = (format!("{number:0>36}"), format!("{number:0>43}"));
        queue.sees(csr_by(&format!("system:node:{node}"), &uid));
    }
    assert_eq!(queue.entries.len(), MAX_ENTRIES);
    assert!(queue.entry_bytes <= MOST, "{} bytes", queue.entry_bytes);

    let now = Instant::now();
    let answered = queue.next(now).unwrap();
    queue.settled(&answered.uid);
    queue.purged_at = 0;
    queue.sees(csr_by("another", "another"));
    assert!(queue.entries.contains_key("another"));
    assert!(!queue.entries.contains_key(answered.uid.as_str()));
}

#[tokio::test(start_paused = true)]
async fn requests_with_the_longest_names_stay_within_the_memory_share() {
    let alone = Share::alone(SHARE);
    let mut queue = Queue {
        memory: alone.holding(),
        room: Room::new(&alone),
        ..Queue::default()
    };
    for number in 0..MAX_ENTRIES {
        let name = format!("{number:0>MAX_NAME_LEN$}");
        let mut csr = csr(&name, &format!("{number:0>MAX_ID_LEN$}"), "1");
        csr.spec.username = Some(name);
        queue.sees(csr);
    }

    assert!(queue.entry_bytes <= SHARE);
    assert!((1000..5000).contains(&queue.entries.len()));
    let all: Vec<Arc<str>> = queue.entries.keys().cloned().collect();
    for uid in all {
        queue.gone(&uid);
    }
    assert_eq!(queue.entry_bytes, 0);
    assert!(queue.requesters.largest().is_none());
}

#[tokio::test(start_paused = true)]
async fn deleted_requests_release_their_memory() {
    let alone = Share::alone(MOST);
    let mut queue = Queue {
        memory: alone.holding(),
        room: Room::new(&alone),
        ..Queue::default()
    };
    let flood = |queue: &mut Queue, count: usize| {
        for number in 0..count {
            queue.sees(csr_by(&format!("user-{number}"), &number.to_string()));
        }
    };
    flood(&mut queue, MAX_ENTRIES);
    assert_eq!(queue.entries.len(), MAX_ENTRIES);
    let now = Instant::now();
    // There are fewer requesters than budgets.
    for _ in 0..MAX_ENTRIES / 2 {
        let work = queue.next(now).unwrap();
        queue.retry(&work.uid, now);
    }
    assert!(!alone.holding().resize(MOST / 2), "it is in use");

    for number in 0..MAX_ENTRIES {
        queue.gone(&number.to_string());
    }
    let almost_all = MOST - SHARE / 16;
    assert!(!alone.holding().resize(almost_all), "there are budgets");
    tokio::time::advance(RELIST).await;
    queue.budgets.reserve("another", Instant::now());

    assert!(queue.entries.is_empty() && queue.turns.is_empty());
    assert!(queue.charged.is_empty() && queue.requesters.largest().is_none());
    flood(&mut queue, 1);
    queue.gone("0");
    assert!(alone.holding().resize(almost_all), "it is released");
}

/// Processes requests until this request starts. Every other request must be retried.
fn worked_on_after(queue: &mut Queue, name: &str) -> Duration {
    let begin = Instant::now();
    let mut now = begin;
    loop {
        while let Some(work) = queue.next(now) {
            if work.name == name {
                return now - begin;
            }
            queue.retry(&work.uid, now);
        }
        now = queue.next_turn().expect("the request is never processed");
        assert!(now - begin < Duration::from_mins(1), "it is not worked on");
    }
}

#[tokio::test(start_paused = true)]
async fn sixty_thousand_requests_of_a_token_do_not_delay_other_machines() {
    let mut queue = Queue::default();
    for number in 0..60_000 {
        let name = format!("flood-{number}");
        queue.sees(csr_by("system:bootstrap:flood", &name));
    }

    queue.sees(csr_by("system:bootstrap:honest", "honest"));
    let waited = worked_on_after(&mut queue, "honest");

    assert!(waited < Duration::from_secs(5), "{waited:?}");
    let of_flood = queue.requesters.count("system:bootstrap:flood");
    assert_eq!(of_flood, MAX_OF_REQUESTER);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_requests_from_the_largest_requester() {
    let mut queue = Queue::default();
    for number in 0..MAX_ENTRIES {
        let requester = number / MAX_OF_REQUESTER;
        queue.sees(csr_by(&format!("token-{requester}"), &number.to_string()));
    }
    assert_eq!(queue.entries.len(), MAX_ENTRIES);

    for number in 0..100 {
        let name = format!("honest-{number}");
        queue.sees(csr_by(&name, &name));
        assert!(queue.entries.contains_key(name.as_str()));
    }

    assert_eq!(queue.entries.len(), MAX_ENTRIES);
    assert!(queue.entries.contains_key("0"), "the newest go");
}

#[tokio::test(start_paused = true)]
async fn dropped_requests_are_listed_again_once_the_queue_has_space() {
    let mut queue = Queue::default();
    for number in 0..=MAX_OF_REQUESTER {
        queue.sees(csr_by("token", &number.to_string()));
    }
    let later = Instant::now() + RELIST;
    assert!(!queue.relist(later), "nothing is answered");

    for number in 0..MAX_OF_REQUESTER / 2 {
        queue.gone(&number.to_string());
    }

    assert!(!queue.relist(later - Duration::from_millis(1)));
    assert!(queue.relist(later));
    assert!(!queue.relist(later), "once");
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_list_is_not_restarted() {
    let mut queue = Queue::default();
    queue.listing();
    for number in 0..=MAX_OF_REQUESTER {
        queue.sees(csr_by("token", &number.to_string()));
    }
    for number in 0..MAX_OF_REQUESTER / 2 {
        queue.gone(&number.to_string());
    }
    assert!(!queue.relist(Instant::now() + 10 * RELIST));

    tokio::time::advance(10 * RELIST).await;
    queue.listed();

    assert!(!queue.relist(Instant::now()));
    assert!(queue.relist(Instant::now() + RELIST));
}
