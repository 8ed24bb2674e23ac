//! Tests of requests that are not kept in memory, and of requests in progress that use all the memory.

use node_attestation_core::testing::valid;
use tokio::time::advance;

use super::super::Share;
use super::super::memory_budget::Room;
use super::*;

#[tokio::test(start_paused = true)]
async fn a_request_with_unkept_metadata_is_fetched_when_it_is_processed() {
    let mut queue = Queue::default();
    let mut labelled = csr("labelled", "labelled", "1");
    labelled.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    queue.sees(labelled);
    queue.sees(csr("plain", "plain", "1"));

    assert_eq!(kept(&mut queue), [false, true]);
    assert!(queue.room.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_bytes_that_are_kept_for_one_request_have_a_limit() {
    let mut request = valid();
    request.metadata.name = Some(format!("kubelet-authenticator-{}", "a".repeat(52)));
    request.metadata.uid = Some("00010203-0405-0607-0809-0a0b0c0d0e0f".to_owned());
    request.metadata.resource_version = Some("1234567890".to_owned());
    let uid = request.metadata.uid.clone().unwrap();
    let mut queue = Queue::default();

    queue.sees(request);
    let (entry, object) = (queue.entry_bytes, queue.entries[&*uid].bytes);
    assert!(entry <= 1024, "{entry} bytes of the entry");
    assert!(object <= 5 * 1024, "{object} bytes of the object");

    let before = queue.entry_bytes;
    queue.next(Instant::now()).unwrap();
    queue.settled(&uid);
    assert!(queue.entry_bytes <= before, "after the answer");
    assert!(queue.room.is_empty(), "the object is dropped");
    queue.gone(&uid);
    assert_eq!(queue.entry_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn requests_in_progress_share_memory_and_one_can_always_proceed() {
    for (share, most) in [(0, 1), (1024 * 1024, 33)] {
        let mut queue = Queue {
            room: Room::new(&Share::alone(share)),
            ..Queue::default()
        };
        for number in 0..MAX_RUNNING {
            // The request is not kept in memory while it waits.
            let mut csr = csr_by(&format!("requester-{number}"), &number.to_string());
            csr.metadata.finalizers = Some(vec!["a.b/c".to_owned()]);
            queue.sees(csr);
        }
        assert_eq!(begun(&mut queue), most, "of {share} bytes");
        queue.settled("0");
        assert_eq!(begun(&mut queue), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_request_waits_for_memory_and_a_small_one_does_not() {
    let large = csr_of("large", "1", 256 * 1024);
    let bytes = memory(&lean(large.clone()));
    let share = Share::alone(5 * bytes);
    let mut others = share.holding();
    assert!(others.resize(3 * bytes));
    let mut queue = Queue {
        room: Room::new(&share),
        ..Queue::default()
    };
    queue.sees(large);
    queue.sees(csr("small", "small", "1"));
    let begun = |queue: &mut Queue| {
        let begun = std::iter::from_fn(|| queue.next(Instant::now()));
        begun.map(|work| work.uid).collect::<Vec<_>>()
    };
    assert_eq!(begun(&mut queue), ["small"]);
    assert_eq!(queue.next_turn(), Some(Instant::now() + WITHOUT_MEMORY));
    advance(WITHOUT_MEMORY).await;
    assert_eq!(begun(&mut queue), Vec::<String>::new());

    drop(others);
    advance(WITHOUT_MEMORY).await;
    assert_eq!(begun(&mut queue), ["large"]);
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_half_of_the_memory_are_dropped_for_another_namespace() {
    const ALL: usize = 1024 * 1024;
    let share = Share::in_common("tenant-a", ALL);
    let mut queue = Queue {
        room: Room::new(&share),
        ..Queue::default()
    };
    for number in 0..100 {
        queue.sees(csr_of(&format!("{number:03}"), "1", 16 * 1024));
    }
    let used = |queue: &Queue| queue.room.in_use()[1];
    let alone = used(&queue);
    assert!((ALL * 5 / 8..=ALL * 3 / 4).contains(&alone), "{alone}");
    let check = |queue: &mut Queue, second: u64| {
        queue.give_back_excess(Instant::now() + Duration::from_secs(second));
        used(queue)
    };
    assert_eq!(
        check(&mut queue, 10),
        alone,
        "no other namespace has a share"
    );

    let other = share.beside("tenant-b");

    assert_eq!(check(&mut queue, 11), alone, "the next check is not due");
    let half = check(&mut queue, 20);
    assert!((ALL * 3 / 8..=ALL / 2).contains(&half), "{half}");
    assert!(other.holding().resize(ALL / 4));
    // The dropped requests are the last ones. They are read again at their turn.
    let is_kept = |uid: &Arc<str>| {
        let state = &queue.entries[uid].state;
        matches!(
            state,
            State::Waiting {
                object: Some(_),
                ..
            }
        )
    };
    let kept: Vec<bool> = queue.turns.values().map(is_kept).collect();
    assert_eq!(kept.len(), 100);
    let first = kept.iter().take_while(|is_kept| **is_kept).count();
    assert!((20..40).contains(&first), "{first}");
    assert!(kept.iter().skip(first).all(|is_kept| !is_kept));
}
