//! A cluster whose nodes joined before: they renew as they did, are taken over one by one, attestation
//! is enforced, and all of it is taken back.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::allow_short_certificates;
use serde_json::{Value, json};

use crate::bed::{Machines, PATIENCE, SITE, Scene, joinable};
use crate::page::commands;

/// The life of certificates here, of kubeadm's and of ours: a renewal can be waited for.
const SECONDS: u32 = 120;

const BUILT_IN: &str = "kubernetes.io/kube-apiserver-client-kubelet";

const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

/// The number of a node's renewals with Kubernetes' own signer.
fn built_in_renewals(scene: &Scene, node: &str) -> usize {
    let is_one = |csr: &Value| {
        csr["spec"]["signerName"] == BUILT_IN
            && csr["spec"]["username"] == format!("system:node:{node}")
            && csr["status"]["certificate"].is_string()
    };
    let requests = scene.plane().csrs();
    requests.iter().filter(|csr| is_one(csr)).count()
}

#[track_caller]
fn wait_for_built_in_renewals(scene: &Scene, nodes: &[String]) {
    for node in nodes {
        let before = built_in_renewals(scene, node);
        let renewed = poll(PATIENCE, || {
            (built_in_renewals(scene, node) > before).then_some(())
        });
        let journal = || scene.provider.on(node, |machine| machine.journal());
        assert!(renewed.is_some(), "{node} does not renew: {}", journal());
        scene.plane().wait_for_node_ready(node);
    }
}

#[test]
fn nodes_of_kubeadm_renew_as_before_are_taken_over_one_by_one_and_given_back() {
    allow_short_certificates(&SITE.management);
    let lifetime = format!("--cluster-signing-duration={SECONDS}s");
    let cluster = joinable("before-us").controller_manager_arg(lifetime);
    let scene = Scene::unattended(cluster, Machines::Tpm(3));
    let config = scene.stock_config();
    let deployment = scene.cluster.machine_deployment_of("pool-a", 3, config);
    let machines = deployment.wait_until_running(3);
    let nodes: Vec<String> = machines
        .iter()
        .map(|machine| {
            machine["status"]["nodeRef"]["name"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();

    // Nothing is enforced at first.
    let lifetimes = json!({ "expirationSeconds": SECONDS });
    scene.attend(&json!({ "certificate": lifetimes }));
    wait_for_built_in_renewals(&scene, &nodes);
    let ways = scene.wait_for_paths("False", "AutoApproveBindingFound");
    assert!(ways.contains("3 Nodes have no record"), "{ways}");

    // What docs/cluster-api.md has, on each node.
    let take_over = commands('#').join("\n");
    let take_over = take_over.replace("kubelet-authenticator-aws", "kubelet-authenticator-tpm");
    scene.change(&json!({ "adoption": "Allow" }));
    for node in &nodes {
        scene.write_settings(node);
        scene.provider.on(node, |machine| {
            machine.ok(&["sh", "-euc", &take_over]);
        });
        let record = scene.record(node);
        assert_eq!(record["spec"]["generation"], 1, "{record:#}");
    }
    let gone = machines
        .iter()
        .map(|machine| scene.wait_for_node_of(machine));
    assert!(gone.eq(nodes.iter().cloned()));

    scene.change(&json!({ "autoApproveBindings": "Remove" }));
    scene.wait_for_paths("True", "Closed");
    let renewals: Vec<_> = nodes
        .iter()
        .map(|node| built_in_renewals(&scene, node))
        .collect();
    for node in &nodes {
        scene.wait_for_renewal(node);
    }

    assert_eq!(
        renewals,
        nodes
            .iter()
            .map(|node| built_in_renewals(&scene, node))
            .collect::<Vec<_>>()
    );

    // And back: kubeadm's own bindings again, and nobody who looks after the cluster.
    scene.change(&json!({ "autoApproveBindings": "Report" }));
    scene.plane().kubeadm_bootstrap_token_phase();
    scene.wait_for_paths("False", "AutoApproveBindingFound");
    for node in &nodes {
        scene.provider.on(node, |machine| {
            machine.ok(&[
                "sh",
                "-euc",
                &format!(
                    "kubelet-authenticator-tpm setup --undo
                    rm {DROP_IN}
                    systemctl daemon-reload
                    systemctl restart kubelet
                    rm -r /etc/kubernetes/kubelet-authenticator /var/lib/kubelet-authenticator"
                ),
            ]);
        });
    }
    let words = [
        "delete",
        "kubeletauthentication",
        "prod-1",
        "-n",
        "before-us",
    ];
    SITE.management.kubectl().ok(words);
    wait_for_built_in_renewals(&scene, &nodes);
    for node in &nodes {
        let left = scene.provider.on(node, |machine| {
            machine.read("/etc/kubernetes/kubelet.conf").unwrap()
        });
        let left = String::from_utf8(left).unwrap();
        assert!(!left.contains("exec:"), "{left}");
    }
}
