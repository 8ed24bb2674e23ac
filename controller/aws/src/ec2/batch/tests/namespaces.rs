//! Namespaces whose Clusters have the same credentials.

use super::*;
use crate::credentials::ClusterTenant;

/// A tenant of another namespace with the same credentials.
fn neighbour() -> Tenant {
    Tenant::Cluster(ClusterTenant::new(ObjectKey::new("tenant-b", ACCOUNT)))
}

#[tokio::test(start_paused = true)]
async fn a_flood_with_shared_credentials_delays_another_namespace_by_one_call() {
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
    // The first is sent at once, and the second waits for its token when the victim asks.
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
    // The first hundred; one of the first namespace, whose first call is full; and the others.
    let calls = ec2.calls();
    let mut lengths: Vec<_> = calls.iter().map(|call| call.ids().len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [1, 99, 100]);
}
