//! Tests of a rollout during an STS outage.

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::{Fault, Times};
use kubelet_authenticator_tests::fleet::condition_of;
use kubelet_authenticator_tests::machines::health::{
    check_attestation, wait_for_machine, wait_for_others,
};
use kubelet_authenticator_tests::machines::objects::names;
use kubelet_authenticator_tests::machines::{CLOUD, Machines, PATIENCE, Scene};
use node_attestation_runtime::machine_conditions::NODE_ATTESTED;
use serde_json::{Value, json};

#[test]
fn a_rollout_during_an_sts_outage_replaces_no_waiting_machine() {
    let scene = Scene::attended("no-sts", Machines::Ec2(Attestor::AWS));
    let pool = |name| scene.cluster.machine_deployment_of(name, 1, scene.config());
    let rolled = pool("pool-a");
    let before = rolled.wait_until_running(1);
    check_attestation(&scene, "pool-a", "False");
    // This pool shows that enough time has passed: its Machines are replaced while they wait.
    check_attestation(&scene, "pool-b", "Unknown");

    CLOUD
        .sts()
        .inject(Times::always(), Fault::service_unavailable());
    rolled.roll_out();
    let waits = |machine: &Value| condition_of(machine, NODE_ATTESTED)["status"] == "Unknown";
    let during = poll(PATIENCE, || {
        let machines = rolled.machines();
        (machines.len() == 2 && machines.iter().any(waits)).then_some(machines)
    });
    let during = during.unwrap_or_else(|| panic!("none waits: {:#}", json!(rolled.machines())));
    let sentinel = pool("pool-b");
    for _ in 0..2 {
        wait_for_others(&sentinel, &wait_for_machine(&sentinel));
    }
    assert_eq!(names(&rolled.machines()), names(&during));

    CLOUD.sts().clear_faults();
    let after = rolled.wait_until_replaced(1, &names(&before));
    assert!(names(&during).contains(&names(&after)[0]), "{after:#?}");
}
