//! Tests of a namespace's share of the STS calls.

use tokio::time::timeout;

use super::*;

#[tokio::test(start_paused = true)]
async fn account_queries_of_many_regions_take_the_share_of_their_namespace() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let away = FailureKind::Unavailable("no connection".to_owned());
    sts.fail("GetCallerIdentity", Some(away));
    let plan = plan(&objects(), CONTROLLER);
    let query = |number: usize| {
        let credentials = sessions.of_plan(&plan, &format!("region-{number}"), &key("evil"));
        async move { credentials.account().await }
    };

    let flood = timeout(Duration::from_secs(10), join_all((0..300).map(query)));
    assert!(flood.await.is_err());

    // A namespace has a burst of ten calls, and then one call per second.
    assert!(sts.count() <= 20, "{}", sts.count());
}

#[tokio::test(start_paused = true)]
async fn a_flooding_namespace_does_not_delay_a_shared_account_query() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let away = FailureKind::Unavailable("no connection".to_owned());
    for number in 0..300 {
        sts.fail(
            &format!("GetCallerIdentity in region-{number}"),
            Some(away.clone()),
        );
    }
    let plan = plan(&objects(), CONTROLLER);
    let query = |region: String, tenant: &str| {
        let credentials = sessions.of_plan(&plan, &region, &key(tenant));
        async move { credentials.account().await }
    };
    let regions = (0..300).map(|number| format!("region-{number}"));
    let flood = regions.map(|region| query(region, "evil"));
    let shared = query(REGION.to_owned(), "evil");
    let flood = Box::pin(async { drop(tokio::join!(join_all(flood), shared)) });
    let victim = Box::pin(async {
        sleep(Duration::from_millis(1)).await;
        let start = Instant::now();
        query(REGION.to_owned(), "tenant-b").await.unwrap();
        start.elapsed()
    });

    let ((), waited) = tokio::join!(flood, victim);

    assert!(waited < Duration::from_secs(1), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn renewals_of_many_sessions_take_the_share_of_their_namespace() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    for name in numbers(200) {
        put(&mut objects, &of(&name), &role(CONTROLLER, &name));
    }
    let session = |name: &String, tenant: &str| {
        sessions.of_plan(&plan(&objects, &of(name)), REGION, &key(tenant))
    };
    let all: Vec<_> = numbers(200)
        .iter()
        .map(|name| session(name, "evil"))
        .collect();
    join_all(all.iter().map(PlanCredentials::keys)).await;
    let first = sts.count();

    // All sessions are due for renewal.
    advance(Duration::from_mins(51)).await;
    for _ in 0..5 {
        let keys = join_all(all.iter().map(PlanCredentials::keys)).await;
        assert!(keys.iter().all(Result::is_ok));
        sleep(Duration::from_secs(1)).await;
    }

    // A namespace has a burst of ten calls, and then one call per second.
    let renewed = sts.count() - first;
    assert!((10..=15).contains(&renewed), "{renewed}");
    // Another namespace renews a session that both namespaces use.
    let last = numbers(200).pop().unwrap();
    let before = sts.count();
    session(&last, "tenant-b").keys().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sts.count(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn only_calls_of_sts_take_the_share_of_their_namespace() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    let session = |name: String| {
        static_identity(&mut objects, &name);
        let id = format!("AKIA{name}");
        let data = [("AccessKeyID", &*id), ("SecretAccessKey", "s3cret")];
        secret(&mut objects, &name, &data);
        let plan = plan(&objects, &format!("AWSClusterStaticIdentity/{name}"));
        sessions.of_plan(&plan, REGION, &key("tenant-a"))
    };
    let all: Vec<_> = numbers(50).into_iter().map(session).collect();
    let start = Instant::now();

    let keys = join_all(all.iter().map(PlanCredentials::keys)).await;

    assert!(keys.iter().all(Result::is_ok));
    assert_eq!((sts.count(), start.elapsed()), (0, Duration::ZERO));
}
