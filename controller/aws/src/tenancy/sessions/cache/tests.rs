mod parameters;
mod refused;
mod shares;
mod visits;

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use tokio::time::{advance, sleep};

use super::*;
use crate::tenancy::sessions::error::FailureKind;
use crate::tenancy::sessions::testing::{CountingSts, plan, sessions};
use crate::tenancy::testing::{arn, objects, put, role, secret, static_identity};
use crate::tenancy::{Cluster, Objects, TenancySettings, explain};

const CONTROLLER: &str = "AWSClusterControllerIdentity/default";
const REGION: &str = "eu-west-1";

/// The Cluster of a tenant.
fn key(tenant: &str) -> ObjectKey {
    ObjectKey::new(tenant, "one")
}

fn of(name: &str) -> String {
    format!("AWSClusterRoleIdentity/{name}")
}

/// Roles with these names, assumed with the role `jump`.
fn over_a_jump_role(names: impl IntoIterator<Item = String>) -> Objects {
    let mut objects = objects();
    put(&mut objects, &of("jump"), &role(CONTROLLER, "jump"));
    for name in names {
        put(&mut objects, &of(&name), &role(&of("jump"), &name));
    }
    objects
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|n| n.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn two_hundred_roles_with_one_source_are_assumed_once_each() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(numbers(200));
    let credentials: Vec<_> = numbers(200)
        .iter()
        .map(|name| sessions.of_plan(&plan(&objects, &of(name)), REGION, &key(name)))
        .collect();
    for _ in 0..5 {
        let all = join_all(credentials.iter().map(PlanCredentials::keys)).await;
        assert!(all.iter().all(Result::is_ok));
        sleep(Duration::from_mins(1)).await;
    }
    assert_eq!(sts.count(), 201);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_is_an_outage_and_is_retried() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    sts.panic_once();

    let error = credentials.keys().await.unwrap_err();
    assert_eq!(
        error.kind,
        FailureKind::Unavailable("the call ended without a response".to_owned())
    );

    sleep(Duration::from_mins(1)).await;
    credentials.keys().await.unwrap();
    assert_eq!(sts.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_identity_of_two_hundred_clusters_is_assumed_once() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let credentials: Vec<_> = numbers(200)
        .iter()
        .map(|tenant| sessions.of_plan(&plan(&objects, &of("a")), REGION, &key(tenant)))
        .collect();
    let all = join_all(credentials.iter().map(PlanCredentials::keys)).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(sts.count(), 1);
    assert_eq!(sessions.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn two_hundred_clusters_cost_at_most_270_sts_calls_an_hour() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(numbers(200));
    let credentials: Vec<_> = numbers(200)
        .iter()
        .map(|name| sessions.of_plan(&plan(&objects, &of(name)), REGION, &key(name)))
        .collect();
    for _ in 0..24 * 60 {
        let all = join_all(credentials.iter().map(PlanCredentials::keys)).await;
        assert!(all.iter().all(Result::is_ok));
        sleep(Duration::from_mins(1)).await;
    }
    let an_hour = sts.count() / 24;
    assert!(an_hour <= 270, "{an_hour} calls an hour");
}

#[tokio::test(start_paused = true)]
async fn the_inner_role_is_assumed_before_the_outer_role() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(["a".to_owned()]);
    let keys = sessions
        .of_plan(&plan(&objects, &of("a")), REGION, &key("a"))
        .keys()
        .await
        .unwrap();
    assert_eq!(keys.access_key_id(), format!("{}#2", arn("a")));
    let calls = [
        (arn("jump"), "OWN".to_owned()),
        (arn("a"), format!("{}#1", arn("jump"))),
    ];
    assert_eq!(sts.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn an_expired_source_role_and_the_role_above_it_are_reassumed() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(["a".to_owned()]);
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    credentials.keys().await.unwrap();
    advance(Duration::from_hours(2)).await;
    credentials.keys().await.unwrap();
    let again = [
        (arn("jump"), "OWN".to_owned()),
        (arn("a"), format!("{}#3", arn("jump"))),
    ];
    assert_eq!(sts.calls()[2..], again);
}

#[tokio::test(start_paused = true)]
async fn credentials_are_renewed_in_the_background_before_they_expire() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    let first = credentials.keys().await.unwrap();

    advance(Duration::from_mins(40)).await;
    assert_eq!(credentials.keys().await.unwrap(), first);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sts.count(), 1);

    advance(Duration::from_mins(10)).await;
    assert_eq!(credentials.keys().await.unwrap(), first);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sts.count(), 2);
    assert_ne!(credentials.keys().await.unwrap(), first);
}

#[tokio::test(start_paused = true)]
async fn credentials_are_usable_in_an_outage_until_they_expire() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    let first = credentials.keys().await.unwrap();
    let throttled = FailureKind::Throttled("Throttling".to_owned());
    sts.fail(&arn("a"), Some(throttled.clone()));

    advance(Duration::from_mins(50)).await;
    assert_eq!(credentials.keys().await.unwrap(), first);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sts.count(), 2);
    assert_eq!(credentials.condition().1.unwrap().kind, throttled);
    assert_eq!(credentials.keys().await.unwrap(), first);

    advance(Duration::from_mins(9)).await;
    assert_eq!(credentials.keys().await.unwrap_err().kind, throttled);

    sts.fail(&arn("a"), None);
    advance(Duration::from_mins(5)).await;
    assert!(credentials.keys().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_refused_session_is_retried_after_30_seconds_with_backoff() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    let denied = FailureKind::Refused {
        code: "AccessDenied".to_owned(),
        request_id: None,
    };
    sts.fail(&arn("a"), Some(denied.clone()));
    let minute = async |times: u32| {
        let before = sts.count();
        for _ in 0..times * 60 {
            let error = credentials.keys().await.unwrap_err();
            assert_eq!((&*error.step, &error.kind), (&*arn("a"), &denied));
            sleep(Duration::from_secs(1)).await;
        }
        sts.count() - before
    };
    assert_eq!(minute(1).await, 2);
    assert!(minute(29).await <= 6);
    assert_eq!(minute(10).await, 1);

    sts.fail(&arn("a"), None);
    sleep(Duration::from_mins(10)).await;
    assert!(credentials.keys().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_becomes_valid_in_aws_is_used_within_a_minute() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    put(
        &mut objects,
        &of("a"),
        &role("AWSClusterStaticIdentity/keys", "a"),
    );
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    let unknown = FailureKind::Refused {
        code: "InvalidClientTokenId".to_owned(),
        request_id: None,
    };
    sts.fail(&arn("a"), Some(unknown));
    assert!(credentials.keys().await.is_err());
    sts.fail(&arn("a"), None);
    sleep(Duration::from_mins(1)).await;
    assert!(credentials.keys().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_rotated_secret_is_used_immediately_and_its_roles_are_reassumed() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    put(
        &mut objects,
        &of("a"),
        &role("AWSClusterStaticIdentity/keys", "a"),
    );
    let before = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    before.keys().await.unwrap();

    secret(
        &mut objects,
        "keys",
        &[("AccessKeyID", "AKIA2"), ("SecretAccessKey", "new")],
    );
    let after = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    after.keys().await.unwrap();
    let calls = [
        (arn("a"), "AKIA1".to_owned()),
        (arn("a"), "AKIA2".to_owned()),
    ];
    assert_eq!(sts.calls(), calls);
    assert_eq!(sessions.len(), 4);

    // A request with the key of the previous session, after that session was dropped.
    drop(before);
    assert_eq!(sessions.len(), 2);
    static_identity(&mut objects, "keys");
    let former = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    former.keys().await.unwrap();
    assert_eq!(sts.calls()[2..], [(arn("a"), "AKIA1".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_identity_is_used_immediately() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    put(&mut objects, &of("b"), &role(CONTROLLER, "b"));
    let keys = async |name: &str| {
        let credentials = sessions.of_plan(&plan(&objects, name), REGION, &key("tenant"));
        credentials.keys().await.unwrap().access_key_id().to_owned()
    };
    let held = sessions.of_plan(&plan(&objects, &of("b")), REGION, &key("other"));
    held.keys().await.unwrap();
    assert_eq!(keys(&of("a")).await, format!("{}#2", arn("a")));
    assert_eq!(keys(&of("b")).await, format!("{}#1", arn("b")));
    assert_eq!(keys(CONTROLLER).await, "OWN");
}

#[tokio::test(start_paused = true)]
async fn expired_credentials_are_an_error_and_are_not_kept() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    sts.live(Duration::ZERO);
    assert_eq!(
        credentials.keys().await.unwrap_err().kind,
        FailureKind::Expired
    );
    sts.live(Duration::from_hours(1));
    sleep(Duration::from_secs(6)).await;
    assert!(credentials.keys().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_continues_after_its_first_caller_is_canceled() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    let impatient = tokio::time::timeout(Duration::from_millis(10), credentials.keys()).await;
    assert!(impatient.is_err());
    assert!(credentials.keys().await.is_ok());
    assert_eq!(sts.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_account_comes_from_the_role_or_from_one_sts_call() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let role = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    assert_eq!(role.account().await.unwrap(), "111122223333");
    assert_eq!(sts.count(), 0);

    let keys = sessions.of_plan(
        &plan(&objects, "AWSClusterStaticIdentity/keys"),
        REGION,
        &key("a"),
    );
    for _ in 0..3 {
        assert_eq!(keys.account().await.unwrap(), "999988887777");
    }
    assert_eq!(
        sts.calls(),
        [("GetCallerIdentity".to_owned(), "AKIA1".to_owned())]
    );
}

#[tokio::test(start_paused = true)]
async fn a_service_account_token_assumes_the_role_of_the_account() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    for name in ["nodes", "gone"] {
        put(
            &mut objects,
            &format!("AWSServiceAccountIdentity/{name}"),
            &json!({"roleARN": arn(name)}),
        );
    }
    let of_account = |name: &str| {
        let cluster = Cluster {
            namespace: "tenant-a".to_owned(),
            ..Cluster::default()
        };
        let settings = TenancySettings::default();
        let explained = explain(&objects, &cluster, None, Some(name), settings);
        let plan = explained.plan.unwrap();
        sessions.of_plan(&plan, REGION, &key("a"))
    };
    let keys = of_account("nodes").keys().await.unwrap();
    assert_eq!(keys.access_key_id(), format!("{}#1", arn("nodes")));
    assert_eq!(
        sts.calls(),
        [(arn("nodes"), "token of tenant-a/nodes".to_owned())]
    );

    let error = of_account("gone").keys().await.unwrap_err();
    assert_eq!(
        error.kind,
        FailureKind::NoToken("serviceaccount gone not found".to_owned())
    );
    assert_eq!(error.kind.reason(), "ServiceAccountTokenUnavailable");
}

#[tokio::test(start_paused = true)]
async fn account_queries_share_one_call_and_pause_after_a_failure() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let credentials = sessions.of_plan(&plan(&objects(), CONTROLLER), REGION, &key("a"));
    let denied = FailureKind::Refused {
        code: "AccessDenied".to_owned(),
        request_id: None,
    };
    sts.fail("GetCallerIdentity", Some(denied.clone()));
    for _ in 0..2 {
        let all = join_all((0..200).map(|_| credentials.account())).await;
        assert!(
            all.iter()
                .all(|answer| answer.as_ref().is_err_and(|error| error.kind == denied))
        );
    }
    assert_eq!(sts.count(), 1);
    assert_eq!(credentials.condition().1.unwrap().kind, denied);

    sts.fail("GetCallerIdentity", None);
    sleep(Duration::from_secs(31)).await;
    let all = join_all((0..200).map(|_| credentials.account())).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(sts.count(), 2);
    assert_eq!(credentials.condition().1, None);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_without_calls_left_does_not_delay_other_tenants() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(numbers(40));
    let flood = numbers(30);
    let flood = flood
        .iter()
        .map(|name| sessions.of_plan(&plan(&objects, &of(name)), REGION, &key("one")));
    let flood: Vec<_> = flood.collect();
    let other = sessions.of_plan(&plan(&objects, &of("35")), REGION, &key("two"));
    let start = Instant::now();
    let all = join_all(flood.iter().map(PlanCredentials::keys));
    let waited = async {
        other.keys().await.unwrap();
        start.elapsed()
    };
    let (_, waited) = tokio::join!(all, waited);
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    assert!(start.elapsed() > Duration::from_secs(15));
}

#[tokio::test(start_paused = true)]
async fn requests_that_share_a_call_use_one_call_of_the_tenant_budget() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("one"));
    let start = Instant::now();
    let all = join_all((0..200).map(|_| credentials.keys())).await;
    assert!(all.iter().all(Result::is_ok));
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_failed_account_query_affects_only_its_own_region() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let plan = plan(&objects(), CONTROLLER);
    let [first, second, good] = ["me-south-1", "ap-east-1", REGION]
        .map(|region| sessions.of_plan(&plan, region, &key("a")));
    let denied = FailureKind::Refused {
        code: "InvalidClientTokenId".to_owned(),
        request_id: None,
    };
    for region in ["me-south-1", "ap-east-1"] {
        let call = format!("GetCallerIdentity in {region}");
        sts.fail(&call, Some(denied.clone()));
    }
    for _ in 0..3 {
        assert_eq!(first.account().await.unwrap_err().kind, denied);
        assert_eq!(second.account().await.unwrap_err().kind, denied);
    }
    assert_eq!(sts.count(), 2);
    assert_eq!(first.condition().1.unwrap().kind, denied);
    assert_eq!(good.condition().1, None);

    assert_eq!(good.account().await.unwrap(), "999988887777");
    // One successful call applies to all regions.
    assert_eq!(first.account().await.unwrap(), "999988887777");
    assert_eq!(first.condition().1, None);
    assert_eq!(sts.count(), 3);
}
