//! Tests of query batches, their rate, and the effect of an outage, in virtual time.

use futures::future::join_all;
use tokio::time::advance;

use super::*;
use crate::credentials::Credentials;
use crate::testing::{ACCOUNT, FakeEc2, Fares, INSTANCE, PerAccount, REGION, facts, named, tenant};

mod namespaces;

const OTHER_ACCOUNT: &str = "111122223334";
const OTHER_REGION: &str = "eu-west-2";
const SECOND: Duration = Duration::from_secs(1);

fn instances(ec2: &FakeEc2) -> Instances {
    limited(ec2, Limits::default())
}

fn limited(ec2: &FakeEc2, limits: Limits) -> Instances {
    Instances::with(Arc::new(PerAccount), Arc::new(ec2.clone()), limits)
}

fn ours() -> &'static Tenant {
    tenant(ACCOUNT)
}

fn ids(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("i-{number:017x}"))
        .collect()
}

fn fleet(count: usize) -> FakeEc2 {
    FakeEc2::with(ids(count).iter().map(|id| named(id)))
}

fn throttled() -> OutageKind {
    OutageKind::Throttled("RequestLimitExceeded".to_owned())
}

#[tokio::test(start_paused = true)]
async fn up_to_100_requests_that_arrive_together_share_one_call() {
    let (ec2, ids) = (fleet(200), ids(200));
    let instances = instances(&ec2);

    let asked = ids.iter().map(|id| instances.describe(ours(), REGION, id));
    let answers = join_all(asked).await;

    for (id, answer) in ids.iter().zip(answers) {
        assert_eq!(answer.unwrap().unwrap().id, *id);
    }
    let calls = ec2.calls();
    assert_eq!(
        calls
            .iter()
            .map(|call| call.ids().len())
            .collect::<Vec<_>>(),
        [100, 100]
    );
}

#[tokio::test(start_paused = true)]
async fn requests_for_one_instance_share_one_query() {
    let ec2 = FakeEc2::with([facts()]);
    let instances = instances(&ec2);

    let answers = join_all((0..300).map(|_| instances.describe(ours(), REGION, INSTANCE))).await;

    assert!(
        answers
            .into_iter()
            .all(|answer| answer.unwrap() == Some(facts()))
    );
    assert_eq!(ec2.calls().len(), 1);
    assert_eq!(ec2.calls()[0].ids(), [INSTANCE]);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_only_for_expected_instances() {
    let (ec2, ids) = (fleet(3), ids(3));
    let instances = instances(&ec2);
    let begin = Instant::now();
    let late = instances.expect(ours(), REGION).await.unwrap();
    let given_up = instances.expect(ours(), REGION).await.unwrap();

    let first = instances.describe(ours(), REGION, &ids[0]);
    let second = async {
        tokio::time::sleep(SECOND).await;
        drop(given_up);
        late.describe(&ids[1]).await
    };
    let (first, second) = futures::join!(first, second);

    assert!(first.unwrap().is_some() && second.unwrap().is_some());
    assert_eq!(begin.elapsed(), SECOND + Limits::default().window);
    assert_eq!(ec2.calls().len(), 1);

    // If a reservation does not contain a request, it does not delay other requests.
    let _never = instances.expect(ours(), REGION).await.unwrap();
    let begin = Instant::now();
    instances.describe(ours(), REGION, &ids[2]).await.unwrap();
    assert_eq!(begin.elapsed(), Limits::default().gathering);
}

#[tokio::test(start_paused = true)]
async fn each_new_request_extends_the_window_up_to_the_gathering_limit() {
    let limits = Limits::default();
    let (ec2, ids) = (fleet(60), ids(60));
    let instances = instances(&ec2);
    let pause = limits.window / 10 * 9;
    let begin = Instant::now();

    let come_in_turn = ids.iter().zip(0..).map(|(id, number)| {
        let instances = instances.clone();
        async move {
            tokio::time::sleep(number * pause).await;
            instances.describe(ours(), REGION, id).await.unwrap();
            begin.elapsed()
        }
    });
    let answered = join_all(come_in_turn).await;

    assert_eq!(answered[0], limits.gathering);
    let most = begin.elapsed().as_millis() / limits.gathering.as_millis() + 1;
    assert_eq!(ec2.calls().len(), usize::try_from(most).unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_window_starts_with_the_first_request_and_a_full_batch_skips_it() {
    let (ec2, ids) = (fleet(101), ids(101));
    let instances = instances(&ec2);
    let begin = Instant::now();

    instances.describe(ours(), REGION, &ids[100]).await.unwrap();
    assert_eq!(begin.elapsed(), Limits::default().window);

    let begin = Instant::now();
    join_all(
        ids[..100]
            .iter()
            .map(|id| instances.describe(ours(), REGION, id)),
    )
    .await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn calls_with_other_credentials_or_regions_are_separate() {
    let ec2 = FakeEc2::with([facts()]);
    let instances = instances(&ec2);

    let answers = join_all([
        instances.describe(ours(), REGION, INSTANCE),
        instances.describe(tenant(OTHER_ACCOUNT), REGION, INSTANCE),
        instances.describe(ours(), OTHER_REGION, INSTANCE),
    ])
    .await;

    assert!(answers.into_iter().all(|answer| answer.unwrap().is_some()));
    let mut by: Vec<_> = ec2
        .calls()
        .into_iter()
        .map(|call| (call.key, call.region))
        .collect();
    by.sort();
    by.dedup();
    assert_eq!(by.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn facts_are_not_cached_for_other_credentials() {
    let ec2 = FakeEc2::with([facts()]);
    let instances = instances(&ec2);
    instances.describe(ours(), REGION, INSTANCE).await.unwrap();
    ec2.knows([]);

    let others = instances
        .describe(tenant(OTHER_ACCOUNT), REGION, INSTANCE)
        .await;

    assert_eq!(others.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn only_a_running_instance_is_cached_and_only_for_seconds() {
    let ec2 = FakeEc2::with([facts()]);
    let instances = instances(&ec2);
    let describe = || instances.describe(ours(), REGION, INSTANCE);

    describe().await.unwrap();
    let half = Limits::default().calls.remembered / 2;
    advance(half).await;
    describe().await.unwrap();
    assert_eq!(ec2.calls().len(), 1);
    advance(half).await;
    ec2.knows([]);
    assert_eq!(describe().await.unwrap(), None);
    ec2.knows([InstanceFacts {
        state: "stopped".to_owned(),
        ..facts()
    }]);
    assert_eq!(describe().await.unwrap().unwrap().state, "stopped");
    ec2.knows([facts()]);
    assert_eq!(describe().await.unwrap(), Some(facts()));
    assert_eq!(ec2.calls().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn calls_over_the_rate_limit_wait_and_collect_more_requests() {
    let ec2 = fleet(0);
    let mut limits = Limits::default();
    limits.calls.rate.burst = 2;
    let instances = limited(&ec2, limits);
    let begin = Instant::now();

    // Each request arrives after the end of the previous window.
    let asked = ids(40).into_iter().zip(0..).map(|(id, number)| {
        let instances = instances.clone();
        async move {
            tokio::time::sleep(number * 2 * limits.window).await;
            instances.describe(ours(), REGION, &id).await
        }
    });
    join_all(asked).await;

    let most = 2 + begin.elapsed().as_millis() / limits.calls.rate.every.as_millis();
    let calls = ec2.calls().len();
    assert!(
        (3..=usize::try_from(most).unwrap()).contains(&calls),
        "{calls} calls"
    );
}

#[tokio::test(start_paused = true)]
async fn all_pages_of_a_response_are_read() {
    let (ec2, ids) = (fleet(25), ids(25));
    ec2.page_len(10);
    let instances = instances(&ec2);

    let asked = ids.iter().map(|id| instances.describe(ours(), REGION, id));
    let answers = join_all(asked).await;

    assert!(answers.into_iter().all(|answer| answer.unwrap().is_some()));
    let next: Vec<_> = ec2.calls().into_iter().map(|call| call.next).collect();
    assert_eq!(next, [None, Some("10".to_owned()), Some("20".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn an_endless_list_of_pages_is_reported_as_an_outage() {
    let ec2 = fleet(100);
    // The first page is empty, and has a next page.
    ec2.page_len(0);

    let answer = instances(&ec2).describe(ours(), REGION, &ids(1)[0]).await;

    let limits = Limits::default();
    assert!(ec2.calls().len() <= MAX_PAGES);
    // The call takes longer than the longest time that a request waits.
    assert!(
        answer.unwrap_err().to_string().contains("in time"),
        "{limits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_region_that_hangs_times_out_and_does_not_delay_other_regions() {
    let ec2 = FakeEc2::with([facts()]);
    ec2.fares(REGION, Fares::Hangs);
    let instances = instances(&ec2);
    let begin = Instant::now();

    let (hung, answered) = futures::join!(instances.describe(ours(), REGION, INSTANCE), async {
        let answer = instances.describe(ours(), OTHER_REGION, INSTANCE).await;
        (answer, begin.elapsed())
    });

    assert!(answered.0.unwrap().is_some());
    assert_eq!(answered.1, Limits::default().window);
    assert!(
        hung.unwrap_err()
            .to_string()
            .contains("did not respond in time")
    );
    assert!(begin.elapsed() <= Limits::default().calls.call + Limits::default().window);
}

#[tokio::test(start_paused = true)]
async fn a_canceled_request_does_not_affect_the_others_in_its_batch() {
    let ec2 = FakeEc2::with([facts()]);
    let instances = instances(&ec2);
    let mut first = Box::pin(instances.describe(ours(), REGION, INSTANCE));
    assert!(futures::poll!(&mut first).is_pending());
    let second = tokio::spawn({
        let instances = instances.clone();
        async move { instances.describe(ours(), REGION, INSTANCE).await }
    });
    tokio::task::yield_now().await;

    drop(first);

    assert_eq!(second.await.unwrap().unwrap(), Some(facts()));
    assert_eq!(ec2.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_over_the_waiting_limit_fails_immediately() {
    let ec2 = FakeEc2::with([facts()]);
    let limits = Limits {
        waiting: 2,
        ..Limits::default()
    };
    let instances = limited(&ec2, limits);

    let answers = join_all((0..3).map(|_| instances.describe(ours(), REGION, INSTANCE))).await;

    let [first, second, third] = answers.try_into().unwrap();
    assert!(first.is_ok() && second.is_ok());
    assert!(
        third
            .unwrap_err()
            .to_string()
            .contains("too many requests are waiting")
    );
    instances
        .describe(ours(), OTHER_REGION, INSTANCE)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_throttled_batch_fails_all_its_requests_and_pauses_calls_to_ec2() {
    let (ec2, ids) = (fleet(150), ids(150));
    ec2.fares(REGION, Fares::Fails(throttled()));
    let instances = instances(&ec2);
    let all = || join_all(ids.iter().map(|id| instances.describe(ours(), REGION, id)));

    let failed = all().await;
    assert!(failed.into_iter().all(|answer| {
        answer
            .unwrap_err()
            .to_string()
            .contains("throttles the controller: RequestLimitExceeded")
    }));
    let calls = ec2.calls().len();
    assert!(calls <= 2, "{calls} calls");
    assert!(all().await.into_iter().all(|answer| answer.is_err()));
    assert_eq!(ec2.calls().len(), calls);

    ec2.fares(REGION, Fares::Well);
    advance(Limits::default().calls.pause).await;
    assert!(
        all()
            .await
            .into_iter()
            .all(|answer| answer.unwrap().is_some())
    );
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_ec2_outage_causes_at_most_130_calls() {
    for fares in [Fares::Fails(throttled()), Fares::Hangs] {
        let ec2 = FakeEc2::with([facts()]);
        ec2.fares(REGION, fares);
        let instances = instances(&ec2);
        let begin = Instant::now();

        while begin.elapsed() < Duration::from_hours(1) {
            instances
                .describe(ours(), REGION, INSTANCE)
                .await
                .unwrap_err();
            advance(SECOND).await;
        }
        let calls = ec2.calls().len();
        assert!(calls <= 130, "{calls} calls");

        ec2.fares(REGION, Fares::Well);
        let ended = Instant::now();
        while instances.describe(ours(), REGION, INSTANCE).await.is_err() {
            advance(SECOND).await;
        }
        assert!(ended.elapsed() <= Limits::default().calls.longest_pause + SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_only_one_call_at_a_time_is_retried() {
    let ec2 = fleet(300);
    ec2.fares(REGION, Fares::Hangs);
    let instances = instances(&ec2);
    let all = || {
        let ids = ids(300);
        let instances = instances.clone();
        async move { join_all(ids.iter().map(|id| instances.describe(ours(), REGION, id))).await }
    };
    all().await;
    let before = ec2.calls().len();
    advance(Limits::default().calls.longest_pause).await;

    all().await;

    assert_eq!(ec2.calls().len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn after_the_first_success_calls_are_no_longer_one_at_a_time() {
    let ec2 = fleet(1000);
    ec2.fares(REGION, Fares::Hangs);
    let instances = instances(&ec2);
    let ids = ids(1000);
    let failed = instances.describe(ours(), REGION, &ids[0]).await;
    assert!(failed.is_err());
    advance(Limits::default().calls.longest_pause).await;
    ec2.fares(REGION, Fares::Slowly(Duration::from_secs(5)));

    let described = ids.iter().map(|id| instances.describe(ours(), REGION, id));
    let described = join_all(described).await;

    assert!(described.iter().all(Result::is_ok));
}

#[derive(Debug)]
struct Unfinished;

#[async_trait::async_trait]
impl CredentialsSource for Unfinished {
    async fn credentials(&self, tenant: &Tenant, region: &str) -> Result<Credentials, Unavailable> {
        if tenant == crate::testing::tenant(OTHER_ACCOUNT) {
            std::future::pending().await
        } else {
            drop(PerAccount.credentials(tenant, region).await);
            Err(Unavailable::new("no credentials"))
        }
    }
}

#[tokio::test(start_paused = true)]
async fn missing_or_delayed_credentials_are_reported_as_an_outage() {
    let ec2 = FakeEc2::with([facts()]);
    let instances = Instances::with(
        Arc::new(Unfinished),
        Arc::new(ec2.clone()),
        Limits::default(),
    );

    let missing = instances.describe(ours(), REGION, INSTANCE).await;
    assert_eq!(missing.unwrap_err().to_string(), "no credentials");
    let late = instances
        .describe(tenant(OTHER_ACCOUNT), REGION, INSTANCE)
        .await;
    assert!(
        late.unwrap_err()
            .to_string()
            .contains("no credentials were found in time")
    );
    assert_eq!(ec2.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn a_tag_query_returns_all_pages_or_fails() {
    let ec2 = fleet(30);
    ec2.page_len(10);
    let instances = instances(&ec2);
    let tags = facts().tags;

    let found = instances.tagged(ours(), REGION, &tags).await.unwrap();
    assert_eq!(found.len(), 30);

    ec2.fares(REGION, Fares::Fails(throttled()));
    instances.tagged(ours(), REGION, &tags).await.unwrap_err();
    let calls = ec2.calls().len();
    instances.tagged(ours(), REGION, &tags).await.unwrap_err();
    assert_eq!(ec2.calls().len(), calls);
}
