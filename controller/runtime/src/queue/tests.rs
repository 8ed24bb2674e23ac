use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::memory_budget::{MAX_OBJECT_BYTES, MAX_OBJECTS, MAX_RUNNING};
use super::retry::RETRY;
use super::*;
use crate::hardening::rate_limit::TOKEN_RATE;

mod history;
mod not_ours_yet;
mod outage;
mod room;

impl Queue {
    pub(super) fn sees(&mut self, csr: CertificateSigningRequest) {
        self.seen(csr);
    }
}

pub(super) fn csr(name: &str, uid: &str, version: &str) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        },
        ..CertificateSigningRequest::default()
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self::new(&ClusterLines::of_namespace(""))
    }
}

fn queue_with(names: &[&str]) -> Queue {
    let mut queue = Queue::default();
    for name in names {
        queue.sees(csr(name, name, "1"));
    }
    queue
}

fn name_of(work: Option<Work>) -> Option<String> {
    work.map(|work| work.name)
}

#[tokio::test(start_paused = true)]
async fn requests_are_processed_in_the_order_of_arrival() {
    let mut queue = queue_with(&["a", "b"]);
    let now = Instant::now();

    assert_eq!(name_of(queue.next(now)).as_deref(), Some("a"));
    assert_eq!(name_of(queue.next(now)).as_deref(), Some("b"));
    assert!(queue.next(now).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_request_is_not_processed_twice_at_the_same_time() {
    let mut queue = queue_with(&["a"]);
    let now = Instant::now();
    queue.next(now).unwrap();

    queue.sees(csr("a", "a", "2"));

    assert!(queue.next(now).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_changes_while_in_progress_is_retried_immediately() {
    let mut queue = queue_with(&["a"]);
    let now = Instant::now();
    queue.next(now).unwrap();

    queue.sees(csr("a", "a", "2"));
    queue.retry("a", now);

    let work = queue.next(now).unwrap();
    assert!(work.object.is_none(), "what was watched may be old by now");
    assert_eq!(work.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn an_answered_request_is_not_processed_again() {
    let mut queue = queue_with(&["a"]);
    let now = Instant::now();
    queue.next(now).unwrap();
    queue.sees(csr("a", "a", "2"));

    queue.settled("a");
    queue.sees(csr("a", "a", "3"));

    assert!(queue.next(now).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_recreated_request_is_processed_after_an_answered_one() {
    let mut queue = queue_with(&["a"]);
    let now = Instant::now();
    queue.next(now).unwrap();
    queue.settled("a");

    queue.sees(csr("a", "other", "9"));

    assert_eq!(name_of(queue.next(now)).as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn the_wait_between_attempts_doubles_up_to_a_limit() {
    let mut queue = queue_with(&["a"]);
    let mut now = Instant::now();
    let mut waits = Vec::new();

    for _ in 0..8 {
        queue.next(now).unwrap();
        queue.retry("a", now);
        let turn = queue.next_turn().unwrap();
        waits.push((turn - now).as_secs());
        assert!(queue.next(turn - Duration::from_millis(1)).is_none());
        now = turn;
    }

    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_request_ends_its_wait_and_a_repeated_event_does_not() {
    let mut queue = queue_with(&["a"]);
    let now = Instant::now();
    queue.next(now).unwrap();
    queue.retry("a", now);

    queue.sees(csr("a", "a", "1"));
    assert!(queue.next(now).is_none());

    queue.sees(csr("a", "a", "2"));
    assert_eq!(name_of(queue.next(now)).as_deref(), Some("a"));
    assert_eq!(queue.next_turn(), None);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_request_is_removed_from_every_state() {
    let mut queue = queue_with(&["ready", "waiting"]);
    let now = Instant::now();
    queue.next(now).unwrap();
    queue.next(now).unwrap();
    queue.retry("waiting", now);
    queue.retry("ready", now);
    queue.sees(csr("ready", "ready", "2"));

    queue.gone("ready");
    queue.gone("waiting");

    assert!(queue.next(now + RETRY.longest).is_none());
    assert!(queue.entries.is_empty());
    assert!(queue.room.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_missing_from_a_new_list_is_removed() {
    let mut queue = queue_with(&["a", "b"]);

    queue.listing();
    queue.sees(csr("b", "b", "1"));
    queue.listed();

    let now = Instant::now();
    assert_eq!(name_of(queue.next(now)).as_deref(), Some("b"));
    assert!(queue.next(now).is_none());
}

#[tokio::test(start_paused = true)]
async fn requests_above_the_object_limit_are_kept_by_name() {
    let mut queue = Queue::default();
    for number in 0..=MAX_OBJECTS {
        // Each request is within the budget of its requester.
        queue.sees(csr_by(&format!("requester-{number}"), &number.to_string()));
    }

    let kept = kept(&mut queue);

    assert_eq!(kept.len(), MAX_OBJECTS + 1);
    assert_eq!(kept.iter().filter(|kept| **kept).count(), MAX_OBJECTS);
}

#[tokio::test(start_paused = true)]
async fn a_request_deleted_while_in_progress_is_removed_when_settled() {
    let mut queue = queue_with(&["a"]);
    queue.next(Instant::now()).unwrap();

    queue.gone("a");
    queue.settled("a");

    assert!(queue.entries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_recreated_request_is_processed_while_the_old_one_is_in_progress() {
    for retried in [false, true] {
        let mut queue = queue_with(&["a"]);
        let now = Instant::now();
        queue.next(now).unwrap();
        queue.gone("a");
        queue.sees(csr("a", "other", "2"));

        let work = queue.next(now).unwrap();
        if retried {
            queue.retry("a", now);
        } else {
            queue.settled("a");
        }
        queue.listing();
        queue.sees(csr("a", "other", "2"));
        queue.listed();

        assert_eq!(work.name, "a");
        assert_eq!(work.attempts, 0);
        assert!(queue.next(now).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_deleted_while_in_progress_is_not_retried() {
    let mut queue = queue_with(&["a"]);
    let now = Instant::now();
    queue.next(now).unwrap();

    queue.gone("a");
    queue.retry("a", now);

    assert!(queue.next(now + RETRY.longest).is_none());
    assert!(queue.entries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_is_processed_again_after_it_changes() {
    let mut queue = queue_with(&["a"]);
    let now = Instant::now();
    queue.next(now).unwrap();
    queue.given_up("a");

    queue.sees(csr("a", "a", "1"));
    assert!(queue.next(now + RETRY.longest).is_none());

    queue.sees(csr("a", "a", "2"));
    assert_eq!(name_of(queue.next(now)).as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_request_deleted_while_it_waits_does_not_delay_the_next() {
    let mut queue = queue_with(&["a", "b", "c"]);
    queue.gone("b");
    queue.gone("a");

    assert_eq!(name_of(queue.next(Instant::now())).as_deref(), Some("c"));
    assert!(queue.turns.is_empty());
}

fn csr_of(name: &str, version: &str, bytes: usize) -> CertificateSigningRequest {
    let mut csr = csr(name, name, version);
    csr.spec.request.0 = vec![0; bytes];
    csr
}

/// Processes all ready requests. Returns whether each request was kept completely.
fn kept(queue: &mut Queue) -> Vec<bool> {
    let mut kept = Vec::new();
    while let Some(work) = queue.next(Instant::now()) {
        kept.push(work.object.is_some());
        queue.settled(&work.uid);
    }
    kept
}

#[tokio::test(start_paused = true)]
async fn large_requests_are_kept_by_name_if_the_memory_is_full() {
    const LARGE: usize = MAX_OBJECT_BYTES / 4;
    let mut queue = Queue::default();
    for name in ["a", "b", "c", "d"] {
        queue.sees(csr_of(name, "1", LARGE));
    }
    queue.sees(csr("small", "small", "1"));

    assert_eq!(kept(&mut queue), [true, true, true, false, true]);
    assert!(queue.room.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_that_outgrows_the_memory_is_kept_by_name() {
    let mut queue = queue_with(&["a", "b"]);

    queue.sees(csr_of("a", "2", MAX_OBJECT_BYTES));

    assert_eq!(kept(&mut queue), [false, true]);
    assert!(queue.room.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_request_releases_its_memory() {
    let mut queue = queue_with(&["a"]);

    queue.gone("a");

    assert!(queue.room.is_empty());
}

/// Starts all requests that can start, and returns their number.
fn begun(queue: &mut Queue) -> usize {
    let now = Instant::now();
    std::iter::from_fn(|| queue.next(now)).count()
}

#[tokio::test(start_paused = true)]
async fn the_number_of_requests_in_progress_is_limited() {
    let mut queue = Queue::default();
    let names: Vec<_> = (0..MAX_RUNNING + 2).map(|n| n.to_string()).collect();
    for name in &names {
        queue.sees(csr_by(&format!("requester-{name}"), name));
    }

    assert_eq!(begun(&mut queue), MAX_RUNNING);
    queue.retry("0", Instant::now());
    assert_eq!(begun(&mut queue), 1);
    queue.gone("1");
    assert_eq!(begun(&mut queue), 0);
    queue.settled("1");
    assert_eq!(begun(&mut queue), 1);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_large_requests_in_progress_is_limited_further() {
    const LARGE: usize = 512 * 1024;
    let mut queue = Queue::default();
    for number in 0..20 {
        queue.sees(csr_of(&number.to_string(), "1", LARGE));
    }

    assert_eq!(begun(&mut queue), 4);
    queue.settled("0");
    assert_eq!(begun(&mut queue), 1);
}

#[tokio::test(start_paused = true)]
async fn a_due_request_does_not_wake_a_full_queue() {
    let mut queue = queue_with(&["waits"]);
    let now = Instant::now();
    queue.next(now).unwrap();
    queue.retry("waits", now);
    assert!(queue.next_turn().is_some());
    for number in 0..MAX_RUNNING {
        queue.sees(csr_by(&format!("requester-{number}"), &number.to_string()));
    }
    assert_eq!(begun(&mut queue), MAX_RUNNING);

    assert_eq!(queue.next_turn(), None);
    queue.settled("0");
    assert!(queue.next_turn().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_grows_while_in_progress_gets_more_memory() {
    let mut queue = queue_with(&["a"]);
    let work = queue.next(Instant::now()).unwrap();
    let grown = csr_of("a", "2", MAX_OBJECT_BYTES);

    queue.sees(grown.clone());
    queue.retry("a", Instant::now());

    let again = queue.next(Instant::now()).unwrap();
    assert!(work.max_len < memory(&grown));
    assert_eq!(again.max_len, allowance(memory(&grown)));
}

pub(super) fn csr_by(requester: &str, name: &str) -> CertificateSigningRequest {
    let mut csr = csr(name, name, "1");
    csr.spec.username = Some(requester.to_owned());
    csr
}

#[tokio::test(start_paused = true)]
async fn a_requester_over_its_budget_waits_and_does_not_delay_others() {
    let burst = usize::try_from(TOKEN_RATE.burst).unwrap();
    let mut queue = Queue::default();
    for number in 0..burst + 2 {
        queue.sees(csr_by(
            "system:bootstrap:flooder",
            &format!("flood-{number}"),
        ));
    }
    queue.sees(csr_by("system:bootstrap:honest", "honest"));
    let begin = Instant::now();

    let names: Vec<String> = std::iter::from_fn(|| name_of(queue.next(begin))).collect();

    assert_eq!(names.len(), burst + 1);
    assert_eq!(names.last().unwrap(), "honest");
    let next = queue.next_turn().unwrap();
    assert_eq!(next, begin + TOKEN_RATE.every);
    let held = [name_of(queue.next(next)), name_of(queue.next(next))];
    assert_eq!(held, [Some(format!("flood-{burst}")), None]);
    assert_eq!(queue.next_turn(), Some(next + TOKEN_RATE.every));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_request_over_budget_returns_its_reservation() {
    let burst = usize::try_from(TOKEN_RATE.burst).unwrap();
    let mut queue = Queue::default();
    for number in 0..burst + 2 {
        queue.sees(csr_by("flooder", &format!("flood-{number}")));
    }
    let begin = Instant::now();
    while queue.next(begin).is_some() {}

    queue.gone(&format!("flood-{burst}"));
    assert_eq!(queue.next_turn(), Some(begin + TOKEN_RATE.every));
    let work = queue.next(begin + TOKEN_RATE.every);

    assert_eq!(name_of(work), Some(format!("flood-{}", burst + 1)));
    assert_eq!(queue.next_turn(), None);
    queue.sees(csr_by("flooder", "next"));
    assert!(queue.next(begin + TOKEN_RATE.every).is_none());
    assert_eq!(queue.next_turn(), Some(begin + 2 * TOKEN_RATE.every));
}

#[tokio::test(start_paused = true)]
async fn the_last_request_after_a_deleted_flood_is_processed_next() {
    let burst = usize::try_from(TOKEN_RATE.burst).unwrap();
    let mut queue = Queue::default();
    for number in 0..burst + 800 {
        queue.sees(csr_by("flooder", &format!("flood-{number}")));
    }
    queue.sees(csr_by("flooder", "last"));
    let begin = Instant::now();
    while queue.next(begin).is_some() {}

    for number in burst..burst + 800 {
        queue.gone(&format!("flood-{number}"));
    }

    assert_eq!(queue.next_turn(), Some(begin + TOKEN_RATE.every));
    let work = queue.next(begin + TOKEN_RATE.every);
    assert_eq!(name_of(work), Some("last".to_owned()));
    assert!(queue.charged.is_empty());
}

#[tokio::test(start_paused = true)]
async fn after_a_stall_a_requester_gets_only_its_burst() {
    let burst = usize::try_from(TOKEN_RATE.burst).unwrap();
    let mut queue = Queue::default();
    for number in 0..4 * burst {
        queue.sees(csr_by("flooder", &format!("flood-{number}")));
    }
    let begin = Instant::now();
    let work = |queue: &mut Queue, now| {
        let uids: Vec<String> = std::iter::from_fn(|| queue.next(now))
            .map(|work| work.uid)
            .collect();
        for uid in &uids {
            queue.settled(uid);
        }
        uids.len()
    };
    assert_eq!(work(&mut queue, begin), burst);

    // All other requests are due.
    let late = begin + 3 * TOKEN_RATE.burst * TOKEN_RATE.every + 2 * LATE;

    assert_eq!(work(&mut queue, late), burst);
    assert_eq!(work(&mut queue, late), 0);
    assert_eq!(work(&mut queue, late + TOKEN_RATE.every), 1);
}

#[tokio::test(start_paused = true)]
async fn the_names_of_a_request_are_limited_in_length() {
    let mut queue = Queue::default();
    let long = "x".repeat(MAX_NAME_LEN + 1);
    queue.sees(csr(&long, "a", "1"));
    queue.sees(csr("a", &"x".repeat(MAX_ID_LEN + 1), "1"));
    assert!(queue.entries.is_empty());

    let mut csr = csr("a", "a", "1");
    csr.spec.username = Some(long);
    queue.sees(csr);

    assert_eq!(queue.entries["a"].requester.len(), MAX_NAME_LEN);
}
