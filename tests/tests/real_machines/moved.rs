//! A Cluster is moved to another management cluster, and back.

use kubelet_authenticator_tests::management::Order;

use crate::bed::{Machines, SITE, Scene, Site, client_requests, names, record};
use kubelet_attestation::names::Provider as Attestor;

#[test]
fn after_clusterctl_move_and_back_no_node_joins_again_and_others_join() {
    let there = Site::start();
    let scene = Scene::attended("moved", Machines::Insecure(Order::ProviderIdFirst));
    let config = scene.config();
    let deployment = scene.cluster.machine_deployment_of("pool-a", 1, config);
    let before = deployment.wait_until_running(1);
    let name = scene.wait_for_node_of(&before[0]);
    let record_before = scene.record(&name);
    let Scene {
        cluster,
        authentication,
        provider,
        ..
    } = scene;

    let (provider, cluster) = provider.moved(|| cluster.clusterctl_move(&there.management));

    authentication.wait_until_ready(there.management.kubectl());
    let deployment = deployment.moved_with(&cluster);
    let after = deployment.wait_until_running(1);
    assert_eq!(names(&after), names(&before));
    assert_eq!(
        record(&there, &cluster, &name)["spec"],
        record_before["spec"]
    );
    assert_eq!(client_requests(&cluster, &Attestor::INSECURE).len(), 1);
    deployment.scale(2);
    let both = deployment.wait_until_running(2);
    assert_eq!(client_requests(&cluster, &Attestor::INSECURE).len(), 2);

    let (_provider, cluster) = provider.moved(|| cluster.clusterctl_move(&SITE.management));

    authentication.wait_until_ready(SITE.management.kubectl());
    let deployment = deployment.moved_with(&cluster);
    let back = deployment.wait_until_running(2);
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let owned = |names: Vec<&str>| names.into_iter().map(ToOwned::to_owned).collect();
    assert_eq!(sorted(owned(names(&back))), sorted(owned(names(&both))));
    assert_eq!(
        record(&SITE, &cluster, &name)["spec"],
        record_before["spec"]
    );
    assert_eq!(client_requests(&cluster, &Attestor::INSECURE).len(), 2);
}
