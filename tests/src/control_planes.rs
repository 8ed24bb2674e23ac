//! Clusters whose control plane is a KubeadmControlPlane on machines: the configuration of the machines, and the state
//! of the nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, Provider as Attestor};
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::machine::KUBELET_PATCHES;
use kubelet_authenticator_test_support::process::poll;
use serde_json::{Value, json};

use crate::image;
use crate::management::{Management, WorkloadCluster};

/// A lifetime of bootstrap tokens that is longer than a test.
pub const TOKEN_TTL: Duration = Duration::from_secs(900);

/// The deadline for operations that take Cluster API a minute. The deadline is long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The KubeadmConfigSpec for workers whose image contains the plugin, as printed by `render` with these options, with
/// the fields that all test machines need.
#[track_caller]
pub fn worker_config(attestor: &Attestor, options: &[&str]) -> Value {
    let rendered = image::render(attestor, &[&["kubeadm-config"], options].concat());
    let template: Value = serde_saphyr::from_str(&rendered).unwrap();
    let spec = &template["spec"]["template"]["spec"];
    let of_control_plane = spec.get("kubeadmConfigSpec");
    let mut config = of_control_plane.unwrap_or(spec).clone();
    let join = &mut config["joinConfiguration"];
    for (field, value) in image::needed() {
        join["nodeRegistration"][field] = value;
    }
    join["patches"] = json!({ "directory": KUBELET_PATCHES });
    config
}

/// The KubeadmConfigSpec for control-plane machines.
#[track_caller]
pub fn control_plane_config(attestor: &Attestor, options: &[&str]) -> Value {
    let mut config = worker_config(attestor, &[&["--control-plane"], options].concat());
    let mut init = config["joinConfiguration"].clone();
    // Skip these add-ons, because their images do not refer to a program on the machines.
    init["skipPhases"] = json!(["addon/coredns", "addon/kube-proxy"]);
    config["initConfiguration"] = init;
    config
}

/// The NodeIdentities of a Cluster, keyed by node name.
#[track_caller]
pub fn records(management: &Management, cluster: &WorkloadCluster) -> BTreeMap<String, Value> {
    let words = ["get", "nodeidentities", "-n", cluster.namespace()];
    let list = management.kubectl().json(words);
    let records = list["items"].as_array().unwrap().iter();
    let records = records.map(|record| {
        let name = record["spec"]["nodeName"].as_str().unwrap();
        (name.to_owned(), record.clone())
    });
    records.collect()
}

/// Waits until exactly these nodes have live records.
#[track_caller]
pub fn wait_for_records(management: &Management, cluster: &WorkloadCluster, expected: &[String]) {
    let live = || -> Vec<String> {
        let records = records(management, cluster).into_iter();
        let live = records.filter(|(_, record)| record["spec"]["tombstone"].is_null());
        live.map(|(name, _)| name).collect()
    };
    let mut expected = expected.to_vec();
    expected.sort();
    let found = poll(PATIENCE, || (live() == expected).then_some(()));
    assert!(found.is_some(), "{:?} and not {expected:?}", live());
}

/// The users that created requests for the built-in signer. Only nodes without a record can have such requests.
#[track_caller]
pub fn users_of_built_in_signer(kubectl: &Kubectl) -> Vec<String> {
    let requests = kubectl.json(["get", "certificatesigningrequests"]);
    let requests = requests["items"].as_array().unwrap().iter();
    requests
        .filter(|csr| csr["spec"]["signerName"] == BUILT_IN_CLIENT_SIGNER)
        .map(|csr| csr["spec"]["username"].as_str().unwrap().to_owned())
        .collect()
}

/// Creates a MachineHealthCheck for the control plane. A Machine is unhealthy when its Node stops reporting.
#[track_caller]
pub fn check_health(management: &Management, cluster: &WorkloadCluster) {
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
