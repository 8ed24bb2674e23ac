//! Tests of the number of entries that the cache visits while it holds the locks on sessions.

use futures::future::FutureExt as _;
use node_attestation_runtime::shared::Lock;
use node_attestation_runtime::shared::testing::most_visited;

use super::*;

#[tokio::test(start_paused = true)]
async fn the_lookup_of_a_session_does_not_visit_other_sessions() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(numbers(200));
    let of = |name: &String| sessions.of_plan(&plan(&objects, &of(name)), REGION, &key(name));
    let all: Vec<_> = numbers(199).iter().map(of).collect();

    let visited = most_visited(|| {
        let new = of(&"199".to_owned());
        assert!(new.keys().now_or_never().is_none());
        assert!(!all[0].pauses());
    });

    assert!(visited[&Lock::RoleSessions] < 10, "{visited:?}");
    assert_eq!(visited[&Lock::Session], 0);
}

#[tokio::test(start_paused = true)]
async fn an_account_query_for_a_key_visits_few_regions() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let credentials =
        |region: String| sessions.of_plan(&plan(&objects(), CONTROLLER), &region, &key("a"));
    let mut waiting = Vec::new();

    let visited = most_visited(|| {
        for number in 0..1000 {
            let credentials = credentials(format!("region-{number}"));
            let mut account = Box::pin(async move { credentials.account().await });
            drop((&mut account).now_or_never());
            waiting.push(account);
        }
    });

    assert!(visited[&Lock::Session] < 100, "{visited:?}");
}
