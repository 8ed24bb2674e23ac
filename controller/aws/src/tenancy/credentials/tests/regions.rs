//! Tests of Clusters with instances in several regions.

use futures::future::FutureExt as _;

use super::*;

const OTHER: &str = "eu-west-2";

#[tokio::test(start_paused = true)]
async fn a_cluster_in_two_regions_has_one_session_in_each() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    for _ in 0..5 {
        bed.ask_in(&a, REGION).await.unwrap();
        bed.ask_in(&a, OTHER).await.unwrap();
    }
    assert_eq!(bed.sts.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_has_sessions_in_at_most_eight_regions() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    let regions: Vec<String> = (1..=10).map(|number| format!("eu-west-{number}")).collect();
    for region in &regions {
        bed.ask_in(&a, region).await.unwrap();
        // The session for the first region is in use.
        bed.ask_in(&a, &regions[0]).await.unwrap();
    }
    assert_eq!(bed.sts.count(), 10);
    assert_eq!(bed.tenants.sessions.get().unwrap().len(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_identity_loses_its_sessions_in_all_regions() {
    let bed = Bed::new();
    bed.role("a");
    bed.role("b");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    bed.ask_in(&a, REGION).await.unwrap();
    bed.ask_in(&a, OTHER).await.unwrap();
    let sessions = bed.tenants.sessions.get().unwrap();
    assert_eq!(sessions.len(), 3);
    bed.cluster("tenant-a", "AWSClusterRoleIdentity/b");
    bed.ask_in(&a, REGION).await.unwrap();
    assert_eq!(sessions.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_condition_reports_each_region_with_a_failed_session() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    let disabled = FailureKind::Refused {
        code: "RegionDisabledException".to_owned(),
        request_id: None,
    };
    let call = format!("{} in {OTHER}", arn("a"));
    bed.sts.fail(&call, Some(disabled));
    let error = bed.ask_in(&a, OTHER).await.unwrap_err();
    let Some(TenantError::Credentials { source, .. }) = error.cause::<TenantError>() else {
        panic!("{error:?}")
    };
    assert_eq!(source.kind.reason(), "AssumeRoleDenied");
    bed.ask_in(&a, REGION).await.unwrap();
    let report = bed.tenants.credentials_report(&a.cluster).unwrap();
    assert_eq!(report.reason, "AssumeRoleDenied");
    assert!(bed.tenants.expiry(&a.cluster).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_disabled_region_affects_only_its_own_tenant() {
    let bed = Bed::new();
    let [a, b] = ["tenant-a", "tenant-b"].map(|namespace| bed.cluster(namespace, CONTROLLER));
    let unknown = FailureKind::Refused {
        code: "InvalidClientTokenId".to_owned(),
        request_id: None,
    };
    bed.sts
        .fail("GetCallerIdentity in me-south-1", Some(unknown));
    assert!(bed.ask_in(&a, "me-south-1").await.is_err());
    let account = bed.ask(&b).await.unwrap().account;
    assert_eq!(account.as_deref(), Some("999988887777"));
}

#[tokio::test(start_paused = true)]
async fn no_plan_is_hashed_under_the_lock_of_all_sessions() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    for number in 1..=8 {
        bed.ask_in(&a, &format!("eu-west-{number}")).await.unwrap();
    }

    // The first region is known, and the second region is new.
    for region in [REGION, "eu-west-9"] {
        let visited = most_visited(|| drop(bed.ask_in(&a, region).now_or_never()));
        assert_eq!(visited[&Lock::TenantSessions], 0, "{region}");
    }
}
