use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Wake, Waker};

use futures::executor::block_on;
use futures::future::FutureExt as _;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::identifiers::RecordUid;
use node_attestation_core::ledger::Record;
use node_attestation_core::pace;
use node_attestation_core::testing::pauses;
use node_attestation_core::testing::records::{at, claim, provider_id};
use serde_json::json;
use tracing::Level;

use super::*;
use crate::shared::testing::most_visited;
use crate::testing::ThreadLog;

fn stored(machine: &str, key: u8, endorsement_key: Option<&str>) -> Stored {
    let claim = claim(machine, "n1", key, 0);
    let mut record = Record::first(&claim, RecordUid::new([7; 16]), None, at(0));
    record.holder.endorsement_key = endorsement_key.map(|key| KeyDigest::of(key.as_bytes()));
    Stored {
        record,
        version: Version::new("1"),
    }
}

fn all(cache: &Cache) -> AllRecords {
    block_on(cache.all())
}

fn broken() -> BrokenRecord {
    BrokenRecord {
        object: String::new(),
        field: "spec",
    }
}

/// Asserts that the index finds the same records as a search of all records.
#[track_caller]
fn assert_found(cache: &Cache) {
    let all = all(cache);
    for (machine, key, endorsement_key) in [
        ("m1", 1, None),
        ("m1", 9, Some("a")),
        ("m2", 2, Some("b")),
        ("m3", 1, Some("b")),
        ("m9", 9, Some("z")),
    ] {
        let mut identity = Identity::of(provider_id(machine));
        identity.endorsement_key = endorsement_key.map(|key| KeyDigest::of(key.as_bytes()));
        let key = stored(machine, key, None).record.opened.key;
        let concerned = |stored: &&Arc<Stored>| stored.record.concerns(&identity, key);
        let expected: Vec<_> = all.iter().filter(concerned).collect();
        let found = cache.of_machine(&identity, key).unwrap();
        assert_eq!(found.len(), expected.len(), "{machine}");
        assert!(expected.iter().all(|one| found.contains(one)), "{machine}");
    }
}

#[test]
fn the_records_of_a_machine_its_tpm_or_a_key_are_found_after_every_change() {
    let cache = Cache::new("default", Arc::default());
    let put = |name: &str, stored: Result<Stored, BrokenRecord>| {
        cache.put(name, stored.map(Arc::new));
        assert_found(&cache);
    };
    put("a", Ok(stored("m1", 1, Some("a"))));
    put("b", Ok(stored("m2", 2, Some("b"))));
    put("c", Ok(stored("m1", 3, None)));
    put("d", Ok(stored("m4", 1, Some("b"))));
    // The name now belongs to another machine, with another TPM and another key.
    put("a", Ok(stored("m3", 2, None)));
    put("b", Err(broken()));
    cache.remove("d");
    assert_found(&cache);
    let mut all = RecordTable::default();
    all.put("e", Ok(Arc::new(stored("m2", 1, Some("a")))));
    cache.replace(all);
    assert_found(&cache);

    let found = cache.of_machine(
        &Identity::of(provider_id("m2")),
        stored("m2", 9, None).record.opened.key,
    );
    assert_eq!(found.unwrap(), [stored("m2", 1, Some("a"))]);
}

#[test]
fn unchanged_records_are_not_copied_again() {
    let cache = Cache::new("default", Arc::default());
    let put = |name: String| cache.put(&name, Ok(Arc::new(stored("m1", 1, None))));
    (0..300).for_each(|number| put(number.to_string()));
    let first = all(&cache);
    assert_eq!(first.len(), 300);

    assert!(Arc::ptr_eq(&first, &all(&cache)));

    put("new".to_owned());
    let second = all(&cache);
    assert_eq!(second.len(), 301);
    assert!(Arc::ptr_eq(&first[0], &second[0]));
}

/// Changes to the only record, `a`.
const CHANGES: [fn(&Cache); 3] = [
    |cache| cache.put("a", Ok(Arc::new(stored("m2", 2, None)))),
    |cache| cache.remove("a"),
    |cache| cache.replace(RecordTable::default()),
];

#[test]
fn a_changed_record_is_not_kept_by_the_last_copy() {
    for change in CHANGES {
        let cache = Cache::new("default", Arc::default());
        let record = Arc::new(stored("m1", 1, None));
        let known = Arc::downgrade(&record);
        cache.put("a", Ok(record));
        assert_eq!(all(&cache).len(), 1);
        assert!(known.upgrade().is_some());

        change(&cache);

        assert!(known.upgrade().is_none());
    }
}

#[test]
fn a_record_that_changes_during_a_copy_is_not_kept_by_it() {
    for change in CHANGES {
        let cache = Cache::new("default", Arc::default());
        let record = Arc::new(stored("m1", 1, None));
        let known = Arc::downgrade(&record);
        cache.put("a", Ok(record));
        for number in 0..2 * PAGE.max(pace::PAGE) {
            let other = Arc::new(stored("m3", 3, None));
            cache.put(&format!("b{number}"), Ok(other));
        }
        {
            let mut copying = pin!(cache.all());
            assert!(copying.as_mut().now_or_never().is_none());
            change(&cache);
            let copied = block_on(copying);
            assert!(known.upgrade().is_some());
            drop(copied);
        }

        assert!(known.upgrade().is_none());
    }
}

/// The number of times that a task was woken.
#[derive(Debug, Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The record in this version.
fn in_version(version: &str) -> Arc<Stored> {
    Arc::new(Stored {
        version: Version::new(version),
        ..stored("m1", 1, None)
    })
}

#[tokio::test(start_paused = true)]
async fn a_waiting_claim_is_woken_only_by_its_own_record() {
    let watched: Arc<RecordWatch> = Arc::default();
    let cache = Cache::new("default", watched.clone());
    let (wakes, version) = (Arc::<Wakes>::default(), Version::new("7"));
    let waker = Waker::from(wakes.clone());
    let mut context = Context::from_waker(&waker);
    let woken = || wakes.0.load(Ordering::Relaxed);
    let mut waiting = pin!(cache.caught_up("a", &version));
    assert!(waiting.as_mut().poll(&mut context).is_pending());

    for number in 0..100 {
        cache.put(&format!("b{number}"), Ok(in_version("8")));
        watched.heard.now();
    }
    cache.remove("b0");
    assert_eq!(woken(), 0);

    cache.put("a", Ok(in_version("6")));
    assert_eq!(woken(), 1);
    assert!(waiting.as_mut().poll(&mut context).is_pending());

    cache.put("a", Ok(in_version("7")));
    assert_eq!(woken(), 2);
    assert!(waiting.as_mut().poll(&mut context).is_ready());
    assert!(cache.awaited.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_new_list_of_records_ends_the_wait_of_a_claim() {
    let cache = Cache::new("default", Arc::default());
    let version = Version::new("7");
    let listing = async {
        tokio::task::yield_now().await;
        assert_eq!(cache.awaited.lock().len(), 1);
        let mut listed = RecordTable::default();
        listed.put("a", Ok(in_version("8")));
        cache.replace(listed);
    };

    let (caught_up, ()) = futures::future::join(cache.caught_up("a", &version), listing).await;

    caught_up.unwrap();
    cache.caught_up("a", &version).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn claims_that_stop_waiting_for_a_record_leave_nothing_behind() {
    let cache = Cache::new("default", Arc::default());
    let version = Version::new("7");
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(cache.caught_up("a", &version)));
    for waiting in [&mut first, &mut second] {
        assert!(waiting.now_or_never().is_none());
    }
    drop(first);
    assert_eq!(cache.awaited.lock().len(), 1);

    let error = second.await.unwrap_err();

    assert_eq!(
        error_chain(&error),
        "the watch of node identities is delayed"
    );
    assert!(cache.awaited.lock().is_empty());
}

#[test]
fn all_records_are_copied_in_pages() {
    let cache = Cache::new("default", Arc::default());
    for number in 0..10 * PAGE {
        cache.put(&number.to_string(), Ok(Arc::new(stored("m1", 1, None))));
    }

    let copied = || {
        let (all, count) = pauses(cache.all());
        assert_eq!(all.len(), 10 * PAGE);
        assert_eq!(count, 10 * PAGE / pace::PAGE);
    };
    let visited = most_visited(copied);

    assert_eq!(visited[&Lock::ClusterRecords], PAGE);
}

#[test]
fn reaching_a_namespace_limit_visits_no_other_namespace() {
    let watched = RecordWatch::default();
    for number in 0..10 * PAGE {
        watched.set_over_the_limit(&number.to_string(), true);
    }

    let visited = most_visited(|| {
        assert!(watched.set_over_the_limit("7", false));
        assert!(!watched.is_over_the_limit("7") && watched.is_over_the_limit("8"));
    });

    assert_eq!(visited[&Lock::RecordLimits], 0);
}

#[test]
fn a_machine_with_too_many_records_waits() {
    let cache = Cache::new("default", Arc::default());
    let machine = Identity::of(provider_id("m1"));
    let key = stored("m9", 9, None).record.opened.key;
    let put = |number: usize| cache.put(&number.to_string(), Ok(Arc::new(stored("m1", 1, None))));
    (0..MAX_OF_MACHINE).for_each(put);
    assert_eq!(
        cache.of_machine(&machine, key).unwrap().len(),
        MAX_OF_MACHINE
    );

    (MAX_OF_MACHINE..10 * MAX_OF_MACHINE).for_each(put);

    let visited = most_visited(|| {
        let error = cache.of_machine(&machine, key).unwrap_err();
        let error = error_chain(&error);
        assert!(error.contains("more than 1024 node identities"), "{error}");
    });
    assert!(visited[&Lock::ClusterRecords] <= 3 * (MAX_OF_MACHINE + 1));
}

#[test]
fn a_uid_is_found_without_visiting_the_records_of_other_uids() {
    let cache = Cache::new("default", Arc::default());
    for number in 0..u8::MAX {
        let mut stored = stored("m1", 1, None);
        stored.record.uid = RecordUid::new([number; 16]);
        cache.put(&format!("n{number}"), Ok(Arc::new(stored)));
    }
    cache.put("copied", Ok(Arc::new(stored("m1", 1, None))));

    let visited = most_visited(|| {
        let found = cache.of_uid(RecordUid::new([7; 16])).unwrap();
        assert_eq!(found.len(), 2);
        let unused = RecordUid::new([u8::MAX; 16]);
        assert!(cache.of_uid(unused).unwrap().is_empty());
    });

    assert!(visited[&Lock::ClusterRecords] <= 2, "{visited:?}");
}

#[test]
fn a_uid_is_unknown_while_a_record_is_invalid() {
    let cache = Cache::new("default", Arc::default());
    let uid = RecordUid::new([7; 16]);
    cache.put("n1", Ok(Arc::new(stored("m1", 1, None))));
    assert_eq!(cache.of_uid(uid).unwrap().len(), 1);
    let object = "prod-1.n2".to_owned();
    let field = "spec.uid";

    cache.put("n2", Err(BrokenRecord { object, field }));

    assert_eq!(
        error_chain(&cache.of_uid(uid).unwrap_err()),
        "the UID of a node identity is unknown: NodeIdentity prod-1.n2 has an invalid spec.uid"
    );
    cache.remove("n2");
    assert_eq!(cache.of_uid(uid).unwrap().len(), 1);
}

#[test]
fn the_first_invalid_records_are_named_without_visiting_all() {
    let cache = Cache::new("default", Arc::default());
    let put = |number: usize| {
        let object = format!("prod-1.n{number:04}");
        let field = "spec.uid";
        cache.put(&object.clone(), Err(BrokenRecord { object, field }));
    };
    cache.put("valid", Ok(Arc::new(stored("m1", 1, None))));
    assert_eq!(cache.invalid(), None);
    let named = |count: usize, others: &str| {
        let visited = most_visited(|| {
            let expected = format!("NodeIdentity prod-1.n0000 has an invalid spec.uid{others}");
            assert_eq!(cache.invalid().unwrap(), expected);
        });
        assert_eq!(visited[&Lock::ClusterRecords], count);
    };

    put(0);
    named(1, "");
    (1..4).for_each(put);
    named(4, ", and 3 more are invalid");
    (4..10 * MAX_NAMED).for_each(put);
    named(MAX_NAMED + 1, ", and at least 100 more are invalid");
}

#[test]
fn a_uid_with_too_many_records_waits() {
    let cache = Cache::new("default", Arc::default());
    let uid = RecordUid::new([7; 16]);
    let put = |number: usize| cache.put(&number.to_string(), Ok(Arc::new(stored("m1", 1, None))));
    (0..MAX_OF_MACHINE).for_each(put);
    assert_eq!(cache.of_uid(uid).unwrap().len(), MAX_OF_MACHINE);

    put(MAX_OF_MACHINE);

    let error = error_chain(&cache.of_uid(uid).unwrap_err());
    let expected = "more than 1024 node identities contain the UID";
    assert!(error.contains(expected), "{error}");
}

/// An object in the cache for the cluster `prod-1`. The spec of the object contains the name of a different cluster.
fn of_another(version: usize) -> Lenient<NodeIdentity> {
    let record = stored("m1", 1, None).record;
    let spec = object::spec(&record, "other").unwrap();
    let object = json!({
        "metadata": {
            "namespace": "broken-records", "name": "r", "uid": "u",
            "resourceVersion": version.to_string(),
        },
        "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

#[tokio::test(start_paused = true)]
async fn many_versions_of_an_unreadable_record_are_logged_100_times() {
    let log = ThreadLog::start(Level::INFO);
    let mut skipped = Skipped::new("NodeIdentity");
    for version in 0..10_000 {
        for _ in 0..2 {
            let (_, entry) = entry(&of_another(version), "prod-1", &mut skipped);
            assert_eq!(entry.unwrap_err().field, "spec.clusterName");
        }
    }
    assert_eq!(log.count(&["has an invalid spec.clusterName"]), 100);

    tokio::time::advance(Duration::from_mins(1)).await;
    drop(entry(&of_another(10_000), "prod-1", &mut skipped));
    // Each version that has a log line was logged once. The other versions were omitted twice.
    assert_eq!(log.count(&["left_out=19800"]), 1);
}
