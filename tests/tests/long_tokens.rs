//! Tests of a Machine whose bootstrap token was deleted: from the condition that reports the deletion, until the
//! Machine has a Node.

use std::process::Command;
use std::time::Duration;

use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding,
};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::{Manager, authorize, condition_of, kubelet, management};
use kubelet_authenticator_tests::{page, program};
use serde_json::{Value, json};

/// The deadline for a condition about a deleted token: the controller reports this if the token was missing four times
/// within 7 minutes.
const PATIENCE: Duration = Duration::from_secs(12 * 60);

#[test]
fn a_machine_without_a_token_is_reported_until_the_token_is_recreated() {
    let management = management();
    let workload = ControlPlane::builder()
        .controllers(Controllers::Default)
        .start();
    workload.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
    let cluster = management.cluster("prod-1").workload(workload.into());
    let cluster = cluster.create();
    let lost = cluster.machine("lost").create();
    let kept = cluster.machine("kept").create();
    let secret = format!("bootstrap-token-{}", lost.token().id());
    let words = ["delete", "secret", "-n=kube-system", &secret];
    cluster.control_plane().kubectl().ok(words);

    let _manager = Manager::null(&management, &[]);
    let spec = json!({"autoApproveBindings": "Remove"});
    let authentication = authorize(&management, &cluster, &["aws"], spec);
    authentication.wait_until_ready(management.kubectl());

    let condition = || -> Value {
        let words = ["get", "kubeletauthentication", "prod-1"];
        condition_of(&management.kubectl().json(words), "NodesCanReturn")
    };
    let becomes = |status: &str, reason: &str| {
        let seen = poll(PATIENCE, || {
            let now = condition();
            (now["status"] == status && now["reason"] == reason).then_some(now)
        });
        seen.unwrap_or_else(|| panic!("not {status} {reason}: {:#}", condition()))
    };
    let reported = becomes("False", "TokensExpired");
    let message = reported["message"].as_str().unwrap();
    assert!(message.contains(": lost. "), "{message}");
    assert!(
        message.contains("tokens recreate prod-1 -n default"),
        "{message}"
    );
    assert!(!message.contains(kept.name()), "{message}");

    // Attestation is enforced, so the command does not need any other option.
    let start = "node-attestation-controller tokens recreate ";
    let command = page::command("operate.md", start);
    let command = command.replace("worker-7", "lost");
    let command = command.replace("tenant-a", "default");
    let recreated = Command::new(program("node-attestation-controller"))
        .args(command.split(' ').skip(1))
        .args(["--insecure-allow-loopback", "--kubeconfig"])
        .arg(management.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(recreated.status.success(), "{recreated:?}");
    let kubelet = kubelet(&cluster, &lost, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();
    becomes("True", "TokensLive");
}
