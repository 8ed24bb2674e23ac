//! Pods, and kubectl operations on them through the API server and their kubelet.

use std::time::Duration;

use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::process::poll;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(240);

/// Runs a pod on this node. The pod prints the node's name, computes for a moment, and then continues to run.
#[track_caller]
pub fn run(kubectl: &Kubectl, name: &str, node_name: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "nodeName": node_name,
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "main", "image": "every-image-is-there",
                // metrics-server omits containers that have not used any processor time.
                "command": ["sh", "-c", "echo it runs on $(uname -n); i=0; \
                    while [ $i -lt 100000 ]; do i=$((i + 1)); done; exec sleep 3600"],
            }],
        },
    });
    // Kubernetes creates a pod's ServiceAccount some time after it creates the namespace.
    let created = poll(PATIENCE, || kubectl.try_create(&pod).ok());
    assert!(created.is_some(), "{:?}", kubectl.try_create(&pod));
    let runs = |pod: &Value| pod["metadata"]["name"] == name && pod["status"]["phase"] == "Running";
    kubectl.wait_for(&["pods"], "that runs", PATIENCE, runs);
}

/// Waits until the kubelet responds. Returns the output of `kubectl logs`.
#[track_caller]
pub fn logs(kubectl: &Kubectl, name: &str) -> String {
    let logs = poll(PATIENCE, || {
        let logs = kubectl.run(["logs", name]);
        logs.status.success().then(|| text(&logs.stdout))
    });
    logs.unwrap_or_else(|| panic!("{}", text(&kubectl.run(["logs", name]).stderr)))
}

/// Sends a line to a command in the pod with `kubectl exec`, and asserts that the command returns the line and the exit
/// status.
#[track_caller]
pub fn exec(kubectl: &Kubectl, name: &str) {
    let words = ["exec", "-i", name, "--", "sh", "-c", "cat; exit 7"];
    let executed = kubectl.run_with_input(words, "from the client\n");
    let stderr = text(&executed.stderr);
    assert_eq!(text(&executed.stdout), "from the client\n", "{stderr}");
    assert_eq!(executed.status.code(), Some(7), "{stderr}");
}

/// The text that a program has printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
