//! Cluster API's own KubeadmControlPlane creates control planes on machines, scales them and replaces their machines,
//! and their nodes join with the plugin.

use std::process::Command;
use std::time::Duration;

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::machine::{
    Endpoint, IGNORED_PREFLIGHT_ERRORS, KUBELET_PATCHES, Machine,
};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::{Manager, authorize, grant};
use kubelet_authenticator_tests::management::{Boot, Management, Order, Provider, WorkloadCluster};
use kubelet_authenticator_tests::{page, program};
use serde_json::{Value, json};

/// The path of the plugin in the machines' image.
const PLUGIN: &str = "/usr/bin/kubelet-authenticator-insecure";
const SETTINGS: &str = "/etc/kubernetes/kubelet-authenticator/config.yaml";

/// A lifetime longer than a test.
const TOKEN_TTL: Duration = Duration::from_secs(900);

/// The deadline for operations that take Cluster API a minute. The deadline is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// The KubeadmConfigSpec of machines whose image contains the plugin, as printed by `render`, with the fields that all
/// machines of the tests need.
#[track_caller]
fn config(options: &[&str]) -> Value {
    let output = Command::new(program("kubelet-authenticator-insecure"))
        .args(["render", "--command", PLUGIN, "kubeadm-config"])
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let rendered = String::from_utf8(output.stdout).unwrap();
    let template: Value = serde_saphyr::from_str(&rendered).unwrap();
    let spec = &template["spec"]["template"]["spec"];
    let of_control_plane = spec.get("kubeadmConfigSpec");
    let mut config = of_control_plane.unwrap_or(spec).clone();
    let join = &mut config["joinConfiguration"];
    join["nodeRegistration"]["criSocket"] = json!("unix:///run/fakecri.sock");
    join["nodeRegistration"]["ignorePreflightErrors"] = json!(IGNORED_PREFLIGHT_ERRORS);
    join["patches"] = json!({ "directory": KUBELET_PATCHES });
    config
}

/// The same spec for control-plane machines.
fn control_plane_config() -> Value {
    let mut config = config(&["--control-plane"]);
    let join = &mut config["joinConfiguration"];
    let mut init = join.clone();
    // Skip these add-ons, because their images do not name a program of the machines.
    init["skipPhases"] = json!(["addon/coredns", "addon/kube-proxy"]);
    config["initConfiguration"] = init;
    config
}

fn names(machines: &[Value]) -> Vec<String> {
    let names = machines.iter();
    names
        .map(|machine| machine["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits until exactly these nodes have live records.
#[track_caller]
fn wait_for_records(management: &Management, cluster: &WorkloadCluster, expected: &[String]) {
    let live = || {
        let words = ["get", "nodeidentities", "-n", cluster.namespace()];
        let list = management.kubectl().json(words);
        let mut names: Vec<_> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|record| record["spec"]["tombstone"].is_null())
            .map(|record| record["spec"]["nodeName"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let mut expected = expected.to_vec();
    expected.sort();
    let found = poll(PATIENCE, || (live() == expected).then_some(()));
    assert!(found.is_some(), "{:?} and not {expected:?}", live());
}

/// The nodes' approved requests for the built-in signer. Only the first control-plane node can have such requests.
fn built_in(kubectl: &Kubectl) -> Vec<String> {
    let requests = kubectl.json(["get", "certificatesigningrequests"]);
    let requests = requests["items"].as_array().unwrap().iter();
    requests
        .filter(|csr| csr["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet")
        .map(|csr| csr["spec"]["username"].as_str().unwrap().to_owned())
        .collect()
}

/// Creates a MachineHealthCheck for the control plane. A Machine is unhealthy when its Node stops reporting.
fn check_health(management: &Management, cluster: &WorkloadCluster) {
    management.kubectl().create_object(&json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachineHealthCheck",
        "metadata": { "name": "control-plane", "namespace": cluster.namespace() },
        "spec": {
            "clusterName": cluster.name(),
            "selector": { "matchLabels": { "cluster.x-k8s.io/control-plane": "" } },
            "checks": {
                "nodeStartupTimeoutSeconds": 600,
                "unhealthyNodeConditions": [
                    { "type": "Ready", "status": "Unknown", "timeoutSeconds": 1 },
                ],
            },
        },
    }));
}

#[test]
fn control_plane_machines_join_when_scaled_replaced_and_remediated() {
    let management = Management::managed_with_control_planes(TOKEN_TTL);
    grant(&management);
    let _manager = Manager::insecure(&management, &[]);
    let endpoint = Endpoint::start();
    let cluster = management.cluster("prod-1").namespace("control-planes");
    let (cluster, control_plane) =
        cluster.create_with_kubeadm(endpoint.address(), control_plane_config());
    let boot = move |boot: &Boot| {
        let settings = format!(
            "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\n\
             kind: KubeletAuthenticatorConfiguration\nproviderID: {}\n",
            boot.provider_id
        );
        let machine = Machine::of_no_cluster(&boot.name)
            .program(PLUGIN, &program("kubelet-authenticator-insecure"))
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
    let by_kubeadm = built_in(&kubectl);
    let workers = cluster.machine_deployment_of("pool-a", 1, config(&[]));
    let worker = names(&workers.wait_until_running(1));
    // The first node has kubeadm's certificate, and no record.
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

    // The first node has a record after its adoption.
    let name = [
        "kubeletauthentication",
        cluster.name(),
        "-n",
        cluster.namespace(),
    ];
    let adoption = json!({ "spec": { "adoption": "AllowWithoutEvidence" } });
    management.kubectl().patch(&name, &adoption);
    let insecure = Attestor::INSECURE;
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

    // The kubelet of a member stops, and KubeadmControlPlane deletes its Machine before it creates the next one.
    check_health(&management, &cluster);
    let broken = &replaced[0];
    provider.on(broken, |machine| {
        machine.ok(&["systemctl", "stop", "kubelet"])
    });
    let remediated = names(&control_plane.wait_until_replaced(3, &[broken.as_str()]));
    wait_for_records(&management, &cluster, &[remediated, worker].concat());
    assert_eq!(built_in(&kubectl), by_kubeadm);
}
