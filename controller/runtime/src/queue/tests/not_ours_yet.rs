use super::*;

#[tokio::test(start_paused = true)]
async fn a_request_for_undecided_enforcement_is_retried_but_not_pending() {
    let mut queue = queue_with(&["a", "b"]);
    let pending = queue.pending();
    let is_pending = |number| pending.summary() == (number, (number > 0).then_some(i64::MAX));
    for name in ["a", "b"] {
        assert_eq!(name_of(queue.next(Instant::now())).as_deref(), Some(name));
    }
    queue.not_ours_yet("a", Instant::now());
    queue.retry("b", Instant::now());
    assert!(is_pending(1));

    let later = Instant::now() + RETRY.longest;
    for name in ["a", "b"] {
        assert_eq!(name_of(queue.next(later)).as_deref(), Some(name));
    }
    // The request now belongs to this controller.
    queue.retry("a", later);
    assert!(is_pending(2));
    queue.not_ours_yet("b", later);
    queue.gone("b");
    queue.gone("a");
    assert!(is_pending(0));
}
