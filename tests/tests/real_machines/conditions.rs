//! Tests in which a MachineHealthCheck replaces Machines because of a condition: their Nodes do not report, or their
//! requests are denied.

use kubelet_authenticator_test_support::control_plane::Controllers;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::{assert_later_generation, condition_of};
use kubelet_authenticator_tests::image::HOSTS;
use kubelet_authenticator_tests::management::{MachineDeployment, Order};
use kubelet_authenticator_tests::page::{Desk, commands};
use node_attestation_runtime::machine_conditions::NODE_ATTESTED;
use serde_json::{Value, json};

use kubelet_authenticator_tests::machines::health::{
    check_attestation, wait_for_machine, wait_for_others,
};
use kubelet_authenticator_tests::machines::objects::names;
use kubelet_authenticator_tests::machines::{Machines, PATIENCE, SITE, Scene, joinable};

/// Creates a MachineHealthCheck for this pool. The MachineHealthCheck replaces a Machine as soon as the Machine's Node
/// stops reporting, or if the Machine has not had a Node for this number of seconds.
fn check_health(scene: &Scene, pool: &str, without_node: u32) {
    SITE.management.kubectl().create_object(&json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachineHealthCheck",
        "metadata": { "name": pool, "namespace": scene.cluster.namespace() },
        "spec": {
            "clusterName": scene.cluster.name(),
            "selector": { "matchLabels": { "cluster.x-k8s.io/deployment-name": pool } },
            "checks": {
                "nodeStartupTimeoutSeconds": without_node,
                "unhealthyNodeConditions": [
                    { "type": "Ready", "status": "Unknown", "timeoutSeconds": 1 },
                ],
            },
        },
    }));
}

/// Waits until this pool's MachineHealthCheck counts the pool's only Machine as healthy.
#[track_caller]
fn wait_until_healthy(namespace: &str, pool: &str) {
    let words = ["get", "machinehealthchecks", pool, "-n", namespace];
    let mut last = Value::Null;
    let healthy = poll(PATIENCE, || {
        last = SITE.management.kubectl().json(words);
        (last["status"]["currentHealthy"] == 1).then_some(())
    });
    assert!(healthy.is_some(), "{last:#}");
}

/// Waits until this condition has this status on the Machines of the deployment. Returns them.
#[track_caller]
fn wait_for_attested(deployment: &MachineDeployment, status: &str) -> Vec<Value> {
    let found = poll(PATIENCE, || {
        let machines = deployment.machines();
        let has = |machine: &Value| condition_of(machine, NODE_ATTESTED)["status"] == status;
        (!machines.is_empty() && machines.iter().all(has)).then_some(machines)
    });
    found.unwrap_or_else(|| panic!("not {status}: {:#}", json!(deployment.machines())))
}

/// Stops the kubelet of this node, and waits until a new Machine replaces its Machine.
#[track_caller]
fn is_replaced(scene: &Scene, deployment: &MachineDeployment, node: &str) -> String {
    let former = deployment.machines();
    scene.on(node, |machine| {
        machine.ok(&["systemctl", "stop", "kubelet"])
    });
    wait_for_others(deployment, &former);
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
fn a_machine_with_a_stopped_kubelet_gets_a_renamed_replacement() {
    let scene = watchful("unhealthy", Machines::Insecure(Order::ProviderIdFirst));
    let deployment = scene
        .cluster
        .machine_deployment_of("pool-a", 1, scene.config());
    let before = deployment.wait_until_running(1);
    let node = scene.wait_for_node_of(&before[0]);
    check_health(&scene, "pool-a", 600);

    let other = is_replaced(&scene, &deployment, &node);

    assert_ne!(other, node);
    scene.wait_for_tombstone(&node);
    scene.reads_well(&[other]);
    assert_eq!(scene.client_requests().len(), 2);
}

#[test]
fn a_machine_with_a_stopped_kubelet_gets_a_same_name_replacement() {
    let scene = watchful("kept-name", Machines::Tpm(1));
    let deployment = scene
        .cluster
        .machine_deployment_of("pool-a", 1, scene.config());
    let before = deployment.wait_until_running(1);
    let node = scene.wait_for_node_of(&before[0]);
    assert_eq!(node, "kept-name-0");
    check_health(&scene, "pool-a", 600);

    let again = is_replaced(&scene, &deployment, &node);

    assert_eq!(again, node);
    assert_later_generation(&scene.record(&node));
    scene.reads_well(&[node]);
}

/// The shortest startup timeout that Cluster API accepts.
const STARTUP: u32 = 30;

#[test]
fn waiting_machines_are_replaced_unless_their_health_check_is_paused() {
    const PAUSED: &str = "cluster.x-k8s.io/paused";
    let scene = watchful("waiting", Machines::Insecure(Order::ProviderIdFirst));
    let kubectl = SITE.management.kubectl();
    let annotate = |object: &str, value: &str| {
        kubectl.ok(["annotate", object, "--namespace=waiting", value]);
    };
    // To the nodes, a Cluster that is not served looks like a controller outage.
    let authentication = format!("kubeletauthentication/{}", scene.cluster.name());
    annotate(&authentication, &format!("{PAUSED}="));
    scene
        .authentication
        .wait_for(kubectl, "Ready", "False", "Paused");
    let [waiting, sentinel] = ["pool-a", "pool-b"].map(|pool| {
        check_health(&scene, pool, STARTUP);
        let deployment = scene.cluster.machine_deployment_of(pool, 1, scene.config());
        wait_for_machine(&deployment);
        deployment
    });
    wait_for_others(&waiting, &waiting.machines());

    annotate("machinehealthcheck/pool-a", &format!("{PAUSED}="));
    let kept = wait_for_machine(&waiting);
    // The check is repeated, so that the second Machine did not have a Node during the whole time after the pause.
    for _ in 0..2 {
        wait_for_others(&sentinel, &wait_for_machine(&sentinel));
    }
    assert_eq!(names(&waiting.machines()), names(&kept));

    // Otherwise, the sentinel's Machines would be replaced until one of them joins within the startup timeout, which is
    // too short for a join on a busy machine.
    let check = ["machinehealthchecks", "pool-b", "-n", "waiting"];
    let longer = json!({ "spec": { "checks": { "nodeStartupTimeoutSeconds": 600 } } });
    kubectl.patch(&check, &longer);
    annotate(&authentication, &format!("{PAUSED}-"));
    let joined = waiting.wait_until_running(1);
    assert_eq!(names(&joined), names(&kept));
    annotate("machinehealthcheck/pool-a", &format!("{PAUSED}-"));
    wait_until_healthy("waiting", "pool-a");
    sentinel.wait_until_running(1);
    assert_eq!(names(&waiting.machines()), names(&kept));

    // These are the commands on the page for all health checks in a namespace.
    let desk = Desk::new(SITE.management.admin_kubeconfig());
    for (command, paused) in commands("disasters.md", '$').iter().zip([2, 0]) {
        desk.follow(&command.replace("tenant-a", "waiting"));
        let checks = kubectl.json(["get", "machinehealthchecks", "-n", "waiting"]);
        let checks = checks["items"].as_array().unwrap().iter();
        let having = checks.filter(|it| it["metadata"]["annotations"][PAUSED].is_string());
        assert_eq!(having.count(), paused, "{command}");
    }
}

#[test]
fn a_denied_machine_is_replaced_and_a_waiting_machine_is_kept() {
    let scene = Scene::unattended(joinable("judged"), Machines::Tpm(4));
    // Without this list, requests from the machines wait, as during an outage.
    scene.attend(&json!({"tpm": {"endorsementKeys": {"configMaps": ["missing"]}}}));
    let [waiting, sentinel] = [("pool-a", "False"), ("pool-b", "Unknown")].map(|(pool, status)| {
        check_attestation(&scene, pool, status);
        let deployment = scene.cluster.machine_deployment_of(pool, 1, scene.config());
        wait_for_machine(&deployment);
        deployment
    });
    let kept = wait_for_attested(&waiting, "Unknown");
    // The check is repeated, so that the second Machine waited for the whole time.
    for _ in 0..2 {
        wait_for_others(&sentinel, &wait_for_machine(&sentinel));
    }
    assert_eq!(names(&waiting.machines()), names(&kept));

    // The hosts are listed now, but no machine has this value.
    let allowed = json!([{ "0": "ab".repeat(32) }]);
    scene.change(&json!({"tpm": {
        "endorsementKeys": { "configMaps": [HOSTS] },
        "pcrPolicy": { "allowed": allowed },
    }}));
    wait_for_others(&waiting, &kept);
}
