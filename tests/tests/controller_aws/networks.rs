//! Tests of instances in each kind of network.

use kubelet_authenticator_test_support::imds::Network;
use kubelet_authenticator_tests::cloud::{Cloud, OWNED};
use serde_json::json;

use crate::world::World;

#[test]
fn an_instance_joins_with_a_name_from_ec2_in_every_network() {
    for (network, by_id) in [
        (Network::Domain("corp.test."), false),
        (Network::ResourceNames, false),
        (Network::ResourceNames, true),
        (Network::Ipv6Only, true),
    ] {
        let cloud = Cloud::start();
        let instance = cloud.launch_in_network(network, &[OWNED]);
        let policy = if by_id {
            "InstanceID"
        } else {
            "PrivateDNSName"
        };
        let mut world = World::of(cloud, instance, |_, _, setup| {
            setup.spec(&json!({"aws": {"nodeName": policy}}))
        });
        if by_id {
            let id = world.instance.ec2.id.clone();
            world.node.set("nodeName", id);
        }

        world.joins_in_the_end();

        let csrs = world.bed.server.csrs();
        assert_eq!(csrs.len(), 1, "{network:?}");
    }
}
