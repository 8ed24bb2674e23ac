//! Tests of sessions and pauses during watch failures and identity changes.

use super::*;

fn denied() -> FailureKind {
    FailureKind::Refused {
        code: "AccessDenied".to_owned(),
        request_id: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_is_used_after_an_outage_of_a_watch() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    let first = bed.access_key(&a).await;
    for source in bed.store.sources() {
        bed.store.failed(&source);
        advance(Duration::from_mins(3)).await;
        assert_eq!(bed.refused(&a).await, "Pending", "{source}");
        bed.store.read(&source);
        assert_eq!(bed.access_key(&a).await, first, "{source}");
    }
    assert_eq!(bed.sts.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_missing_cluster_has_no_session() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    bed.access_key(&a).await;
    bed.store.put_cluster(a.cluster.clone(), None);
    assert_eq!(bed.refused(&a).await, "Pending");
    assert_eq!(bed.tenants.expiry(&a.cluster), None);
    assert_eq!(bed.tenants.sessions.get().unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pause_continues_if_the_cluster_changes_its_identity() {
    let bed = Bed::new();
    bed.role("a");
    bed.role("b");
    let [a, b, none] = ["a", "b", "none"].map(|name| format!("AWSClusterRoleIdentity/{name}"));
    bed.sts.fail(&arn("a"), Some(denied()));
    for _ in 0..3 {
        let named = bed.cluster("tenant-a", &a);
        assert_eq!(bed.refused(&named).await, "AssumeRoleDenied");
        let named = bed.cluster("tenant-a", &none);
        assert_eq!(bed.refused(&named).await, "IdentityNotFound");
        assert_eq!(bed.tenants.credentials_report(&named.cluster), None);
    }
    assert_eq!(bed.sts.count(), 1);

    let named = bed.cluster("tenant-a", &b);
    bed.access_key(&named).await;
    let named = bed.cluster("tenant-a", &a);
    assert_eq!(bed.refused(&named).await, "AssumeRoleDenied");
    assert_eq!(bed.sts.count(), 2);

    // After the pause, the credentials are requested again.
    sleep(Duration::from_secs(31)).await;
    assert_eq!(bed.refused(&named).await, "AssumeRoleDenied");
    assert_eq!(bed.sts.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn at_most_eight_failed_sessions_are_kept_and_only_for_their_pause() {
    let bed = Bed::new();
    for number in 0..12 {
        let name = number.to_string();
        bed.role(&name);
        bed.sts.fail(&arn(&name), Some(denied()));
        let named = bed.cluster("tenant-a", &format!("AWSClusterRoleIdentity/{name}"));
        assert_eq!(bed.refused(&named).await, "AssumeRoleDenied");
        // The STS calls of a tenant are limited to 30 per minute.
        sleep(Duration::from_secs(2)).await;
    }
    // The sessions are eight previous sessions, the current session, and the first session that all chains share.
    let sessions = bed.tenants.sessions.get().unwrap();
    assert_eq!(sessions.len(), 10);
    sleep(Duration::from_secs(31)).await;
    bed.tenants.forget_gone();
    assert_eq!(sessions.len(), 2);
}
