//! Tests of the machines of a cluster whose instances are identified by a tag.

use tokio::time::advance;

use super::*;
use crate::ec2::{Limits, OutageKind};
use crate::testing::{ACCOUNT, FakeEc2, Fares, INSTANCE, PerAccount, REGION, facts, named};

const OTHER: &str = "i-00000000000000002";

fn tags() -> BTreeMap<String, String> {
    BTreeMap::from([("cluster".to_owned(), "prod".to_owned())])
}

fn tagged(facts: InstanceFacts) -> InstanceFacts {
    InstanceFacts {
        tags: tags(),
        ..facts
    }
}

fn settings() -> InventorySettings {
    InventorySettings {
        places: vec![Place {
            account: ACCOUNT.to_owned(),
            region: REGION.to_owned(),
        }],
        tags: tags(),
        node_name: AwsNodeName::PrivateDnsName,
    }
}

fn inventory(ec2: &FakeEc2) -> TaggedInstances {
    let instances = Instances::with(
        Arc::new(PerAccount),
        Arc::new(ec2.clone()),
        Limits::default(),
    );
    TaggedInstances::new(instances, settings()).unwrap()
}

fn provider_id(instance: &str) -> ProviderId {
    ProviderId::parse(&format!("aws:///eu-west-1a/{instance}")).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_instance_with_the_required_tags_is_a_machine() {
    let ec2 = FakeEc2::with([tagged(facts()), named(OTHER)]);
    let inventory = inventory(&ec2);
    let name = "ip-10-0-0-1.eu-west-1.compute.internal";

    let machine = inventory
        .by_provider_id(&provider_id(INSTANCE))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(machine.name, INSTANCE);
    assert_eq!(machine.state, MachineState::Ready);
    assert_eq!(machine.node_name.as_ref().unwrap().as_str(), name);
    assert_eq!(machine.provider_id, Some(provider_id(INSTANCE)));
    let called = inventory.by_name(name).await.unwrap();
    assert_eq!(called, std::slice::from_ref(&machine));
    let address = "10.0.0.1".parse().unwrap();
    advance(FRESH).await;
    assert_eq!(inventory.by_address(address).await.unwrap(), [machine]);
    assert_eq!(ec2.calls().len(), 1);
    advance(Duration::from_millis(1)).await;
    inventory.by_address(address).await.unwrap();
    assert_eq!(ec2.calls().len(), 2);

    assert_eq!(
        inventory.by_provider_id(&provider_id(OTHER)).await.unwrap(),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn foreign_and_terminated_instances_are_not_machines() {
    for other in [
        InstanceFacts {
            owner: "999999999999".to_owned(),
            ..facts()
        },
        InstanceFacts {
            state: "terminated".to_owned(),
            ..facts()
        },
    ] {
        let inventory = inventory(&FakeEc2::with([tagged(other)]));

        let found = inventory.by_provider_id(&provider_id(INSTANCE)).await;
        assert_eq!(found.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminating_instance_loses_its_name_and_a_stopped_one_keeps_it() {
    let leaving = InstanceFacts {
        state: "shutting-down".to_owned(),
        ..facts()
    };
    let stopped = InstanceFacts {
        state: "stopped".to_owned(),
        ..named(OTHER)
    };
    let inventory = inventory(&FakeEc2::with([tagged(leaving), tagged(stopped)]));
    let find = async |id| {
        inventory
            .by_provider_id(&provider_id(id))
            .await
            .unwrap()
            .unwrap()
    };

    let leaving = find(INSTANCE).await;
    assert_eq!(
        (leaving.state, leaving.node_name),
        (MachineState::Deleting, None)
    );
    let stopped = find(OTHER).await;
    assert_eq!(stopped.state, MachineState::Ready);
    assert!(stopped.node_name.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_missing_machine_is_looked_up_again_after_a_pause() {
    let ec2 = FakeEc2::with([]);
    let inventory = inventory(&ec2);
    let find = || async {
        inventory
            .by_provider_id(&provider_id(INSTANCE))
            .await
            .unwrap()
    };
    for _ in 0..10 {
        assert_eq!(find().await, None);
    }
    assert_eq!(ec2.calls().len(), 1);

    ec2.knows([tagged(facts())]);
    advance(LOOKED_JUST_NOW + Duration::from_secs(1)).await;
    assert!(find().await.is_some());
    assert_eq!(ec2.calls().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn concurrent_queries_share_one_list_call() {
    let ec2 = FakeEc2::with([tagged(facts())]);
    let inventory = inventory(&ec2);
    let provider_id = provider_id(INSTANCE);

    let all = (0..50).map(|_| inventory.by_provider_id(&provider_id));
    let found = futures::future::join_all(all).await;

    assert!(found.into_iter().all(|found| found.unwrap().is_some()));
    assert_eq!(ec2.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_distinguished_from_a_missing_machine() {
    let ec2 = FakeEc2::with([tagged(facts())]);
    let inventory = inventory(&ec2);
    let outage = OutageKind::TimedOut;
    inventory
        .by_provider_id(&provider_id(INSTANCE))
        .await
        .unwrap();
    ec2.fares(REGION, Fares::Fails(outage));

    // The list is still valid for some time.
    inventory
        .by_provider_id(&provider_id(INSTANCE))
        .await
        .unwrap();
    advance(FRESH + Duration::from_secs(1)).await;
    inventory
        .by_provider_id(&provider_id(INSTANCE))
        .await
        .unwrap_err();

    ec2.fares(REGION, Fares::Well);
    advance(Duration::from_mins(1)).await;
    assert!(
        inventory
            .by_provider_id(&provider_id(INSTANCE))
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn two_instances_with_one_node_name_are_reported_as_an_outage() {
    let inventory = inventory(&FakeEc2::with([tagged(facts()), tagged(named(OTHER))]));

    let found = inventory.by_provider_id(&provider_id(INSTANCE)).await;

    let cause = found.unwrap_err().to_string();
    assert!(cause.contains("have the same node name"), "{cause}");
}

#[test]
fn an_inventory_without_tags_or_places_is_refused() {
    let made = |settings| {
        let ec2 = Arc::new(FakeEc2::default());
        let instances = Instances::with(Arc::new(PerAccount), ec2, Limits::default());
        TaggedInstances::new(instances, settings)
            .map(|_| ())
            .unwrap_err()
    };
    let no_tags = InventorySettings {
        tags: BTreeMap::new(),
        ..settings()
    };
    assert_eq!(made(no_tags), InvalidInventory::NoTags);
    let no_places = InventorySettings {
        places: Vec::new(),
        ..settings()
    };
    assert_eq!(made(no_places), InvalidInventory::NoPlaces);
}
