//! A MachinePool that grows to fifty nodes.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::machines::{Machines, PATIENCE, Scene};
use kubelet_authenticator_tests::management::Order;

const MEMBERS: u32 = 50;

#[test]
fn an_empty_pool_grows_to_50_nodes_after_three_token_rotations() {
    let scene = Scene::attended("fifty", Machines::Insecure(Order::ProviderIdFirst));
    let pool = scene.cluster.machine_pool_of("pool-a", 0, scene.config());
    let token = |former: &[String]| {
        let found = poll(PATIENCE, || {
            pool.token_id().filter(|id| !former.contains(id))
        });
        found.unwrap_or_else(|| panic!("no token after {former:?}: {:#}", pool.get()))
    };
    let mut tokens = Vec::new();
    while tokens.len() < 4 {
        tokens.push(token(&tokens));
    }

    pool.scale(MEMBERS);

    let count = usize::try_from(MEMBERS).unwrap();
    let nodes = pool.wait_until_running(count);
    for node in &nodes {
        scene.plane().wait_for_node_ready(node);
        let record = scene.record(node);
        let provider_id = format!("generic:///fifty/{node}");
        assert_eq!(record["spec"]["providerID"], provider_id, "{record:#}");
    }
    assert_eq!(scene.client_requests().len(), count);
}
