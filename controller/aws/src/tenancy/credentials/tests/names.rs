//! Tests of Clusters with the same name in one account.

use node_attestation_runtime::testing::ThreadLog;
use tracing::Level;

use super::*;

/// The status and the reason in the condition of this cluster.
fn reported(bed: &Bed, tenant: &ClusterTenant) -> (ConditionStatus, &'static str) {
    let report = bed.tenants.name_report(&tenant.cluster);
    assert_eq!(report.of, "AWSClusterNameUnique");
    (report.holds, report.reason)
}

const UNKNOWN: (ConditionStatus, &str) = (ConditionStatus::Unknown, "Pending");
const UNIQUE: (ConditionStatus, &str) = (ConditionStatus::True, "NameUnique");
const SHARED: (ConditionStatus, &str) = (ConditionStatus::False, "NameNotUnique");

#[tokio::test(start_paused = true)]
async fn clusters_with_one_name_and_one_account_are_reported_to_both() {
    let log = ThreadLog::start(Level::WARN);
    let bed = Bed::new();
    bed.role("a");
    let [a, b] = ["tenant-a", "tenant-b"]
        .map(|namespace| bed.cluster(namespace, "AWSClusterRoleIdentity/a"));
    bed.ask(&a).await.unwrap();
    assert_eq!(log.text(), "");
    assert_eq!((reported(&bed, &a), reported(&bed, &b)), (UNIQUE, UNKNOWN));

    bed.ask(&b).await.unwrap();

    for (own, another) in [(&a, "tenant-b"), (&b, "tenant-a")] {
        assert_eq!(reported(&bed, own), SHARED);
        let message = bed.tenants.name_report(&own.cluster).message;
        assert!(message.contains("111122223333"), "{message}");
        assert!(!message.contains(another), "{message}");
    }
    // The log is for the operator, and contains both names.
    let log = log.text();
    for part in ["tenant-a/one", "tenant-b/one", "111122223333"] {
        assert!(log.contains(part), "{part} in {log}");
    }
    bed.ask(&b).await.unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[tokio::test(start_paused = true)]
async fn clusters_with_one_name_in_two_accounts_are_not_reported() {
    let bed = Bed::new();
    bed.role("a");
    let mut elsewhere = role(CONTROLLER, "b");
    elsewhere["roleARN"] = json!("arn:aws:iam::444455556666:role/b");
    bed.store
        .update(|all| put(all, "AWSClusterRoleIdentity/b", &elsewhere));
    let [a, b] = ["a", "b"].map(|name| {
        let identity = format!("AWSClusterRoleIdentity/{name}");
        bed.cluster(&format!("tenant-{name}"), &identity)
    });

    for tenant in [&a, &b] {
        bed.ask(tenant).await.unwrap();
    }

    assert_eq!((reported(&bed, &a), reported(&bed, &b)), (UNIQUE, UNIQUE));
}

#[tokio::test(start_paused = true)]
async fn an_account_in_an_annotation_does_not_report_another_cluster() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    bed.ask(&a).await.unwrap();
    let forger = ObjectKey::new("tenant-b", "one");

    bed.tenants.read_pin(&forger, Some("111122223333"));

    assert_eq!(reported(&bed, &a), UNIQUE);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_cluster_frees_its_name_in_its_account() {
    let bed = Bed::new();
    bed.role("a");
    let [a, b] = ["tenant-a", "tenant-b"]
        .map(|namespace| bed.cluster(namespace, "AWSClusterRoleIdentity/a"));
    for tenant in [&a, &b] {
        bed.ask(tenant).await.unwrap();
    }
    assert_eq!(reported(&bed, &a), SHARED);

    bed.store.put_cluster(b.cluster.clone(), None);
    bed.tenants.forget_gone();

    assert_eq!((reported(&bed, &a), reported(&bed, &b)), (UNIQUE, UNKNOWN));
}

#[tokio::test(start_paused = true)]
async fn a_changed_account_moves_the_name_of_a_cluster() {
    let bed = Bed::new();
    bed.role("a");
    bed.role("b");
    let [a, b] = ["a", "b"].map(|name| {
        let identity = format!("AWSClusterRoleIdentity/{name}");
        bed.cluster(&format!("tenant-{name}"), &identity)
    });
    for tenant in [&a, &b] {
        bed.ask(tenant).await.unwrap();
    }
    assert_eq!(reported(&bed, &a), SHARED);

    let mut elsewhere = role(CONTROLLER, "b");
    elsewhere["roleARN"] = json!("arn:aws:iam::444455556666:role/b");
    bed.store
        .update(|all| put(all, "AWSClusterRoleIdentity/b", &elsewhere));
    assert_eq!(bed.refused(&b).await, "AccountMismatch");

    assert_eq!((reported(&bed, &a), reported(&bed, &b)), (UNIQUE, UNIQUE));
}

#[tokio::test(start_paused = true)]
async fn one_name_in_many_namespaces_is_detected_with_few_visits() {
    let bed = Bed::new();
    bed.role("a");
    let mut last = None;
    for number in 0..1000 {
        let tenant = bed.cluster(&format!("tenant-{number}"), "AWSClusterRoleIdentity/a");
        bed.ask(&tenant).await.unwrap();
        last = Some(tenant);
    }
    let last = last.unwrap();

    let visited = most_visited(|| assert_eq!(reported(&bed, &last), SHARED));

    assert!(visited[&Lock::TenantAccounts] < 10, "{visited:?}");
}
