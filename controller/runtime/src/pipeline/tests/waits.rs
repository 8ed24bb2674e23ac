//! Tests of requests that wait: their Events, and the time of the next attempt.

use std::sync::LazyLock;

use k8s_openapi::api::events::v1::Event;
use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, Provider};
use kubelet_attestation::version::EvidenceVersion;
use node_attestation_core::inventory::{Machine, MachineState, StaticInventory};
use node_attestation_core::refusal::{Refusal, Unavailable};
use node_attestation_core::scope::{Enforcement, EnforcementState};
use node_attestation_core::testing::cluster::machine;
use node_attestation_core::testing::{cluster, now, valid};
use node_attestation_core::verifier::{Appraisal, Assurance, Verifier, Verifiers};

use super::{
    approved_by_hand, filed_at, later, pipeline, processed, processed_at, reason, without_machines,
    work,
};
use crate::csr_writer::testing::MemoryStore;
use crate::pipeline::*;

/// Out of 40 attempts, the numbers of the attempts that create an Event on the Machine about a waiting request. Also
/// returns the last Event.
async fn told_of(context: Context) -> (Vec<u32>, Option<Event>) {
    let store = Arc::new(MemoryStore::new(filed_at(now(), valid())));
    let (events, mut next) = Events::collected();
    let pipeline = Pipeline {
        clock: later,
        events,
        ..pipeline(context, &store)
    };
    let (mut told, mut last) = (Vec::new(), None);
    for attempts in 1..40 {
        let work = work(Some(store.request()), attempts);
        assert_eq!(pipeline.process(work).await, Next::Retry);
        if let Some(event) = next() {
            told.push(attempts);
            last = Some(event);
        }
        assert_eq!(next(), None);
    }
    (told, last)
}

/// A verifier whose list of endorsement keys is missing.
#[derive(Debug)]
struct Unread;

#[async_trait::async_trait]
impl Verifier for Unread {
    fn provider(&self) -> &Provider {
        &Provider::NULL
    }

    fn versions(&self) -> &[EvidenceVersion] {
        static V1: LazyLock<[EvidenceVersion; 1]> = LazyLock::new(|| [EvidenceVersion::V1]);
        &*V1
    }

    async fn verify(
        &self,
        _appraisal: Appraisal<'_>,
        _now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        let source = Unavailable::new("no ConfigMap metal/hosts");
        Err(Deferral::VerifierUnavailable(source).into())
    }
}

#[tokio::test]
async fn a_waiting_machine_gets_events_at_increasing_intervals() {
    let object = ObjectReference {
        kind: Some("Machine".to_owned()),
        namespace: Some("prod".to_owned()),
        name: Some("m1".to_owned()),
        ..ObjectReference::default()
    };
    let of = |change: fn(&mut Machine)| {
        let mut machine = machine("m1", "n1", Some("abcdef"));
        machine.object = Some(object.clone());
        change(&mut machine);
        Context {
            inventory: Arc::new(StaticInventory::new(vec![machine]).unwrap()),
            ..cluster()
        }
    };
    let unread: Arc<dyn Verifier> = Arc::new(Unread);
    for (context, reason) in [
        (of(|machine| machine.provider_id = None), "MachineNotReady"),
        (of(|machine| machine.node_name = None), "MachineNotReady"),
        (
            of(|machine| machine.state = MachineState::Pending),
            "MachineNotReady",
        ),
        (
            Context {
                verifiers: Verifiers::from_iter([unread]),
                ..of(|_| {})
            },
            "VerifierUnavailable",
        ),
    ] {
        let (told, last) = told_of(context).await;

        assert_eq!(told, [5, 7, 11, 19, 35]);
        let event = last.unwrap();
        assert_eq!(event.regarding.as_ref(), Some(&object));
        assert_eq!(event.reason.as_deref(), Some(reason));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        let note = event.note.unwrap();
        assert!(
            note.ends_with("the request has been pending for 601 s"),
            "{note}"
        );
    }
    assert_eq!(told_of(without_machines()).await, (vec![], None));
}

fn stock() -> CertificateSigningRequest {
    let mut stock = valid();
    stock.spec.signer_name = BUILT_IN_CLIENT_SIGNER.to_owned();
    stock
}

#[tokio::test]
async fn a_built_in_request_never_fails_while_the_enforcement_is_unknown() {
    let context = Context {
        enforcement: Enforcement::new(EnforcementState::Unknown),
        ..cluster()
    };
    // The built-in approver, which can be responsible for the request, has approved it.
    let approved = approved_by_hand(filed_at(now(), stock()));
    for request in [filed_at(now(), stock()), approved] {
        let store = Arc::new(MemoryStore::new(request));
        for clock in [now, later] {
            let next = processed_at(clock, context.clone(), &store).await;
            assert_eq!(next, Next::Retry);
            assert_eq!(store.writes(), 0);
        }
    }
}

#[tokio::test]
async fn a_built_in_request_is_rechecked_until_answered_or_enforced() {
    let context = cluster();
    context.enforcement.set(false);
    let stock = stock();
    let store = Arc::new(MemoryStore::new(stock.clone()));

    let next = processed(context.clone(), &store).await;
    assert_eq!(next, Next::NotOursYet);
    assert_eq!(store.writes(), 0);
    let mut issued = stock.clone();
    let status = issued.status.get_or_insert_default();
    status.certificate = Some(k8s_openapi::ByteString(b"x".to_vec()));
    let answered = Arc::new(MemoryStore::new(issued));
    assert_eq!(processed(context.clone(), &answered).await, Next::Done);

    context.enforcement.set(true);
    assert_eq!(processed(context, &store).await, Next::Done);
    let denied = reason(&store.request(), "Denied");
    assert!(denied.is_some(), "{:?}", store.request());
}
