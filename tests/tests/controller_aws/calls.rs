//! Tests of the metrics about AWS calls.

use kubelet_authenticator_test_support::sts::{Fault, Times};
use kubelet_authenticator_tests::scrape::Diagnostics;

use crate::world::World;

fn called(service: &str, operation: &str, result: &str, count: usize) -> String {
    format!(
        r#"node_attestation_cloud_requests_total{{service="{service}",operation="{operation}",result="{result}"}} {count}"#
    )
}

#[test]
fn ec2_and_sts_calls_are_counted_by_result_without_credentials() {
    let diagnostics = Diagnostics::default();
    let world = World::with(|_, _, setup| setup.args(&diagnostics.arguments()));
    world.cloud.sts().inject(Times::once(), Fault::throttling());

    world.joins_in_the_end();

    let moto = world.cloud.moto().calls();
    let described = moto
        .iter()
        .filter(|call| call.action == "DescribeInstances");
    let text = diagnostics.wait_for(&[
        &called("sts", "GetCallerIdentity", "throttled", 1),
        &called("sts", "GetCallerIdentity", "ok", 1),
        &called("ec2", "DescribeInstances", "ok", described.count()),
    ]);
    for secret in world.secrets() {
        assert!(!text.contains(&secret), "{text}");
    }
    assert!(!text.contains(&world.instance.ec2.id), "{text}");
}
