//! Serving certificates of instances whose addresses the inventory does not have, as those of the
//! members of a MachinePool.

use std::net::IpAddr;

use kubelet_attestation::names::{BUILT_IN_SERVING_SIGNER, Provider};
use kubelet_authenticator_tests::controller::serving::{ServingRequest, uid_of};
use kubelet_authenticator_tests::controller::{is_issued, reason_of};

use crate::world::World;

#[test]
fn an_instance_serves_at_the_address_that_only_ec2_reports() {
    let world = World::with(|_, _, setup| setup.args(&["--serving"]));
    world.joins_in_the_end();
    let uid = uid_of(&world.bed.server.csrs()[0]);
    let own: IpAddr = world.instance.ec2.private_ip.parse().unwrap();
    let request = |name, signer, address| ServingRequest {
        name,
        node: world.instance.node_name(),
        signer,
        uid: &uid,
        address,
    };
    let asked = |name, signer, address| world.bed.asked_to_serve(&request(name, signer, address));
    let ours = Provider::AWS.serving_signer();

    let answer = asked("ours", &ours, own);
    assert!(is_issued(&answer), "{answer:#}");
    // kube-controller-manager signs these.
    let answer = asked("built-in", BUILT_IN_SERVING_SIGNER, own);
    assert!(reason_of(&answer, "Approved").is_some(), "{answer:#}");

    let other = IpAddr::from([198, 51, 100, 7]);
    let answer = asked("other", &ours, other);
    let reason = reason_of(&answer, "Denied");
    assert_eq!(reason, Some("ServingNameNotReported"), "{answer:#}");
}
