//! Tests of MachinePools with Machines.

use kubelet_authenticator_tests::machines::{Machines, Scene};

#[test]
fn pool_members_with_machines_join_with_their_tpms_and_serve() {
    let scene = Scene::attended("pool-of-tpms", Machines::Tpm(2));
    let pool = (scene.cluster).machine_pool_with_machines_of("pool-m", 0, scene.config());

    pool.scale(2);

    let machines = pool.wait_for_machines(2);
    let nodes = machines.iter().map(|one| scene.wait_for_node_of(one));
    for (node, machine) in nodes.zip(&machines) {
        let record = scene.record(&node);
        let name = &machine["metadata"]["name"];
        assert_eq!(record["spec"]["machineName"], *name, "{record:#}");
    }
    let nodes = pool.wait_until_running(2);
    scene.reads_well(&nodes);
}
