//! Tests of namespaces whose Clusters have the same credentials.

use futures::future::FutureExt as _;
use node_attestation_runtime::shared::Lock;
use node_attestation_runtime::shared::testing::most_visited;

use super::*;
use crate::credentials::ClusterTenant;

/// A tenant in another namespace that has the same credentials.
fn neighbour() -> Tenant {
    Tenant::Cluster(ClusterTenant::new(ObjectKey::new("tenant-b", ACCOUNT)))
}

#[tokio::test(start_paused = true)]
async fn a_flood_with_shared_credentials_delays_other_namespaces_by_one_call() {
    let ec2 = fleet(0);
    let mut limits = Limits::default();
    limits.calls.rate.burst = 1;
    limits.waiting = 1000;
    let instances = limited(&ec2, limits);
    let neighbour = neighbour();
    let ids = ids(1000);
    let flood = join_all(ids.iter().map(|id| instances.describe(ours(), REGION, id)));
    let victim = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        instances.describe(&neighbour, REGION, INSTANCE).await
    };

    let (flood, victim) = futures::join!(flood, victim);

    assert!(flood.iter().all(Result::is_ok));
    assert_eq!(victim.unwrap(), None, "more may wait of each namespace");
    let calls = ec2.calls();
    let lengths: Vec<_> = calls.iter().map(|call| call.ids().len()).collect();
    // The first call is sent immediately. The second call is waiting for its token when the victim sends its request.
    assert_eq!(calls[2].ids(), [INSTANCE]);
    assert_eq!(
        lengths,
        [100, 100, 1, 100, 100, 100, 100, 100, 100, 100, 100]
    );
}

#[tokio::test(start_paused = true)]
async fn namespaces_with_the_same_credentials_share_a_call() {
    let ec2 = fleet(0);
    let instances = instances(&ec2);
    let tenants: Vec<_> = (0..100)
        .map(|number| ObjectKey::new(format!("tenant-{number}"), ACCOUNT))
        .map(|cluster| Tenant::Cluster(ClusterTenant::new(cluster)))
        .collect();
    let ids = ids(200);
    let asked = tenants.iter().cycle().zip(&ids);
    let asked = asked.map(|(tenant, id)| instances.describe(tenant, REGION, id));

    let answers = join_all(asked).await;

    assert!(answers.iter().all(Result::is_ok));
    // The first call is for the first 100 requests, the second is for a request from the first namespace (whose first
    // call is full), and the third is for the other requests.
    let calls = ec2.calls();
    let mut lengths: Vec<_> = calls.iter().map(|call| call.ids().len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [1, 99, 100]);
}

#[tokio::test(start_paused = true)]
async fn expected_requests_of_a_namespace_do_not_delay_other_namespaces() {
    let (ec2, ids) = (fleet(60), ids(60));
    let instances = instances(&ec2);
    let neighbour = neighbour();
    let _never = instances.expect(ours(), REGION).await.unwrap();
    // The requests of the first namespace also extend the window.
    let first = ids[1..].iter().zip(0..).map(|(id, number)| {
        let instances = instances.clone();
        async move {
            tokio::time::sleep(number * Limits::default().window / 2).await;
            instances.describe(ours(), REGION, id).await
        }
    });
    let other = async {
        tokio::time::sleep(Limits::default().window / 4).await;
        let begin = Instant::now();
        let found = instances.describe(&neighbour, REGION, &ids[0]).await;
        (found.unwrap().is_some(), begin.elapsed())
    };

    let (first, other) = futures::join!(join_all(first), other);

    assert!(first.iter().all(Result::is_ok));
    assert_eq!(other, (true, Limits::default().window));
    assert!(ec2.calls()[0].ids().contains(&ids[0].as_str()));
}

/// Adds a query for the instance, on behalf of this Cluster. Returns whether the query starts a new batch.
fn begins(batches: &mut Batches, (namespace, name): (&str, &str), instance: &str) -> bool {
    let mut begins = false;
    drop(
        batches.enqueue(instance, &ObjectKey::new(namespace, name), |_| {
            begins = true;
            async { Ok(Arc::default()) }
        }),
    );
    begins
}

#[tokio::test]
async fn a_second_batch_is_shared_only_within_its_namespace() {
    let mut batches = Batches::default();
    for (number, id) in ids(MAX_IDS).iter().enumerate() {
        let is_first = number == 0;
        assert_eq!(begins(&mut batches, ("tenant-a", "one"), id), is_first);
    }
    // The first batch of the namespace is full, so this query starts the second batch.
    assert!(begins(&mut batches, ("tenant-a", "two"), "i-1"));

    assert!(!begins(&mut batches, ("tenant-a", "three"), "i-2"));
    assert!(begins(&mut batches, ("tenant-b", "one"), "i-3"));
}

#[test]
fn requests_count_against_their_namespace_until_the_last_ends() {
    let mut batches = Batches::default();

    let first = batches.waiting.of("tenant-a");
    let other = batches.waiting.of("tenant-b");
    let second = batches.waiting.of("tenant-a");

    assert_eq!(first.count(), 2);
    assert_eq!(other.count(), 1);
    drop((first, second));
    assert_eq!(batches.waiting.of("tenant-a").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_stops_after_the_page_that_exceeds_its_limit() {
    let tags = facts().tags;
    for (page_len, count, pages, is_told) in [
        (20_000, 20_001, 2, true),
        (20_001, 40_000, 1, false),
        (10_001, 40_000, 2, false),
    ] {
        let ec2 = fleet(count);
        ec2.page_len(page_len);

        let found = instances(&ec2).tagged(ours(), REGION, &tags).await;

        assert_eq!(ec2.calls().len(), pages, "{page_len}");
        if is_told {
            assert_eq!(found.unwrap().len(), count, "{page_len}");
        } else {
            let error = found.unwrap_err().to_string();
            let words = "returned more instances than the controller reads";
            assert!(error.contains(words), "{page_len}: {error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_request_visits_few_of_many_waiting_batches() {
    let (ec2, ids) = (fleet(2001), ids(2001));
    let instances = instances(&ec2);
    // All Clusters have the same credentials.
    let ask = |number: usize| {
        let tenant = tenant(&format!("{number}0"));
        let id = ids[number].clone();
        let instances = instances.clone();
        let mut asked = Box::pin(async move { instances.describe(tenant, REGION, &id).await });
        assert!((&mut asked).now_or_never().is_none());
        asked
    };
    let waiting: Vec<_> = (0..2000).map(ask).collect();

    let visited = most_visited(|| drop(ask(waiting.len())));

    assert!(
        visited[&Lock::Ec2Calls] <= 2000 / MAX_IDS + 1,
        "{visited:?}"
    );
}
