//! Requests that are not kept in memory, and requests in progress that use all the memory.

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
