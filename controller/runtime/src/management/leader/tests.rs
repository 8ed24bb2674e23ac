use std::future::ready;
use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::client::Body;
use kube::core::Status;
use serde::Serialize;
use tokio::time::timeout;

use super::*;
use crate::client::ClusterAccess;
use crate::metrics::Format;

/// The default delay between a write and its response. The API server stores the write at the beginning of this delay.
const ANSWER: Duration = Duration::from_millis(100);

/// A Lease in memory that enforces Kubernetes' preconditions for writes.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    lease: Option<Lease>,
    version: u64,
    /// Whether the API server rejects each call.
    is_cut: bool,
    /// Whether the API server no longer answers calls.
    hangs: bool,
    answer_after: Option<Duration>,
}

impl Memory {
    fn cut(&self, cut: bool) {
        self.0.lock().unwrap().is_cut = cut;
    }

    fn hang(&self) {
        self.0.lock().unwrap().hangs = true;
    }

    fn answer_after(&self, time: Duration) {
        self.0.lock().unwrap().answer_after = Some(time);
    }

    fn holder(&self) -> String {
        let state = self.0.lock().unwrap();
        holder(state.lease.as_ref().unwrap()).to_owned()
    }

    fn transitions(&self) -> i32 {
        let state = self.0.lock().unwrap();
        let spec = state.lease.as_ref().unwrap().spec.as_ref().unwrap();
        spec.lease_transitions.unwrap()
    }
}

fn answer(code: u16, object: &impl Serialize) -> Response<Full<Bytes>> {
    let body = serde_json::to_vec(object).unwrap().into();
    Response::builder().status(code).body(body).unwrap()
}

fn refused(code: u16, reason: &str) -> Response<Full<Bytes>> {
    let status = Status {
        code,
        reason: reason.to_owned(),
        ..Status::default()
    };
    answer(code, &status)
}

impl Memory {
    async fn answer(&self, request: Request<Body>) -> Response<Full<Bytes>> {
        let is_read = request.method() == Method::GET;
        let written = request.into_body().collect_bytes().await.unwrap();
        let (hangs, after) = {
            let state = self.0.lock().unwrap();
            (state.hangs, state.answer_after.unwrap_or(ANSWER))
        };
        if hangs {
            pending::<()>().await;
        }
        let answer = self.decided(is_read, &written);
        sleep(after).await;
        answer
    }

    fn decided(&self, is_read: bool, written: &[u8]) -> Response<Full<Bytes>> {
        let mut state = self.0.lock().unwrap();
        match &state.lease {
            _ if state.is_cut => return refused(503, "ServiceUnavailable"),
            None if is_read => return refused(404, "NotFound"),
            Some(lease) if is_read => return answer(200, lease),
            _ => {}
        }
        let mut lease: Lease = serde_json::from_slice(written).unwrap();
        let current = state.lease.as_ref();
        let current = current.and_then(|lease| lease.metadata.resource_version.clone());
        if current != lease.metadata.resource_version {
            return refused(409, "Conflict");
        }
        state.version += 1;
        lease.metadata.resource_version = Some(state.version.to_string());
        let answer = answer(200, &lease);
        state.lease = Some(lease);
        answer
    }
}

fn candidate(leases: &Memory, identity: &str) -> Candidate {
    let memory = leases.clone();
    let access = ClusterAccess::in_memory(move |request| {
        let memory = memory.clone();
        async move { memory.answer(request).await }
    });
    Candidate {
        api: Api::default_namespaced(access.client().clone()),
        name: "lease".to_owned(),
        identity: identity.to_owned(),
        metrics: Metrics::default(),
    }
}

/// Waits until this replica is the leader.
async fn lead(candidate: &Candidate) -> Term<'_> {
    candidate.lead(pending()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_second_replica_waits_until_the_lease_is_released() {
    let leases = Memory::default();
    let (first, second) = (candidate(&leases, "a"), candidate(&leases, "b"));
    let mut term = lead(&first).await;

    let waited = timeout(10 * LEASE_DURATION, async {
        tokio::select! {
            () = term.held() => {}
            _ = lead(&second) => {}
        }
    });
    assert!(waited.await.is_err(), "the leader renews");

    term.release().await;
    let begun = Instant::now();
    lead(&second).await;
    assert!(begun.elapsed() <= Duration::from_secs(2));
    assert_eq!((leases.holder().as_str(), leases.transitions()), ("b", 2));
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_begins_when_the_lease_of_a_dead_leader_expires() {
    let leases = Memory::default();
    let dead = candidate(&leases, "a");
    let _dead = lead(&dead).await;
    let begun = Instant::now();

    lead(&candidate(&leases, "b")).await;

    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(15), "{waited:?}");
    assert!(waited <= Duration::from_secs(20), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_a_connection_stops_before_another_begins() {
    let leases = Memory::default();
    let first = candidate(&leases, "a");
    let begun = Instant::now();
    let mut term = lead(&first).await;
    leases.cut(true);

    term.held().await;

    // The Lease has a duration of 15 seconds.
    let led = begun.elapsed();
    assert!(led >= Duration::from_secs(10), "{led:?}");
    assert!(led < Duration::from_secs(15), "{led:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_calls_hang_stops_before_another_begins() {
    let leases = Memory::default();
    let first = candidate(&leases, "a");
    let begun = Instant::now();
    let mut term = lead(&first).await;
    leases.hang();

    term.held().await;

    // The Lease has a duration of 15 seconds.
    let led = begun.elapsed();
    assert!(led >= Duration::from_secs(10), "{led:?}");
    assert!(led < Duration::from_secs(15), "{led:?}");
}

#[tokio::test(start_paused = true)]
async fn the_renewal_time_of_a_lease_is_when_its_write_was_sent() {
    let leases = Memory::default();
    let first = candidate(&leases, "a");
    let mut term = lead(&first).await;
    let slow = CALL_DEADLINE.saturating_sub(ANSWER);
    leases.answer_after(slow);
    let begun = Instant::now();
    let silent = leases.clone();
    tokio::spawn(async move {
        sleep(RETRY + slow).await;
        silent.hang();
    });

    term.held().await;

    // The leader has sent only one renewal, after one pause, and the other replicas have observed it.
    assert_eq!(
        begun.elapsed().as_secs(),
        (RETRY + RENEW_DEADLINE).as_secs()
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_deadline_has_no_effect() {
    let leases = Memory::default();
    let first = candidate(&leases, "a");
    let mut term = lead(&first).await;
    leases.cut(true);
    let healed = leases.clone();
    tokio::spawn(async move {
        sleep(RENEW_DEADLINE.saturating_sub(2 * RETRY)).await;
        healed.cut(false);
    });

    assert!(timeout(10 * LEASE_DURATION, term.held()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_taken_stops() {
    let leases = Memory::default();
    let first = candidate(&leases, "a");
    let mut term = lead(&first).await;
    let other = candidate(&leases, "b");
    let taken = other.taken(other.get().await.unwrap());
    other.put(&taken).await.unwrap();
    let begun = Instant::now();

    term.held().await;

    assert!(begun.elapsed() < 2 * RETRY);
}

#[tokio::test(start_paused = true)]
async fn a_restart_with_the_same_identity_does_not_wait() {
    let leases = Memory::default();
    lead(&candidate(&leases, "a")).await;
    let begun = Instant::now();

    lead(&candidate(&leases, "a")).await;

    assert_eq!(begun.elapsed(), 2 * ANSWER);
    assert_eq!(leases.transitions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_until_the_work_has_ended() {
    let leases = Memory::default();
    let (first, second) = (candidate(&leases, "a"), candidate(&leases, "b"));
    let mut term = lead(&first).await;
    let begun = Instant::now();

    let work = |stop| async {
        let stop: BoxFuture<'static, ()> = stop;
        stop.await;
        sleep(10 * LEASE_DURATION).await;
    };
    let end = tokio::select! {
        end = term.during(ready(()), work) => end,
        _ = lead(&second) => panic!("another replica leads before the work has ended"),
    };

    assert_eq!(end, TermEnd::Stopped);
    assert!(begun.elapsed() >= 10 * LEASE_DURATION);
    term.release().await;
    assert_eq!(leases.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn a_lost_term_ends_even_if_the_lease_is_unreachable() {
    let leases = Memory::default();
    let first = candidate(&leases, "a");
    let mut term = lead(&first).await;
    leases.cut(true);

    let work = |stop| async {
        let stop: BoxFuture<'static, ()> = stop;
        stop.await;
        sleep(LEASE_DURATION).await;
    };
    let end = timeout(10 * LEASE_DURATION, term.during(pending(), work)).await;

    assert_eq!(end.unwrap(), TermEnd::Lost);
}

#[tokio::test(start_paused = true)]
async fn the_leader_metric_shows_waiting_leading_and_lost() {
    let leases = Memory::default();
    let metrics = Metrics::new("1");
    let replica = Candidate {
        metrics: metrics.clone(),
        ..candidate(&leases, "a")
    };
    let told = |line: &str| {
        let text = metrics.text(Format::OpenMetrics);
        text.lines().any(|found| found == line)
    };
    leases.cut(true);
    let asked = async {
        sleep(RETRY).await;
        told(r#"node_attestation_leader{lease="lease"} 0.0"#)
    };
    let is_told = tokio::select! {
        _ = lead(&replica) => panic!("the replica leads without an API server"),
        is_told = asked => is_told,
    };
    assert!(is_told);
    leases.cut(false);

    let mut term = lead(&replica).await;
    assert!(told(r#"node_attestation_terms_total{lease="lease"} 1"#));
    assert!(
        timeout(10 * LEASE_DURATION, term.held()).await.is_err(),
        "it renews"
    );
    assert!(told(r#"node_attestation_leader{lease="lease"} 1.0"#));
    assert_eq!(metrics.live(), Ok(()));
    leases.cut(true);
    let end = term.during(pending(), |quit| quit).await;

    assert_eq!(end, TermEnd::Lost);
    assert!(told(r#"node_attestation_leader{lease="lease"} 0.0"#));
    drop(term);
    assert!(!told(r#"node_attestation_leader{lease="lease"} 0.0"#));
}

#[tokio::test(start_paused = true)]
async fn a_lease_with_a_canceled_renewal_is_released_immediately() {
    let leases = Memory::default();
    let (first, second) = (candidate(&leases, "a"), candidate(&leases, "b"));
    let mut term = lead(&first).await;
    let version = || leases.0.lock().unwrap().version;
    let before = version();
    // The API server stores the renewal, but its response arrives too late.
    let end = term.during(sleep(RETRY + ANSWER / 2), |quit| quit).await;
    assert_eq!((end, version()), (TermEnd::Stopped, before + 1));

    term.release().await;

    let begun = Instant::now();
    lead(&second).await;
    assert!(begun.elapsed() <= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_lease_with_a_canceled_renewal_has_its_next_holder_within_a_second() {
    // The times of the replicas' calls can have any offset from each other.
    for offset in (0..40).map(|number| number * ANSWER / 4) {
        let leases = Memory::default();
        let (first, second) = (candidate(&leases, "a"), candidate(&leases, "b"));
        let mut term = lead(&first).await;
        let leaving = async {
            // The API server stores the renewal, but its response arrives too late.
            let end = term.during(sleep(RETRY + ANSWER / 2), |quit| quit).await;
            assert_eq!(end, TermEnd::Stopped);
            let stopped = Instant::now();
            term.release().await;
            stopped
        };
        let following = async {
            sleep(offset).await;
            lead(&second).await;
            Instant::now()
        };

        let (stopped, led) = tokio::join!(leaving, following);

        assert!(led - stopped <= Duration::from_secs(1), "{offset:?}");
        assert_eq!(leases.holder(), "b");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_while_it_takes_the_lease_releases_it() {
    let leases = Memory::default();
    let (first, second) = (candidate(&leases, "a"), candidate(&leases, "b"));
    // The API server stores the write, but its response arrives too late.
    let taken = first.lead(sleep(ANSWER + ANSWER / 2)).await;
    assert_eq!(leases.holder(), "a");
    taken.unwrap().release().await;
    assert_eq!(leases.holder(), "");

    // A waiting replica can stop at any time.
    let _held = lead(&second).await;
    for stop in [ANSWER / 2, ANSWER + POLL / 2] {
        let begun = Instant::now();
        assert!(first.lead(sleep(stop)).await.is_none());
        assert_eq!(begun.elapsed(), stop);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_held_by_another_replica_is_not_released() {
    let leases = Memory::default();
    let (first, second) = (candidate(&leases, "a"), candidate(&leases, "b"));
    let term = lead(&first).await;
    let mut taken = term.lease.clone();
    taken.spec.as_mut().unwrap().holder_identity = Some("b".to_owned());
    second.put(&taken).await.unwrap();

    term.release().await;

    assert_eq!(leases.holder(), "b");
}
