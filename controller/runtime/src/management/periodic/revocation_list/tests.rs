use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::client::Body;
use node_attestation_core::crd::{MAX_REVOKED, MAX_REVOKED_KEYS};
use node_attestation_core::identifiers::{KeyDigest, RecordUid};
use node_attestation_core::ledger::{Records as _, RevocationDecisions};
use node_attestation_core::log_lines::Unlimited;
use node_attestation_core::testing::records::{World, at, name, policy};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{advance, timeout};
use tracing::Level;

use super::*;
use crate::client::ClusterAccess;
use crate::testing::ThreadLog;

/// The objects of an API server, keyed by path. `None` means that the API server is unavailable.
type Stored = Arc<Mutex<Option<BTreeMap<String, Value>>>>;

fn api_server() -> (Stored, ClusterAccess) {
    let stored: Stored = Arc::new(Mutex::new(Some(BTreeMap::new())));
    let objects = stored.clone();
    let access = ClusterAccess::in_memory(move |request: Request<Body>| {
        let objects = objects.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let mut objects = objects.lock();
            let path = parts.uri.path().to_owned();
            let found = objects.as_mut().map(|objects| {
                if parts.method != Method::GET {
                    objects.insert(path.clone(), serde_json::from_slice(&body).unwrap());
                }
                objects.get(&path).cloned()
            });
            let (status, body) = match found {
                Some(Some(object)) => (200, object),
                Some(None) => (404, failure(404, "NotFound")),
                None => (503, failure(503, "ServiceUnavailable")),
            };
            let body = Full::new(Bytes::from(body.to_string()));
            Response::builder().status(status).body(body).unwrap()
        }
    });
    (stored, access)
}

fn failure(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "metadata": {}, "code": code, "reason": reason, "message": ""})
}

/// The number of entries in the workload cluster's list.
fn entries(stored: &Stored) -> usize {
    let stored = stored.lock();
    let mut objects = stored.as_ref().unwrap().values();
    let list = objects.find(|object| object["kind"] == "RevokedNodeCredentials");
    list.map_or(0, |list| list["spec"]["revoked"].as_object().unwrap().len())
}

/// A world with a revoked record.
fn world() -> World {
    let world = World::held(policy());
    world.revoke("n1", 1);
    world
}

/// A list whose memory and turns no other test uses.
fn list_within(memory: usize) -> RevocationList {
    let line = FairTurns::new(WITHOUT_MEMORY).line(&ObjectKey::new("", ""));
    RevocationList::within(&Share::alone(memory), line)
}

async fn publish(
    list: &mut RevocationList,
    access: &ClusterAccess,
    world: &World,
) -> Result<(), RevocationListError> {
    let records = world.records.all().await.unwrap();
    list.publish(access.client(), (records, &world.ledger()), at(1))
        .await
}

#[tokio::test(start_paused = true)]
async fn a_hanging_read_of_the_revocation_list_keeps_no_records() {
    let access = ClusterAccess::in_memory(|_| pending::<Response<Full<Bytes>>>());
    let world = world();
    let records = world.records.all().await.unwrap();
    let known = Arc::downgrade(&records);
    let (mut list, ledger) = (RevocationList::default(), world.ledger());

    let publishing = list.publish(access.client(), (records, &ledger), at(1));
    let mut publishing = Box::pin(publishing);
    let waited = timeout(Duration::from_secs(1), &mut publishing).await;

    assert!(waited.is_err());
    assert!(known.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_revocation_list_is_restored_after_ten_minutes() {
    let (stored, access) = api_server();
    let (world, mut list) = (world(), RevocationList::default());
    publish(&mut list, &access, &world).await.unwrap();
    assert_eq!(entries(&stored), 1);

    *stored.lock() = Some(BTreeMap::new());
    advance(COMPARED_AGAIN.checked_sub(Duration::from_secs(1)).unwrap()).await;
    publish(&mut list, &access, &world).await.unwrap();
    assert_eq!(entries(&stored), 0, "it costs no call before");

    advance(Duration::from_secs(1)).await;
    publish(&mut list, &access, &world).await.unwrap();
    assert_eq!(entries(&stored), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_from_a_backup_gets_its_revocations_back_after_ten_minutes() {
    // A new leader knows only the remaining records, and not the deleted record.
    for (is_leading, is_deleted, expected) in [
        (true, false, 1),
        (true, true, 1),
        (false, false, 1),
        (false, true, 0),
    ] {
        let (stored, access) = api_server();
        let (world, mut list) = (World::held(policy()), RevocationList::default());
        publish(&mut list, &access, &world).await.unwrap();
        let backup = stored.lock().clone();
        world.revoke("n1", 1);
        publish(&mut list, &access, &world).await.unwrap();
        assert_eq!(entries(&stored), 1);
        if is_deleted {
            let name = name("n1");
            let record = world.records.read(&name).await.unwrap().unwrap();
            let deleted = world.records.delete(&name, &record.version);
            deleted.await.unwrap();
        }

        *stored.lock() = backup;
        assert_eq!(entries(&stored), 0);
        if !is_leading {
            world.revocations.forget();
            list = RevocationList::default();
        }
        advance(COMPARED_AGAIN).await;
        publish(&mut list, &access, &world).await.unwrap();

        assert_eq!(entries(&stored), expected, "{is_leading} {is_deleted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_generation_floor_is_published_and_restored_after_ten_minutes() {
    let floor = |stored: &Stored| {
        let stored = stored.lock();
        let mut objects = stored.as_ref().unwrap().values();
        let list = objects.find(|object| object["kind"] == "RevokedNodeCredentials");
        list.map(|list| list["spec"]["lowestValidGeneration"].clone())
    };
    let (stored, access) = api_server();
    let world = World::held(policy());
    world.revocations.forget();
    let mut list = RevocationList::default();
    publish(&mut list, &access, &world).await.unwrap();
    assert!(world.revocations.is_read());
    assert_eq!(floor(&stored), None);

    let decisions = RevocationDecisions {
        floor: 7,
        ..RevocationDecisions::default()
    };
    world.revocations.decide(decisions);
    publish(&mut list, &access, &world).await.unwrap();
    assert_eq!(floor(&stored), Some(json!(7)));

    // Neither the list nor the annotation contains the floor.
    *stored.lock() = Some(BTreeMap::new());
    world.revocations.decide(RevocationDecisions::default());
    advance(COMPARED_AGAIN).await;
    publish(&mut list, &access, &world).await.unwrap();
    assert_eq!(floor(&stored), Some(json!(7)));
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_list_is_not_treated_as_empty() {
    let (stored, access) = api_server();
    let world = World::held(policy());
    world.revocations.forget();
    *stored.lock() = None;

    let published = publish(&mut RevocationList::default(), &access, &world).await;

    assert!(published.is_err());
    assert!(!world.revocations.is_read());
}

#[tokio::test(start_paused = true)]
async fn a_list_over_the_memory_limit_is_not_treated_as_empty() {
    let (_stored, access) = api_server();
    let world = world();
    let mut greedy = list_within(0);

    let published = publish(&mut greedy, &access, &world).await;

    let error = published.unwrap_err().to_string();
    assert!(error.contains("exceed the available memory"), "{error}");
    assert!(!world.revocations.is_read(), "its requests wait");
    let mut list = list_within(OWN_MEMORY);
    publish(&mut list, &access, &world).await.unwrap();
    assert!(world.revocations.is_read());
}

#[tokio::test(start_paused = true)]
async fn lists_without_memory_for_their_copies_are_written_in_turn() {
    let (stored, access) = api_server();
    let world = world();
    let turns = FairTurns::new(WITHOUT_MEMORY);
    let list = |memory, name| {
        let line = turns.line(&ObjectKey::new("a", name));
        RevocationList::within(&Share::alone(memory), line)
    };
    let (mut small, mut large) = (list(OWN_MEMORY, "small"), list(0, "large"));
    let others = [("b", "1"), ("b", "2"), ("c", "1"), ("d", "1")];
    let others = others.map(|(namespace, name)| ObjectKey::new(namespace, name));
    let lines = others.map(|key| turns.line(&key));
    let held = lines.each_ref().map(|line| line.try_turn().unwrap());

    let hour = Duration::from_hours(1);
    let waiting = timeout(hour, publish(&mut large, &access, &world)).await;
    assert!(waiting.is_err());
    assert!(stored.lock().as_ref().unwrap().is_empty());
    drop(held);
    let error = publish(&mut large, &access, &world).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("exceed the available memory"), "{error}");
    assert_eq!(entries(&stored), 1);

    stored.lock().as_mut().unwrap().clear();
    let held = lines.each_ref().map(|line| line.try_turn().unwrap());
    publish(&mut small, &access, &world).await.unwrap();
    assert_eq!(entries(&stored), 1);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_full_list_is_reported_in_each_round_until_it_has_space() {
    let (stored, access) = api_server();
    let world = world();
    let all = world.records.all().await.unwrap();
    let revoked = (*all[0]).clone();
    // All records have the same key, so only the list of records is full.
    let records = |count: u32| {
        let numbers = (0..count).map(u128::from);
        let with_uid = |number: u128| {
            let mut stored = revoked.clone();
            stored.record.uid = RecordUid::new(number.to_be_bytes());
            stored
        };
        let records = numbers.map(with_uid).map(Arc::new);
        AllRecords::from(records.collect::<Vec<_>>())
    };
    let max = u32::try_from(MAX_REVOKED).unwrap();
    let mut list = list_within(64 * OWN_MEMORY);
    let ledger = world.ledger();
    let mut round = async |count| {
        let records = (records(count), &ledger);
        list.publish(access.client(), records, at(1)).await
    };
    let full = |count| Err(RevocationListError::Full(count));

    assert_eq!(round(max + 2).await, full(2));
    assert_eq!(entries(&stored), MAX_REVOKED);
    // The next round does not make any call.
    let kept = stored.lock().take();
    assert_eq!(round(max + 2).await, full(2));
    assert_eq!(round(max + 2).await, full(2));
    *stored.lock() = kept;
    assert_eq!(round(max + 3).await, full(3));

    world.revocations.forget();
    *stored.lock() = Some(BTreeMap::new());
    assert_eq!(round(max).await, Ok(()));
    assert_eq!(entries(&stored), MAX_REVOKED);
}

#[tokio::test(start_paused = true)]
async fn an_empty_revocation_list_is_not_published_again() {
    let (stored, access) = api_server();
    let world = World::held(policy());
    let mut list = RevocationList::default();
    publish(&mut list, &access, &world).await.unwrap();

    *stored.lock() = None;
    advance(COMPARED_AGAIN * 2).await;
    assert_eq!(publish(&mut list, &access, &world).await, Ok(()));
}

#[test]
fn only_the_first_failure_of_an_outage_is_a_warning() {
    let mut list = RevocationList::default();
    let log = ThreadLog::start(Level::INFO);
    let outage = PartError::Call("the API server is away".to_owned());
    let away = || Err(RevocationListError::Part(outage.clone()));
    for tried in [away(), away(), away(), Ok(()), away(), away()] {
        list.log(tried, &Unlimited);
    }
    let text = log.text();
    assert_eq!(log.count(&["WARN"]), 2, "{text}");
    assert!(!text.contains("newly revoked"));
}

#[tokio::test(start_paused = true)]
async fn unchanged_records_are_not_read_again_for_the_list() {
    let (stored, access) = api_server();
    let world = world();
    let records = world.records.all().await.unwrap();
    let mut list = RevocationList::default();
    let ledger = world.ledger();
    let mut computed = Vec::new();
    let mut publish = async |records: &AllRecords, now: SystemTime| {
        let records = (records.clone(), &ledger);
        list.publish(access.client(), records, now).await.unwrap();
        let wanted = list.wanted.as_ref().unwrap().list.clone();
        let is_new = computed.iter().all(|known| !Arc::ptr_eq(known, &wanted));
        computed.push(wanted);
        is_new
    };
    let second = Duration::from_secs(1);
    let revoked = records[0]
        .record
        .revoked_generations(policy().longest_lifetime, at(1));
    let end = revoked.unwrap().until;

    assert!(publish(&records, at(1)).await);
    assert!(!publish(&records, at(1)).await);
    assert!(!publish(&records, end - second).await);
    // The clock is set back.
    assert!(publish(&records, at(1) - second).await);
    assert!(!publish(&records, at(1)).await);
    // The records change.
    let changed = world.records.all().await.unwrap();
    assert!(publish(&changed, at(1)).await);
    assert!(!publish(&changed, at(1)).await);
    assert_eq!(entries(&stored), 1);
    // The first entry expires, or the policy changes.
    let longest = policy().longest_lifetime;
    let wanted = Wanted::read(&changed, longest, at(1)).await;
    assert!(wanted.is_of(&changed, longest, end - second));
    assert!(!wanted.is_of(&changed, longest, end));
    assert!(!wanted.is_of(&changed, longest + second, at(1)));
    assert!(!wanted.is_of(&records, longest, at(1)));
}

#[tokio::test(start_paused = true)]
async fn a_list_does_not_keep_previous_records_in_memory() {
    let (_stored, access) = api_server();
    let world = world();
    let mut list = RevocationList::default();
    let records = world.records.all().await.unwrap();
    let previous = Arc::downgrade(&records[0]);
    list.publish(access.client(), (records, &world.ledger()), at(1))
        .await
        .unwrap();

    assert!(previous.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn only_the_revoked_keys_that_fit_are_kept_in_memory() {
    let (_stored, access) = api_server();
    let world = world();
    let all = world.records.all().await.unwrap();
    let numbers = 0..2 * MAX_REVOKED_KEYS;
    let records = numbers.map(|number| {
        let mut stored = (*all[0]).clone();
        stored.record.uid = RecordUid::new(u128::try_from(number).unwrap().to_be_bytes());
        stored.record.opened.key = KeyDigest::of(&number.to_be_bytes());
        Arc::new(stored)
    });
    let records = AllRecords::from(records.collect::<Vec<_>>());
    let mut list = list_within(64 * OWN_MEMORY);

    let ledger = world.ledger();
    let published = list.publish(access.client(), (records, &ledger), at(1));

    let error = published.await.unwrap_err();
    assert_eq!(error, RevocationListError::Full(300));
    let left_out =
        "the list is full: the certificates or keys of 300 node identities are not refused";
    assert_eq!(error.to_string(), left_out);
    let (records, keys) = world.revocations.len();
    assert_eq!((records, keys), (2 * MAX_REVOKED_KEYS, MAX_REVOKED_KEYS));
}
