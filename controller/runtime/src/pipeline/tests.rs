mod challenges;
mod crashes;
mod outages;
mod waits;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kubelet_attestation::names::ProviderId;
use kubelet_attestation::version::{EvidenceVersion, SUPPORTED_VERSIONS_ANNOTATION};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::{
    Inventory, Machine, MachineState, StaticInventory, TokenOwner,
};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::testing::cluster::{AcceptAllVerifier, cluster_seen_by, machine};
use node_attestation_core::testing::{cluster, now, valid};

use super::*;
use crate::csr_writer::testing::{Fault, MemoryStore, UID};

pub(super) fn pipeline(context: Context, store: &Arc<MemoryStore>) -> Pipeline {
    Pipeline::new(context, store.clone(), Events::none(), now)
}

pub(super) async fn processed(context: Context, store: &Arc<MemoryStore>) -> Next {
    processed_at(now, context, store).await
}

async fn processed_at(
    clock: fn() -> SystemTime,
    context: Context,
    store: &Arc<MemoryStore>,
) -> Next {
    let seen = store.request();
    let pipeline = Pipeline {
        clock,
        ..pipeline(context, store)
    };
    pipeline.process(work(Some(seen), 0)).await
}

/// The maximum length of the requests in these tests.
const MAX_LEN: usize = 64 * 1024;

pub(super) fn work(seen: Option<CertificateSigningRequest>, attempts: u32) -> Work {
    Work {
        name: "csr".to_owned(),
        uid: UID.to_owned(),
        object: seen.map(Box::new),
        max_len: MAX_LEN,
        attempts,
    }
}

/// A time that is a little more than 10 minutes after [`now`].
pub(super) fn later() -> SystemTime {
    now() + Duration::from_secs(601)
}

fn twenty_minutes_later() -> SystemTime {
    now() + Duration::from_mins(20)
}

/// A time that is a little more than 20 minutes after [`now`].
fn much_later() -> SystemTime {
    now() + Duration::from_secs(1201)
}

pub(super) fn filed_at(
    time: SystemTime,
    mut request: CertificateSigningRequest,
) -> CertificateSigningRequest {
    let time = Timestamp::try_from(time).unwrap();
    request.metadata.creation_timestamp = Some(Time(time));
    request
}

pub(super) fn without_machines() -> Context {
    Context {
        inventory: Arc::new(StaticInventory::default()),
        ..cluster()
    }
}

/// A cluster whose machine is not ready to join.
fn pending() -> Context {
    let machine = Machine {
        state: MachineState::Pending,
        ..machine("m1", "n1", Some("abcdef"))
    };
    Context {
        inventory: Arc::new(StaticInventory::new(vec![machine]).unwrap()),
        ..cluster()
    }
}

pub(super) fn reason(request: &CertificateSigningRequest, condition: &str) -> Option<String> {
    let status = request.status.as_ref()?;
    let conditions = status.conditions.as_ref()?;
    let found = conditions.iter().find(|found| found.type_ == condition)?;
    found.reason.clone()
}

fn is_issued(request: &CertificateSigningRequest) -> bool {
    let status = request.status.as_ref();
    status.is_some_and(|status| status.certificate.is_some())
}

/// A request with another machine's token.
fn bad() -> CertificateSigningRequest {
    let mut request = valid();
    request.spec.username = Some("system:bootstrap:ghijkl".to_owned());
    request
}

fn approved_by_hand(mut request: CertificateSigningRequest) -> CertificateSigningRequest {
    let condition = k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition {
        type_: "Approved".to_owned(),
        status: "True".to_owned(),
        reason: Some("ByHand".to_owned()),
        ..Default::default()
    };
    let status = request.status.get_or_insert_default();
    status.conditions.get_or_insert_default().push(condition);
    request
}

#[tokio::test]
async fn a_valid_request_is_approved_and_issued_in_two_writes() {
    let store = Arc::new(MemoryStore::new(valid()));

    let next = processed(cluster(), &store).await;

    assert_eq!(next, Next::Done);
    let request = store.request();
    assert_eq!(
        reason(&request, "Approved").as_deref(),
        Some("NodeNameClaimed")
    );
    assert!(is_issued(&request));
    assert_eq!(store.writes(), 2);
}

#[tokio::test]
async fn a_contradiction_is_denied_without_another_write() {
    let store = Arc::new(MemoryStore::new(bad()));

    let next = processed(cluster(), &store).await;

    assert_eq!(next, Next::Done);
    let request = store.request();
    assert!(reason(&request, "Denied").is_some(), "{request:?}");
    assert_eq!(reason(&request, "Approved"), None);
    assert!(!is_issued(&request));
    assert_eq!(store.writes(), 1);
}

#[tokio::test]
async fn an_unsupported_version_fails_with_the_supported_versions() {
    let newer = AcceptAllVerifier {
        sees: None,
        node_name: None,
        versions: vec![
            EvidenceVersion::parse("v8").unwrap(),
            EvidenceVersion::parse("v9").unwrap(),
        ],
    };
    let store = Arc::new(MemoryStore::new(valid()));

    let next = processed(cluster_seen_by(newer), &store).await;

    assert_eq!(next, Next::Done);
    let request = store.request();
    let failed = reason(&request, "Failed");
    assert_eq!(failed.as_deref(), Some("UnsupportedAttestationVersion"));
    let annotations = request.metadata.annotations.unwrap();
    assert_eq!(annotations[SUPPORTED_VERSIONS_ANNOTATION], "v8,v9");
    assert_eq!(store.writes(), 1);
}

#[tokio::test]
async fn a_deferred_request_is_not_changed() {
    let unknown = Context {
        inventory: Arc::new(StaticInventory::default()),
        ..cluster()
    };
    let store = Arc::new(MemoryStore::new(valid()));
    let before = store.request();

    let next = processed(unknown, &store).await;

    assert_eq!(next, Next::Retry);
    assert_eq!(store.request(), before);
    assert_eq!(store.writes(), 0);
}

#[tokio::test]
async fn an_approved_request_without_decision_fails_after_10_minutes() {
    let ten_minutes_ago = now() - Duration::from_mins(10);
    let store = Arc::new(MemoryStore::new(approved_by_hand(filed_at(
        ten_minutes_ago,
        valid(),
    ))));

    let next = processed(without_machines(), &store).await;
    assert_eq!(next, Next::Retry);
    assert_eq!(store.writes(), 0);

    let next = processed_at(later, without_machines(), &store).await;
    assert_eq!(next, Next::Done);
    let request = store.request();
    let failed = reason(&request, "Failed");
    assert_eq!(failed.as_deref(), Some("UndecidedTooLong"));
    assert!(!is_issued(&request));
}

#[tokio::test]
async fn a_request_without_machine_fails_when_its_node_stops_waiting() {
    let store = Arc::new(MemoryStore::new(filed_at(now(), valid())));

    for clock in [later, twenty_minutes_later] {
        let next = processed_at(clock, without_machines(), &store).await;
        assert_eq!(next, Next::Retry);
        assert_eq!(store.writes(), 0);
    }

    let next = processed_at(much_later, without_machines(), &store).await;
    assert_eq!(next, Next::Done);
    let request = store.request();
    let failed = reason(&request, "Failed");
    assert_eq!(failed.as_deref(), Some("MachineMissing"));
    assert!(!is_issued(&request));
}

#[tokio::test(start_paused = true)]
async fn an_approved_request_whose_checks_hang_fails_after_10_minutes() {
    let stuck = Context {
        inventory: Arc::new(Stuck),
        ..cluster()
    };
    let store = Arc::new(MemoryStore::new(approved_by_hand(filed_at(now(), valid()))));

    let next = processed_at(later, stuck, &store).await;

    assert_eq!(next, Next::Done);
    let failed = reason(&store.request(), "Failed");
    assert_eq!(failed.as_deref(), Some("UndecidedTooLong"));
}

#[tokio::test]
async fn an_unapproved_request_never_fails_because_of_its_age() {
    let store = Arc::new(MemoryStore::new(filed_at(now(), valid())));

    let next = processed_at(much_later, pending(), &store).await;

    assert_eq!(next, Next::Retry);
    assert_eq!(store.writes(), 0);
}

#[tokio::test]
async fn a_certificate_that_the_api_server_rejects_fails_the_request() {
    let store = Arc::new(MemoryStore::new(valid()).with_fault(1, Fault::Refused(422)));

    let next = processed(cluster(), &store).await;

    assert_eq!(next, Next::Done);
    let request = store.request();
    let failed = reason(&request, "Failed");
    assert_eq!(failed.as_deref(), Some("CertificateRejected"));
    assert!(!is_issued(&request));
}

#[tokio::test]
async fn a_request_whose_update_is_rejected_waits_until_it_changes() {
    for request in [valid(), bad()] {
        let request = approved_by_hand(request);
        let store = Arc::new(MemoryStore::new(request).with_fault(0, Fault::NeverValid));
        let before = store.request();

        let next = processed(cluster(), &store).await;

        assert_eq!(next, Next::GiveUp);
        assert_eq!(store.request(), before);
    }
}

#[tokio::test]
async fn a_certificate_write_that_fails_temporarily_is_retried() {
    for code in [403, 500] {
        let store = Arc::new(MemoryStore::new(valid()).with_fault(1, Fault::Refused(code)));

        assert_eq!(processed(cluster(), &store).await, Next::Retry, "{code}");
        assert_eq!(reason(&store.request(), "Failed"), None, "{code}");
    }
}

#[tokio::test]
async fn an_invalid_request_approved_elsewhere_fails_without_a_certificate() {
    let store = Arc::new(MemoryStore::new(approved_by_hand(bad())));

    let next = processed(cluster(), &store).await;

    assert_eq!(next, Next::Done);
    let request = store.request();
    assert!(reason(&request, "Failed").is_some(), "{request:?}");
    assert_eq!(reason(&request, "Denied"), None);
    assert!(!is_issued(&request));
}

#[tokio::test]
async fn a_valid_request_approved_elsewhere_is_issued_in_one_write() {
    let store = Arc::new(MemoryStore::new(approved_by_hand(valid())));

    let next = processed(cluster(), &store).await;

    assert_eq!(next, Next::Done);
    let request = store.request();
    assert!(is_issued(&request));
    assert_eq!(reason(&request, "Approved").as_deref(), Some("ByHand"));
    assert_eq!(store.writes(), 1);
}

#[tokio::test]
async fn an_answered_request_is_not_changed() {
    let store = Arc::new(MemoryStore::new(valid()));
    processed(cluster(), &store).await;
    let before = store.request();

    let next = processed(cluster(), &store).await;

    assert_eq!(next, Next::Done);
    assert_eq!(store.request(), before);
}

#[tokio::test]
async fn a_concurrent_denial_is_kept() {
    let store = Arc::new(MemoryStore::new(valid()).with_fault(0, Fault::DeniedBefore));

    let next = processed(cluster(), &store).await;

    assert_eq!(next, Next::Done);
    let request = store.request();
    assert_eq!(reason(&request, "Denied").as_deref(), Some("ByHand"));
    assert_eq!(reason(&request, "Approved"), None);
    assert!(!is_issued(&request));
}

#[tokio::test]
async fn a_constantly_changing_request_is_retried_after_a_few_rounds() {
    let store = Arc::new(MemoryStore::new(valid()).with_fault(0, Fault::AnnotatedBefore));

    let next = processed(cluster(), &store).await;

    assert_eq!(next, Next::Retry);
    assert_eq!(store.writes(), MAX_ROUNDS);
    assert!(!is_issued(&store.request()));
}

#[tokio::test]
async fn a_concurrently_deleted_request_is_done() {
    for write in [0, 1] {
        let store = Arc::new(MemoryStore::new(valid()).with_fault(write, Fault::DeletedBefore));

        assert_eq!(
            processed(cluster(), &store).await,
            Next::Done,
            "write {write}"
        );
    }
}

#[tokio::test]
async fn a_recreated_request_is_decided_separately() {
    let store = Arc::new(MemoryStore::new(valid()));
    let former = Work {
        uid: "former".to_owned(),
        ..work(None, 1)
    };

    let next = pipeline(cluster(), &store).process(former).await;

    assert_eq!(next, Next::Done);
    assert_eq!(store.writes(), 0);
}

#[tokio::test]
async fn an_oversized_request_waits_for_memory() {
    let mut long = valid();
    let note = "x".repeat(MAX_LEN);
    long.metadata.annotations = Some([("note".to_owned(), note)].into());
    let store = Arc::new(MemoryStore::new(long));

    let next = pipeline(cluster(), &store).process(work(None, 1)).await;

    assert_eq!(next, Next::Retry);
    assert_eq!(store.writes(), 0);
}

#[tokio::test]
async fn a_failed_write_is_retried() {
    for fault in [Fault::Lost, Fault::AnswerLost] {
        for write in [0, 1] {
            let store = Arc::new(MemoryStore::new(valid()).with_fault(write, fault));
            let context = cluster();
            let next = processed(context.clone(), &store).await;
            assert_eq!(next, Next::Retry, "{fault:?} of write {write}");

            let next = pipeline(context, &store).process(work(None, 1)).await;

            assert_eq!(next, Next::Done, "{fault:?} of write {write}");
            assert!(is_issued(&store.request()), "{fault:?} of write {write}");
        }
    }
}

#[tokio::test]
async fn a_crash_after_any_write_is_completed_by_the_next_run() {
    for (request, write, expected) in [
        (valid(), 0, "issued"),
        (valid(), 1, "issued"),
        (bad(), 0, "Denied"),
        (approved_by_hand(bad()), 0, "Failed"),
    ] {
        let store = Arc::new(MemoryStore::new(request).with_fault(write, Fault::Death));
        let died = AssertUnwindSafe(processed(cluster(), &store))
            .catch_unwind()
            .await;
        assert!(died.is_err(), "write {write}");

        // A new process does not remember the earlier attempts.
        let next = processed(cluster(), &store).await;

        assert_eq!(next, Next::Done);
        let request = store.request();
        let refusals = ["Denied", "Failed"].into_iter();
        let refusals = refusals.filter(|condition| reason(&request, condition).is_some());
        let issued = is_issued(&request).then_some("issued");
        let answers: Vec<_> = refusals.chain(issued).collect();
        assert_eq!(answers, [expected], "{request:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_checks_time_out_and_are_retried() {
    let stuck = Context {
        inventory: Arc::new(Stuck),
        ..cluster()
    };
    let store = Arc::new(MemoryStore::new(valid()));

    let next = processed(stuck, &store).await;

    assert_eq!(next, Next::Retry);
    assert_eq!(store.writes(), 0);
}

/// An inventory that never responds.
#[derive(Debug)]
struct Stuck;

#[async_trait::async_trait]
impl Inventory for Stuck {
    async fn by_provider_id(
        &self,
        _provider_id: &ProviderId,
    ) -> Result<Option<Machine>, Unavailable> {
        std::future::pending().await
    }

    async fn by_token(&self, _token: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        std::future::pending().await
    }

    async fn by_address(&self, _: IpAddr) -> Result<Vec<Machine>, Unavailable> {
        std::future::pending().await
    }

    async fn by_name(&self, _: &str) -> Result<Vec<Machine>, Unavailable> {
        std::future::pending().await
    }
}
