//! Tests in which Cluster API's own KubeadmControlPlane creates control planes on machines, scales the control planes,
//! and replaces their machines. The nodes join with the plugin.

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::machine::{Endpoint, Machine};
use kubelet_authenticator_tests::control_planes::{
    TOKEN_TTL, check_health, control_plane_config, users_of_built_in_signer, wait_for_records,
    worker_config,
};
use kubelet_authenticator_tests::fleet::{Manager, authorize, grant};
use kubelet_authenticator_tests::image::plugin;
use kubelet_authenticator_tests::management::{Boot, Management, Order, Provider};
use kubelet_authenticator_tests::{page, program};
use serde_json::{Value, json};

const SETTINGS: &str = "/etc/kubernetes/kubelet-authenticator/config.yaml";

fn names(machines: &[Value]) -> Vec<String> {
    let names = machines.iter();
    names
        .map(|machine| machine["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn control_plane_machines_join_when_scaled_replaced_and_remediated() {
    let management = Management::managed_with_control_planes(TOKEN_TTL);
    grant(&management);
    let _manager = Manager::insecure(&management, &[]);
    let endpoint = Endpoint::start();
    let insecure = Attestor::INSECURE;
    let cluster = management.cluster("prod-1").namespace("control-planes");
    let (cluster, control_plane) =
        cluster.create_with_kubeadm(endpoint.address(), control_plane_config(&insecure, &[]));
    let path = plugin(&insecure);
    let boot = move |boot: &Boot| {
        let settings = format!(
            "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\n\
             kind: KubeletAuthenticatorConfiguration\nproviderID: {}\n",
            boot.provider_id
        );
        let machine = Machine::of_no_cluster(&boot.name)
            .program(&path, &program("kubelet-authenticator-insecure"))
            .file(SETTINGS, 0o644, settings)
            .kubelet_arg(format!("--provider-id={}", boot.provider_id))
            .cloud_init(&boot.data, &[])
            .boot();
        if boot.data.contains("/etc/kubernetes/pki/ca.key") {
            endpoint.lead_to(&machine);
        }
        machine
    };
    let provider = Provider::start(&cluster, Order::ProviderIdFirst, boot);

    let first = names(&control_plane.wait_until_running(1));
    let kubectl = cluster.wait_for_kubectl();
    let settings = json!({ "exemptNodes": ["ControlPlane"], "autoApproveBindings": "Remove" });
    let authentication = authorize(&management, &cluster, &["insecure"], settings);
    authentication.wait_until_ready(management.kubectl());
    let by_kubeadm = users_of_built_in_signer(&kubectl);
    let workers = cluster.machine_deployment_of("pool-a", 1, worker_config(&insecure, &[]));
    let worker = names(&workers.wait_until_running(1));
    // The first node has a certificate from kubeadm, and no record.
    wait_for_records(&management, &cluster, &worker);
    let paths = "AutoApprovePathsClosed";
    authentication.wait_for(management.kubectl(), paths, "True", "Closed");

    control_plane.scale(3);

    let grown = names(&control_plane.wait_until_running(3));
    let joined: Vec<_> = grown
        .iter()
        .filter(|name| !first.contains(name))
        .cloned()
        .collect();
    assert_eq!(joined.len(), 2, "{grown:?}");
    wait_for_records(&management, &cluster, &[joined, worker.clone()].concat());

    // The first node has a record after it is adopted.
    let name = [
        "kubeletauthentication",
        cluster.name(),
        "-n",
        cluster.namespace(),
    ];
    let adoption = json!({ "spec": { "adoption": "AllowWithoutEvidence" } });
    management.kubectl().patch(&name, &adoption);
    provider.on(&first[0], |machine| page::take_over(machine, &insecure));
    wait_for_records(
        &management,
        &cluster,
        &[grown.clone(), worker.clone()].concat(),
    );

    control_plane.roll_out();

    let former: Vec<_> = grown.iter().map(String::as_str).collect();
    let replaced = names(&control_plane.wait_until_replaced(3, &former));
    let expected = [replaced.clone(), worker.clone()].concat();
    wait_for_records(&management, &cluster, &expected);

    // The kubelet of one control-plane node stops. KubeadmControlPlane deletes the Machine of this node before it
    // creates the next Machine.
    check_health(&management, &cluster);
    let broken = &replaced[0];
    provider.on(broken, |machine| {
        machine.ok(&["systemctl", "stop", "kubelet"])
    });
    let remediated = names(&control_plane.wait_until_replaced(3, &[broken.as_str()]));
    wait_for_records(&management, &cluster, &[remediated, worker].concat());
    assert_eq!(users_of_built_in_signer(&kubectl), by_kubeadm);
}
