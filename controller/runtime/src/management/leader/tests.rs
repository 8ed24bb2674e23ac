use std::sync::{Arc, Mutex};

use kube::core::Status;
use node_attestation_core::testing::now;
use tokio::time::timeout;

use super::*;

/// A Lease in memory, with Kubernetes' preconditions; and whether it can be reached.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<(Option<Lease>, u64, bool)>>);

fn refused(code: u16) -> CallError {
    let status = Status {
        code,
        ..Status::default()
    };
    CallError::Api(Box::new(kube::Error::Api(Box::new(status))))
}

impl Memory {
    fn cut(&self, cut: bool) {
        self.0.lock().unwrap().2 = cut;
    }

    fn holder(&self) -> String {
        let state = self.0.lock().unwrap();
        holder(state.0.as_ref().unwrap()).to_owned()
    }

    fn transitions(&self) -> i32 {
        let state = self.0.lock().unwrap();
        let spec = state.0.as_ref().unwrap().spec.as_ref().unwrap();
        spec.lease_transitions.unwrap()
    }
}

impl Leases for Memory {
    fn get(&self) -> BoxFuture<'_, Result<Option<Lease>, CallError>> {
        Box::pin(async {
            let state = self.0.lock().unwrap();
            if state.2 {
                return Err(CallError::Deadline(CALL_DEADLINE));
            }
            Ok(state.0.clone())
        })
    }

    fn put(&self, mut lease: Lease) -> BoxFuture<'_, Result<Lease, CallError>> {
        Box::pin(async {
            let mut state = self.0.lock().unwrap();
            if state.2 {
                return Err(CallError::Deadline(CALL_DEADLINE));
            }
            let current = state.0.as_ref();
            let current = current.and_then(|lease| lease.metadata.resource_version.clone());
            if current != lease.metadata.resource_version {
                return Err(refused(409));
            }
            state.1 += 1;
            lease.metadata.resource_version = Some(state.1.to_string());
            state.0 = Some(lease.clone());
            Ok(lease)
        })
    }
}

fn candidate(leases: &Memory, identity: &str) -> Candidate<Memory> {
    Candidate::new(leases.clone(), "lease".into(), identity.into(), now)
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_other_waits_until_it_is_given_up() {
    let leases = Memory::default();
    let (first, second) = (candidate(&leases, "a"), candidate(&leases, "b"));
    let mut term = first.lead().await;

    let waited = timeout(10 * LEASE_DURATION, async {
        tokio::select! {
            () = term.held() => {}
            _ = second.lead() => {}
        }
    });
    assert!(waited.await.is_err(), "the leader renews");

    term.release().await;
    let begun = Instant::now();
    second.lead().await;
    assert!(begun.elapsed() <= RETRY);
    assert_eq!((leases.holder().as_str(), leases.transitions()), ("b", 2));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_died_is_followed_when_its_lease_has_lapsed() {
    let leases = Memory::default();
    let dead = candidate(&leases, "a");
    let _dead = dead.lead().await;
    let begun = Instant::now();

    candidate(&leases, "b").lead().await;

    assert!(begun.elapsed() >= LEASE_DURATION);
    assert!(begun.elapsed() <= LEASE_DURATION + 2 * RETRY);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_another_begins() {
    let leases = Memory::default();
    let first = candidate(&leases, "a");
    let mut term = first.lead().await;
    leases.cut(true);
    let begun = Instant::now();

    term.held().await;

    assert!(begun.elapsed() >= RENEW_DEADLINE);
    assert!(begun.elapsed() < LEASE_DURATION);
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_deadline_changes_nothing() {
    let leases = Memory::default();
    let first = candidate(&leases, "a");
    let mut term = first.lead().await;
    leases.cut(true);
    let healed = leases.clone();
    tokio::spawn(async move {
        sleep(RENEW_DEADLINE.saturating_sub(2 * RETRY)).await;
        healed.cut(false);
    });

    assert!(timeout(10 * LEASE_DURATION, term.held()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_taken_leads_no_more() {
    let leases = Memory::default();
    let first = candidate(&leases, "a");
    let mut term = first.lead().await;
    let taken = {
        let lease = leases.get().await.unwrap();
        candidate(&leases, "b").taken(lease)
    };
    leases.put(taken).await.unwrap();
    let begun = Instant::now();

    term.held().await;

    assert!(begun.elapsed() <= RETRY);
}

#[tokio::test(start_paused = true)]
async fn a_restart_under_the_same_identity_need_not_wait() {
    let leases = Memory::default();
    candidate(&leases, "a").lead().await;
    let begun = Instant::now();

    candidate(&leases, "a").lead().await;

    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(leases.transitions(), 1);
}
