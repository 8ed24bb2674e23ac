//! Tests of Clusters, which the store receives from the controller's watch.

use node_attestation_runtime::capi::{ClusterObserver, ClusterReferences};

use super::*;
use crate::tenancy::Labels;

#[tokio::test(start_paused = true)]
async fn identities_use_the_one_cluster_watch_of_the_process() {
    let bed = Bed::new();
    bed.namespace("tenant-a");
    bed.identity("a", "keys");
    bed.secret("keys", "AKIA1");
    bed.cluster("a");
    let watch = bed.watch.clone();
    let alone = tokio::spawn(async move { watch.run().await });
    settle().await;
    assert!(bed.server.requests(CLUSTERS[3]).is_empty());
    assert_eq!(bed.resolve(), Err(IdentityError::NotRead(Source::Clusters)));
    alone.abort();

    let _running = bed.begin().await;
    assert_eq!(bed.server.watched(CLUSTERS[3]).len(), 1);
    assert_eq!(bed.resolve(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn identities_are_not_resolved_two_minutes_after_a_watch_breaks() {
    let bed = Bed::new();
    bed.namespace("tenant-a");
    bed.identity("a", "keys");
    bed.secret("keys", "AKIA1");
    bed.cluster("a");
    let _running = bed.begin().await;
    bed.server.refuse(CLUSTERS[3], Some(503));
    bed.server.break_watches();
    sleep(Duration::from_secs(100)).await;
    assert_eq!(bed.resolve(), Ok(()));
    sleep(Duration::from_secs(40)).await;
    let broken = IdentityError::WatchBroken(Source::Clusters);
    assert_eq!(bed.resolve(), Err(broken));

    bed.server.refuse(CLUSTERS[3], None);
    sleep(FAILED).await;
    assert_eq!(bed.resolve(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn labels_of_clusters_are_kept_only_for_role_selectors() {
    let settings = |ack| TenancySettings {
        ack,
        ..TenancySettings::default()
    };
    let key = ObjectKey::new("tenant-a", "one");
    let labels = |len: usize| [("a".to_owned(), "b".repeat(len - 1))].into();
    let put = |store: &IdentityStore, labels: &Labels| {
        let found = ClusterReferences {
            labels: Some(labels),
            ..ClusterReferences::default()
        };
        ClusterObserver::put(store, &key, Some(Ok(found)))
    };
    for ack in [Ack::Off, Ack::Carm] {
        let store = IdentityStore::new(settings(ack), "capa-system");
        put(&store, &labels(1 << 20)).unwrap();
        assert_eq!(store.labels_of(&key), Some(Labels::new()));
    }
    let store = IdentityStore::new(settings(Ack::RoleSelectors), "capa-system");
    let most = labels(8 * 1024);
    put(&store, &most).unwrap();
    assert_eq!(store.labels_of(&key), Some(most));
    let error = put(&store, &labels(8 * 1024 + 1)).unwrap_err();
    assert_eq!(error.to_string(), "its labels are longer than 8 KiB");
    assert_eq!(store.labels_of(&key), None);
}

#[tokio::test(start_paused = true)]
async fn only_the_objects_of_clusters_are_watched_in_one_namespace() {
    let mut bed = Bed::new();
    let places = Places {
        capa_namespace: "capa-system".to_owned(),
        namespace: Some("tenant-a".to_owned()),
        ack_namespace: "ack-system".to_owned(),
    };
    let client = bed.server.access().client().clone();
    bed.watch = IdentityWatch::new(client, places, bed.store.clone());
    let _running = bed.begin().await;

    let is_in_namespace = |plural: &str| {
        let requests = bed.server.requests(plural);
        assert!(!requests.is_empty(), "{plural}");
        let of_tenant = format!("/namespaces/tenant-a/{plural}?");
        let mut own = requests.iter().map(|request| request.contains(&of_tenant));
        let first = own.next().unwrap();
        assert!(own.all(|one| one == first), "{requests:?}");
        first
    };
    assert!(is_in_namespace(AWS_CLUSTERS[3]));
    assert!(!is_in_namespace(STATICS[3]));
    assert!(!is_in_namespace(ROLES[3]));
}
