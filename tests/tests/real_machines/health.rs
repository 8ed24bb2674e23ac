//! A MachineHealthCheck replaces machines whose nodes do not report.

use kubelet_authenticator_test_support::control_plane::Controllers;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::{MachineDeployment, Order};
use serde_json::json;

use kubelet_authenticator_tests::machines::objects::names;
use kubelet_authenticator_tests::machines::{Machines, PATIENCE, SITE, Scene, joinable};

/// Creates a MachineHealthCheck that replaces a Machine as soon as its Node does not report.
fn check_health(scene: &Scene) {
    SITE.management.kubectl().create_object(&json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachineHealthCheck",
        "metadata": { "name": "pool-a", "namespace": scene.cluster.namespace() },
        "spec": {
            "clusterName": scene.cluster.name(),
            "selector": { "matchLabels": { "cluster.x-k8s.io/deployment-name": "pool-a" } },
            "checks": {
                "nodeStartupTimeoutSeconds": 600,
                "unhealthyNodeConditions": [
                    { "type": "Ready", "status": "Unknown", "timeoutSeconds": 1 },
                ],
            },
        },
    }));
}

/// Stops the kubelet of this node, and waits for another Machine in place of its own.
#[track_caller]
fn is_replaced(scene: &Scene, deployment: &MachineDeployment, node: &str) -> String {
    let former = deployment.machines();
    scene.on(node, |machine| {
        machine.ok(&["systemctl", "stop", "kubelet"])
    });
    let gone = poll(PATIENCE, || {
        let machines = deployment.machines();
        let now = names(&machines);
        let all_new = names(&former).iter().all(|name| !now.contains(name));
        (all_new && !now.is_empty()).then_some(())
    });
    assert!(
        gone.is_some(),
        "not replaced: {:#}",
        json!(deployment.machines())
    );
    let after = deployment.wait_until_replaced(1, &names(&former));
    scene.wait_for_node_of(&after[0])
}

/// A Cluster that detects a silent node within seconds.
fn watchful(namespace: &str, machines: Machines) -> Scene {
    let cluster = joinable(namespace)
        .controllers(Controllers::Default)
        .controller_manager_arg("--node-monitor-period=1s")
        .controller_manager_arg("--node-monitor-grace-period=20s");
    let scene = Scene::unattended(cluster, machines);
    scene.attend(&json!({}));
    scene
}

#[test]
fn a_machine_whose_kubelet_is_stopped_is_replaced_under_another_name() {
    let scene = watchful("unhealthy", Machines::Insecure(Order::ProviderIdFirst));
    let deployment = scene
        .cluster
        .machine_deployment_of("pool-a", 1, scene.config());
    let before = deployment.wait_until_running(1);
    let node = scene.wait_for_node_of(&before[0]);
    check_health(&scene);

    let other = is_replaced(&scene, &deployment, &node);

    assert_ne!(other, node);
    scene.wait_for_tombstone(&node);
    scene.reads_well(&[other]);
    assert_eq!(scene.client_requests().len(), 2);
}

#[test]
fn a_machine_whose_kubelet_is_stopped_is_replaced_on_its_host_under_its_name() {
    let scene = watchful("kept-name", Machines::Tpm(1));
    let deployment = scene
        .cluster
        .machine_deployment_of("pool-a", 1, scene.config());
    let before = deployment.wait_until_running(1);
    let node = scene.wait_for_node_of(&before[0]);
    assert_eq!(node, "kept-name-0");
    check_health(&scene);

    let again = is_replaced(&scene, &deployment, &node);

    assert_eq!(again, node);
    assert!(scene.record(&node)["spec"]["generation"].as_u64() > Some(1));
    scene.reads_well(&[node]);
}
