use futures::stream;
use kubelet_attestation::errors::error_chain;
use serde_json::{Value, json};

use super::*;
use crate::shared::PAGE;
use crate::shared::testing::{all_visited, most_visited};

/// An object that is not a valid record, with the label of this cluster.
fn unreadable(cluster: &str, name: &str) -> Lenient<NodeIdentity> {
    let object = json!({
        "metadata": {
            "namespace": "default", "name": name, "labels": {CLUSTER_NAME_LABEL: cluster},
        },
        "spec": "unreadable",
    });
    serde_json::from_value(object).unwrap()
}

/// Caches with undecodable records `r0`, `r1`, and so on, each in a separate cluster `c0`, `c1`, and so on.
fn with_records(count: usize, limits: IndexLimits) -> (Caches, Watching) {
    let (caches, mut watching) = (Caches::default(), Watching::new(limits));
    for number in 0..count {
        let object = unreadable(&format!("c{number}"), &format!("r{number}"));
        caches.apply(Event::Apply(object), &mut watching);
    }
    (caches, watching)
}

/// Waits until a list of the namespace is due, and starts the list without pages.
async fn begin_list(watching: &mut Watching) {
    let RecoveryStep::Due(namespace) = watching.recovery.step().await else {
        panic!("no list is due");
    };
    assert_eq!(namespace, "default");
    watching.recovery.begin(namespace, stream::empty().boxed());
}

fn has(caches: &Caches, cluster: &str, record: &str) -> bool {
    let cache = caches.known(&ObjectKey::new("default", cluster));
    cache.is_some_and(|cache| cache.look(|state| state.get(record).is_some()))
}

#[test]
fn an_unreadable_record_among_many_clusters_is_found_in_few_visits() {
    let (caches, mut watching) = with_records(1000, IndexLimits::of_process());
    assert!(has(&caches, "c180", "r180"));

    let visited = all_visited(|| {
        caches.apply(Event::Apply(unreadable("c1", "r180")), &mut watching);
    });

    assert!(visited < 20, "{visited}");
    assert!(has(&caches, "c180", "r180") && !has(&caches, "c1", "r180"));
}

#[test]
fn a_list_of_many_clusters_is_applied_in_pages() {
    let (caches, mut watching) = with_records(3 * PAGE, IndexLimits::of_process());

    let visited = most_visited(|| {
        caches.apply(Event::Init, &mut watching);
        caches.apply(Event::InitDone, &mut watching);
    });

    assert_eq!(visited[&Lock::RecordCaches], PAGE);
    assert!(caches.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn records_over_the_limit_are_dropped_and_their_namespace_waits() {
    let limits = IndexLimits {
        records: 3,
        clusters: 3,
        ..IndexLimits::of_process()
    };
    let (caches, mut watching) = with_records(3, limits);
    caches.watched.heard.now();
    let [own, other] =
        ["default", "other"].map(|namespace| caches.cache(&ObjectKey::new(namespace, "c0")));
    own.synced().await.unwrap();

    caches.apply(Event::Apply(unreadable("c0", "r3")), &mut watching);

    assert!(!has(&caches, "c0", "r3"));
    let error = error_chain(&own.synced().await.unwrap_err());
    assert!(error.contains("namespace default has more than"), "{error}");
    other.synced().await.unwrap();

    caches.apply(Event::Delete(unreadable("c0", "r3")), &mut watching);
    own.synced().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_listed_again_when_it_is_within_the_limit() {
    let limits = IndexLimits {
        records: 3,
        clusters: 5,
        ..IndexLimits::of_process()
    };
    let (caches, mut watching) = with_records(5, limits);
    caches.watched.heard.now();
    let own = caches.cache(&ObjectKey::new("default", "c4"));
    for record in ["r0", "r1"] {
        assert!(!watching.recovery.is_planned());
        caches.apply(Event::Delete(unreadable("c", record)), &mut watching);
    }
    let error = error_chain(&own.synced().await.unwrap_err());
    assert!(error.contains("namespace default has more than"), "{error}");

    begin_list(&mut watching).await;
    let page = [2, 3, 4].map(|number| unreadable(&format!("c{number}"), &format!("r{number}")));
    caches.recovered(page.into(), &mut watching);

    own.synced().await.unwrap();
    assert!(has(&caches, "c4", "r4"));
    assert!(caches.watched.heard.is_recent(), "the watch continues");
    caches.apply(Event::Init, &mut watching);
    assert!(!caches.watched.heard.is_recent(), "a different list");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_recovers_records_changes_only_dropped_ones() {
    let limits = IndexLimits {
        records: 3,
        clusters: 5,
        ..IndexLimits::of_process()
    };
    let (caches, mut watching) = with_records(5, limits);
    for record in ["r0", "r1"] {
        caches.apply(Event::Delete(unreadable("c", record)), &mut watching);
    }
    begin_list(&mut watching).await;

    // The list started before both changes were made.
    caches.apply(Event::Delete(unreadable("c", "r3")), &mut watching);
    caches.apply(Event::Apply(unreadable("c1", "r2")), &mut watching);
    let page = [("c2", "r2"), ("c3", "r3"), ("c4", "r4")];
    let page = page.map(|(cluster, record)| unreadable(cluster, record));
    caches.recovered(page.into(), &mut watching);

    assert!(has(&caches, "c2", "r2"), "it was known");
    assert!(!has(&caches, "c3", "r3"), "it is deleted");
    assert!(has(&caches, "c4", "r4"));
    // An object in another namespace is ignored, because the list covers only one namespace.
    let mut foreign = unreadable("c9", "r9");
    foreign.metadata.namespace = Some("other".to_owned());
    caches.recovered(vec![foreign], &mut watching);
    assert!(caches.known(&ObjectKey::new("other", "c9")).is_none());
}

#[test]
fn a_record_with_too_many_labels_counts_as_unreadable() {
    let (caches, mut watching) = with_records(0, IndexLimits::of_process());
    let mut object = of_prod("default", &json!({}));
    let whole = serde_json::from_value(object.clone()).unwrap();
    caches.apply(Event::Apply(whole), &mut watching);
    record_of(&caches, "default");

    object["$excessRemoved"] = json!(true);
    let object = serde_json::from_value(object).unwrap();
    caches.apply(Event::Apply(object), &mut watching);

    let cache = caches.known(&ObjectKey::new("default", "prod-1")).unwrap();
    let broken = cache.look(|state| state.get("prod-1.n1").cloned()).unwrap();
    assert_eq!(
        broken.unwrap_err().to_string(),
        "NodeIdentity prod-1.n1 has an invalid spec or status"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deletion_causes_no_list_while_the_clusters_exceed_their_limit() {
    let limits = IndexLimits {
        records: 100,
        clusters: 3,
        ..IndexLimits::of_process()
    };
    let (caches, mut watching) = with_records(6, limits);

    for record in ["r0", "r5"] {
        caches.apply(Event::Delete(unreadable("c", record)), &mut watching);
        assert!(!watching.recovery.is_planned(), "{record}");
    }
    caches.apply(Event::Delete(unreadable("c", "r1")), &mut watching);

    assert!(watching.recovery.is_planned());
}

#[tokio::test(start_paused = true)]
async fn lists_that_recover_records_are_ten_minutes_apart() {
    let (_, mut watching) = with_records(0, IndexLimits::of_process());
    watching.limits.records = 1;
    watching.index = Index::new(watching.limits);
    let begin = Instant::now();
    let mut lists = Vec::new();
    for _ in 0..3 {
        for record in ["r0", "r1"] {
            watching.index.put(&ObjectKey::new("default", "c"), record);
        }
        watching.index.remove("default", "r0");
        watching.plan_list();
        begin_list(&mut watching).await;
        lists.push(begin.elapsed().as_secs());
        assert!(matches!(watching.recovery.step().await, RecoveryStep::End));
        watching.index = Index::new(watching.limits);
    }

    // Timers have a resolution of one millisecond.
    assert_eq!(lists, [0, 600, 1200]);
}

/// A record of `prod-1` in this namespace, with this status.
fn with_status(namespace: &str, status: &Value) -> Lenient<NodeIdentity> {
    serde_json::from_value(of_prod(namespace, status)).unwrap()
}

/// The JSON of a record of `prod-1` in this namespace, with this status.
fn of_prod(namespace: &str, status: &Value) -> Value {
    let time = "2026-01-01T00:00:00Z";
    json!({
        "metadata": {
            "namespace": namespace, "name": "prod-1.n1", "resourceVersion": "7",
            "labels": {CLUSTER_NAME_LABEL: "prod-1"},
        },
        "spec": {
            "clusterName": "prod-1", "nodeName": "n1", "uid": "0123456789abcdef0123456789abcdef",
            "providerID": "aws:///eu-west-1a/i-0123456789abcdef0", "attestor": "aws",
            "generation": 1, "notAfter": time,
            "opened": {
                "time": time, "requestName": "r", "requestUID": "u", "keySHA256": "c".repeat(64),
            },
        },
        "status": status,
    })
}

/// The cached record `prod-1.n1` in this namespace, as text.
fn record_of(caches: &Caches, namespace: &str) -> String {
    let cache = caches.known(&ObjectKey::new(namespace, "prod-1")).unwrap();
    cache.look(|state| {
        let entry = state.get("prod-1.n1").unwrap();
        assert!(entry.is_ok(), "{entry:?}");
        format!("{entry:?}")
    })
}

#[test]
fn a_forged_status_does_not_change_a_record_in_another_namespace() {
    let (caches, mut watching) = with_records(0, IndexLimits::of_process());
    let mut put = |namespace: &str, status: &Value| {
        let object = with_status(namespace, status);
        caches.apply(Event::Apply(object), &mut watching);
    };
    put("tenant-a", &json!({}));
    put("tenant-b", &json!({}));
    let [before, own] = ["tenant-a", "tenant-b"].map(|namespace| record_of(&caches, namespace));
    let (time, boot) = (
        "2036-01-01T00:00:00Z",
        json!({"resetCount": 9, "restartCount": 9, "clock": 9}),
    );
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "Forged", "message": "",
        "lastTransitionTime": time,
    });

    for (status, is_read) in [
        (json!({"serial": "0a"}), false),
        (json!({"notAfter": time}), true),
        (json!({"lastRenewal": time}), false),
        (
            json!({"lastTpmBoot": {"generation": 1, "time": time, "boot": boot}}),
            true,
        ),
        (json!({"presentedGeneration": 9}), false),
        (json!({"conditions": [condition]}), false),
    ] {
        put("tenant-b", &status);

        assert_eq!(record_of(&caches, "tenant-a"), before, "{status}");
        let is_changed = record_of(&caches, "tenant-b") != own;
        assert_eq!(is_changed, is_read, "{status}");
    }
}
