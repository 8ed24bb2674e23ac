//! A Cluster is moved to another management cluster, and back.

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_tests::management::Order;
use serde_json::json;

use crate::bed::{Machines, PATIENCE, SITE, Scene, Site, client_requests, joinable, names, record};

#[test]
fn after_clusterctl_move_and_back_no_node_joins_again_and_others_join() {
    let there = Site::start();
    let machines = Machines::Insecure(Order::ProviderIdFirst);
    let scene = Scene::unattended(joinable("moved"), machines);
    annotate(&SITE, "insecure");
    scene
        .authentication
        .wait_until_ready(SITE.management.kubectl());
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

    let moved = authentication.wait_until_ready(there.management.kubectl());
    let owner = &moved["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], cluster.get()["metadata"]["uid"], "{moved:#}");
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
    // Another manager owns what was moved, and the Cluster's word counts all the same.
    annotate(&SITE, "tpm");
    let kubectl = SITE.management.kubectl();
    let authentications = ["kubeletauthentications", "-n", "moved"];
    kubectl.wait_for(&authentications, "tpm alone", PATIENCE, |one| {
        one["spec"]["authorizedAttestors"] == json!(["tpm"])
    });
}

/// Annotates the Cluster `prod-1` in the namespace `moved` with these attestors.
fn annotate(site: &Site, attestors: &str) {
    let annotation = "attestation.cluster.x-k8s.io/authorized-attestors";
    let patch = json!({ "metadata": { "annotations": { annotation: attestors } } });
    let target = ["clusters.cluster.x-k8s.io", "prod-1", "-n", "moved"];
    site.management.kubectl().patch(&target, &patch);
}
