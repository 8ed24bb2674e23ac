use std::collections::HashMap;

use futures::future::FutureExt as _;
use node_attestation_runtime::shared::testing::most_visited;
use parking_lot::Mutex;

use super::*;
use crate::credentials::ClusterTenant;
use crate::ec2::{Ec2, Ec2Settings, Outage};
use crate::testing::{REGION, credentials};

/// For each tenant name, the leased credentials.
#[derive(Debug, Default)]
struct Lessor(Mutex<HashMap<u8, Arc<()>>>);

#[async_trait::async_trait]
impl CredentialsSource for Lessor {
    async fn credentials(&self, tenant: &Tenant, _: &str) -> Result<Credentials, Unavailable> {
        let Tenant::Cluster(tenant) = tenant else {
            return Ok(credentials(0, "OWN"));
        };
        let number = tenant.cluster.name.parse().unwrap();
        let lease = self.0.lock().entry(number).or_default().clone();
        Ok(Credentials {
            lease: Lease::Held(lease),
            ..credentials(number, "LEASED")
        })
    }
}

fn tenant(number: &str) -> &'static Tenant {
    crate::testing::tenant(number)
}

/// A Cluster in the namespace. All of them have the same credentials.
fn cluster_of(namespace: &str) -> Tenant {
    Tenant::Cluster(ClusterTenant::new(ObjectKey::new(namespace, "1")))
}

fn region(number: usize) -> String {
    format!("{number:05}")
}

/// Whether the channel has a lane for the region with this number.
fn has_lane(channel: &Channel<()>, number: usize) -> bool {
    let region = region(number);
    let is_it = |(_, of): &(CredentialsKey, String)| *of == region;
    channel
        .lanes
        .read(|lanes| lanes.all.entries().keys().any(is_it))
}

#[tokio::test(start_paused = true)]
async fn ec2_clients_are_dropped_together_with_their_credentials() {
    let lessor = Arc::new(Lessor::default());
    let limits = crate::ec2::Limits::default().calls;
    let channel: Channel<()> = Channel::new(lessor.clone(), limits);
    let ec2 = Ec2::new(Ec2Settings::default());
    let use_lane = async |tenant| {
        let (lane, _lease) = channel.lane(tenant, REGION).await.unwrap();
        ec2.client(&lane.credentials, REGION);
        lane
    };
    let kept = |lane: &Loan<Lane<()>>| {
        let is_it = |other: &Kept<()>| other.lane.has_lent(lane);
        channel
            .lanes
            .read(|lanes| lanes.all.entries().values().any(is_it))
    };
    let own = use_lane(&Tenant::Controller).await;
    let first = use_lane(tenant("1")).await;
    assert!(std::ptr::eq(
        &raw const *use_lane(tenant("1")).await,
        &raw const *first
    ));
    assert_eq!(ec2.kept(), 2);

    lessor.0.lock().remove(&1);
    let second = use_lane(tenant("2")).await;
    assert!(kept(&own) && kept(&second) && !kept(&first));
    assert_eq!(ec2.kept(), 2);

    // The credentials are the same, but no lease uses them any longer.
    lessor.0.lock().remove(&2);
    let again = use_lane(tenant("2")).await;
    assert!(kept(&again) && !kept(&second));
    assert_eq!(ec2.kept(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_idle_call_queue_is_dropped_above_the_limit() {
    let limits = crate::ec2::Limits::default().calls;
    let channel: Channel<()> = Channel::new(Arc::new(Lessor::default()), limits);
    // No namespace is at its limit.
    let lane = async |number: usize| {
        let tenant = cluster_of(&format!("tenant-{}", number % 8));
        let lane = channel.lane(&tenant, &region(number)).await;
        lane.unwrap().0
    };
    let held = lane(0).await;
    lane(1).await.settle(Some(&OutageKind::TimedOut));
    let cluster = ObjectKey::new("tenant-a", "1");
    lane(2).await.token(&cluster).await.unwrap();
    drop(lane(3).await);
    let kept = |number: usize| has_lane(&channel, number);
    let mut others = Vec::new();
    for number in 4..MAX_LANES {
        others.push(lane(number).await);
    }
    assert!(kept(3));

    // The number is high enough for the test to visit each lane while there are too many lanes.
    for number in MAX_LANES..MAX_LANES + MAX_LANES / 2 {
        others.push(lane(number).await);
    }

    assert_eq!([0, 1, 2, 3].map(kept), [true, true, true, false]);
    assert!(std::ptr::eq(&raw const *lane(0).await, &raw const *held));
}

#[tokio::test(start_paused = true)]
async fn regions_of_one_namespace_do_not_displace_lanes_of_others() {
    let limits = crate::ec2::Limits::default().calls;
    let channel: Channel<()> = Channel::new(Arc::new(Lessor::default()), limits);
    let lane = async |namespace: &str, number: usize| {
        let lane = channel.lane(&cluster_of(namespace), &region(number)).await;
        lane.map(|(lane, _)| lane)
    };
    // The lane is idle.
    drop(lane("tenant-b", 0).await.unwrap());
    let mut held = Vec::new();
    for number in 1..=MAX_OF_NAMESPACE {
        held.push(lane("tenant-a", number).await.unwrap());
    }

    let refused = lane("tenant-a", MAX_OF_NAMESPACE + 1).await.err().unwrap();

    let Outage { kind, .. } = refused.cause::<Outage>().unwrap();
    assert_eq!(*kind, OutageKind::TooManyRegions);
    assert!(std::ptr::eq(
        &raw const *lane("tenant-a", 1).await.unwrap(),
        &raw const *held[0]
    ));
    assert!(lane("tenant-b", MAX_OF_NAMESPACE + 2).await.is_ok());
    // A namespace at its limit replaces only its own lanes that are not in use.
    drop(held);
    for number in 1..=2 * MAX_OF_NAMESPACE {
        assert!(
            lane("tenant-a", MAX_OF_NAMESPACE + 2 + number)
                .await
                .is_ok()
        );
    }
    assert!(has_lane(&channel, 0));
    let count = channel.lanes.read(|lanes| lanes.all.len());
    assert!(count <= MAX_OF_NAMESPACE + 2, "{count}");
}

#[tokio::test(start_paused = true)]
async fn idle_lanes_of_a_namespace_are_dropped_only_above_its_limit() {
    let limits = crate::ec2::Limits::default().calls;
    let channel: Channel<()> = Channel::new(Arc::new(Lessor::default()), limits);
    let tenant = cluster_of("tenant-a");
    let use_lane = async |number: usize| {
        drop(channel.lane(&tenant, &region(number)).await.unwrap());
    };
    let count = || channel.lanes.read(|lanes| lanes.all.len());

    for number in 0..MAX_OF_NAMESPACE {
        use_lane(number).await;
    }
    assert_eq!(count(), MAX_OF_NAMESPACE);

    use_lane(MAX_OF_NAMESPACE).await;
    assert!(count() <= MAX_OF_NAMESPACE, "{}", count());
    assert!(has_lane(&channel, MAX_OF_NAMESPACE));
}

#[tokio::test(start_paused = true)]
async fn the_ec2_client_of_a_dropped_lane_is_dropped() {
    let limits = crate::ec2::Limits::default().calls;
    let channel: Channel<()> = Channel::new(Arc::new(Lessor::default()), limits);
    let ec2 = Ec2::new(Ec2Settings::default());
    let use_lane = async |number: usize| {
        let (lane, _lease) = channel.lane(tenant("1"), &region(number)).await.unwrap();
        ec2.client(&lane.credentials, &lane.region);
    };
    use_lane(1).await;
    use_lane(2).await;
    assert_eq!(ec2.kept(), 2);

    drop(
        channel
            .lanes
            .write(|lanes| lanes.all.sweep(PAGE, |_, _| true)),
    );
    use_lane(3).await;

    assert_eq!(ec2.kept(), 1);
}

#[tokio::test]
async fn remembered_results_are_dropped_only_above_the_limit() {
    let mut remembered = Remembered::<usize, ()>::default();
    let age = Duration::from_mins(1);
    for number in 0..MAX_REMEMBERED {
        remember(&mut remembered, number, (), age);
    }
    assert_eq!(remembered.len(), MAX_REMEMBERED);

    remember(&mut remembered, MAX_REMEMBERED, (), age);

    assert!(remembered.len() < MAX_REMEMBERED);
    assert_eq!(recall(&remembered, &MAX_REMEMBERED, age), Some(()));
}

#[tokio::test(start_paused = true)]
async fn expired_results_are_removed_by_later_results() {
    let mut remembered = Remembered::<usize, ()>::default();
    let age = Duration::from_mins(1);
    for number in 0..1000 {
        remember(&mut remembered, number, (), age);
    }
    tokio::time::advance(age).await;

    for number in 1000..2000 {
        remember(&mut remembered, number, (), age);
    }

    assert_eq!(remembered.len(), 1000);
    assert_eq!(recall(&remembered, &1999, age), Some(()));
}

#[tokio::test]
async fn retries_after_a_failure_rotate_by_namespace() {
    let limits = crate::ec2::Limits::default().calls;
    let channel: Channel<()> = Channel::new(Arc::new(Lessor::default()), limits);
    let (lane, _lease) = channel.lane(&Tenant::Controller, REGION).await.unwrap();
    lane.settle(Some(&OutageKind::TimedOut));
    let cluster = |namespace: &str, name: &str| ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let first = lane.alone_after_failure(&cluster("tenant-a", "1")).await;
    assert!(first.is_some());
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let mut waiting = tokio::task::JoinSet::new();
    for (namespace, name) in [("tenant-a", "2"), ("tenant-a", "3"), ("tenant-b", "1")] {
        let (lane, order) = (lane.clone(), order.clone());
        let cluster = cluster(namespace, name);
        waiting.spawn(async move {
            let turn = lane.alone_after_failure(&cluster).await;
            order.lock().push(namespace);
            drop(turn);
        });
        tokio::task::yield_now().await;
    }

    drop(first);
    waiting.join_all().await;

    assert_eq!(*order.lock(), ["tenant-b", "tenant-a", "tenant-a"]);
}

#[tokio::test(start_paused = true)]
async fn creation_of_a_call_queue_and_its_client_visits_few_others() {
    let limits = crate::ec2::Limits::default().calls;
    let channel: Channel<()> = Channel::new(Arc::new(Lessor::default()), limits);
    let ec2 = Ec2::new(Ec2Settings::default());
    let lane = |number: usize| {
        let region = region(number);
        let lane = channel.lane(&Tenant::Controller, &region).now_or_never();
        let (lane, _lease) = lane.unwrap().unwrap();
        ec2.client(&lane.credentials, &region);
        lane
    };
    let others: Vec<_> = (0..100).map(lane).collect();

    let visited = most_visited(|| lane(others.len()).settle(Some(&OutageKind::TimedOut)));

    for lock in [Lock::Ec2Queues, Lock::Ec2Clients, Lock::Ec2Calls] {
        assert!(visited[&lock] < 10, "{visited:?}");
    }
}
