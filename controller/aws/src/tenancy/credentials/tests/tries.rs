//! Tests of credentials that the controller tries before the first request.

use tokio::time::timeout;

use super::*;

/// A cluster in the namespace and in this region.
fn cluster(bed: &Bed, namespace: &str, identity: &str) -> ClusterTenant {
    let tenant = bed.cluster(namespace, identity);
    let (kind, name) = identity.split_once('/').unwrap();
    let spec = json!({"identityRef": {"kind": kind, "name": name}, "region": REGION});
    let found: Infrastructure = serde_json::from_value(spec).unwrap();
    bed.store
        .put_infrastructure("AWSCluster", tenant.cluster.clone(), Some(Ok(found)));
    tenant
}

/// Tries the credentials repeatedly for this duration.
async fn try_for(bed: &Bed, tenant: &ClusterTenant, regions: &[&str], time: Duration) {
    let regions: Vec<String> = regions.iter().map(|&region| region.to_owned()).collect();
    let tried = timeout(time, bed.tenants.keep_trying(tenant, &regions)).await;
    assert!(tried.is_err());
}

const DAY: Duration = Duration::from_hours(24);

#[tokio::test(start_paused = true)]
async fn a_resolved_identity_is_tried_once_without_a_request() {
    let mut bed = Bed::new();
    bed.role("a");
    let a = cluster(&bed, "tenant-a", "AWSClusterRoleIdentity/a");
    assert!(!bed.tenants.are_accepted(&a.cluster));

    try_for(&bed, &a, &[], DAY).await;

    assert_eq!(bed.sts.calls(), [(arn("a"), "OWN".to_owned())]);
    assert!(bed.tenants.are_accepted(&a.cluster));
    assert_eq!(bed.tenants.credentials_report(&a.cluster), None);
    // Only an instance determines the first account.
    assert!(bed.first_accounts.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_changed_identity_is_tried_again() {
    let bed = Bed::new();
    bed.role("a");
    bed.role("b");
    let a = cluster(&bed, "tenant-a", "AWSClusterRoleIdentity/a");
    try_for(&bed, &a, &[], DAY).await;

    let a = cluster(&bed, "tenant-a", "AWSClusterRoleIdentity/b");
    try_for(&bed, &a, &[], DAY).await;

    let roles: Vec<String> = bed.sts.calls().into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, [arn("a"), arn("b")]);
}

#[tokio::test(start_paused = true)]
async fn the_first_request_uses_the_tried_session() {
    let bed = Bed::new();
    bed.role("a");
    let a = cluster(&bed, "tenant-a", "AWSClusterRoleIdentity/a");
    try_for(&bed, &a, &[], Duration::from_mins(1)).await;

    assert_eq!(bed.access_key(&a).await, format!("{}#1", arn("a")));

    assert_eq!(bed.sts.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_role_is_reported_and_tried_less_and_less_often() {
    let bed = Bed::new();
    bed.role("a");
    let a = cluster(&bed, "tenant-a", "AWSClusterRoleIdentity/a");
    let denied = FailureKind::Refused {
        code: "AccessDenied".to_owned(),
        request_id: None,
    };
    bed.sts.fail(&arn("a"), Some(denied));

    try_for(&bed, &a, &[], Duration::from_hours(1)).await;

    let report = bed.tenants.credentials_report(&a.cluster).unwrap();
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::False, "AssumeRoleDenied")
    );
    let tries = bed.sts.count();
    assert!((4..15).contains(&tries), "{tries}");

    bed.sts.fail(&arn("a"), None);
    try_for(&bed, &a, &[], Duration::from_mins(15)).await;
    assert_eq!(bed.sts.count(), tries + 1);
    assert_eq!(bed.tenants.credentials_report(&a.cluster), None);
    assert!(bed.tenants.are_accepted(&a.cluster));
}

#[tokio::test(start_paused = true)]
async fn an_sts_outage_before_the_first_request_is_reported_as_unknown() {
    for (failure, reason) in [
        (
            FailureKind::Unavailable("no connection".to_owned()),
            "STSUnavailable",
        ),
        (FailureKind::Throttled("Throttling".to_owned()), "Throttled"),
    ] {
        let bed = Bed::new();
        bed.role("a");
        let a = cluster(&bed, "tenant-a", "AWSClusterRoleIdentity/a");
        bed.sts.fail(&arn("a"), Some(failure));

        try_for(&bed, &a, &[], Duration::from_mins(1)).await;

        let report = bed.tenants.credentials_report(&a.cluster).unwrap();
        assert_eq!(
            (report.holds, report.reason),
            (ConditionStatus::Unknown, reason)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_are_tried_only_in_the_region_of_their_requests() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    for regions in [&[][..], &[REGION, "eu-west-2"]] {
        try_for(&bed, &a, regions, DAY).await;
        assert_eq!(bed.sts.count(), 0, "{regions:?}");
    }

    try_for(&bed, &a, &[REGION], DAY).await;
    assert_eq!(bed.sts.count(), 1);

    let bed = Bed::with_sts_region(Some("us-east-1"));
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    try_for(&bed, &a, &[], Duration::from_mins(1)).await;
    bed.ask(&a).await.unwrap();
    assert_eq!(bed.sts.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unresolved_identity_is_not_tried() {
    let bed = Bed::new();
    let a = cluster(&bed, "tenant-a", "AWSClusterRoleIdentity/none");

    try_for(&bed, &a, &[], DAY).await;

    assert_eq!(bed.sts.count(), 0);
    assert_eq!(bed.refused(&a).await, "IdentityNotFound");
}

/// Creates this number of clusters in one namespace, each with its own role.
fn clusters(bed: &Bed, count: usize) -> Vec<ClusterTenant> {
    let cluster = |number: usize| {
        let name = format!("role-{number}");
        bed.role(&name);
        let key = ObjectKey::new("tenant-a", format!("one-{number}").as_str());
        let decider = ObjectRef {
            kind: "AWSCluster".to_owned(),
            name: key.name.clone(),
        };
        let cluster = Cluster {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            infrastructure: Some(decider),
            ..Cluster::default()
        };
        let identity = json!({"kind": "AWSClusterRoleIdentity", "name": name});
        let spec = json!({"identityRef": identity, "region": REGION});
        let found: Infrastructure = serde_json::from_value(spec).unwrap();
        bed.store.put_cluster(key.clone(), Some(Ok(cluster)));
        bed.store
            .put_infrastructure("AWSCluster", key.clone(), Some(Ok(found)));
        ClusterTenant::new(key)
    };
    (0..count).map(cluster).collect()
}

#[tokio::test(start_paused = true)]
async fn tries_of_one_namespace_use_the_rate_of_its_sts_calls() {
    const CLUSTERS: usize = 15;
    let bed = Bed::new();
    let tenants = clusters(&bed, CLUSTERS);
    let all = |time| {
        let tries = tenants.iter().map(|a| try_for(&bed, a, &[], time));
        futures::future::join_all(tries)
    };

    all(Duration::from_millis(500)).await;
    let first = bed.sts.count();
    all(Duration::from_mins(2)).await;

    // The calls of a namespace are limited to 10 immediate calls, and then one call per second. The controller tries
    // the other credentials again after 30 seconds.
    assert_eq!(first, 10);
    assert_eq!(bed.sts.count(), CLUSTERS);
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_the_tries_of_other_clusters() {
    let bed = Bed::new();
    let tenants = clusters(&bed, 100);
    let (asked, others) = tenants.split_last().unwrap();
    let tries = others
        .iter()
        .map(|a| try_for(&bed, a, &[], Duration::from_secs(20)));
    let request = async {
        tokio::task::yield_now().await;
        timeout(Duration::from_secs(3), bed.ask(asked)).await
    };

    let (_, answer) = futures::future::join(futures::future::join_all(tries), request).await;

    answer.expect("the request takes the next call").unwrap();
}
