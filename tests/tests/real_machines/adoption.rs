//! Tests of a cluster with existing nodes. The nodes first renew as before. An operator adopts the nodes one by one,
//! enforces attestation, and finally undoes all steps.

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_tests::fleet::assert_first_generation;
use kubelet_authenticator_tests::page;
use serde_json::{Value, json};

use kubelet_authenticator_tests::machines::objects::names;
use kubelet_authenticator_tests::machines::{Machines, PATIENCE, SITE, Scene, joinable};

/// The lifetime of kubeadm's certificates in this test: short enough to wait for a renewal, and long enough for several
/// attempts on a busy machine.
const SECONDS: u32 = 150;

/// The lifetime of the project's certificates in this test. On a busy machine, a renewal can fail more than once, and
/// an adopted node has no bootstrap credential.
const OUR_SECONDS: u32 = 240;

/// Kubernetes' own signer.
const BUILT_IN: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// The audit policy that makes the API server record the users that request certificates.
const AUDITED: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, resources: [{group: certificates.k8s.io}]}]
";

/// The audit annotation on a request that an admission policy would reject.
const VIOLATION: &str = "validation.policy.admission.k8s.io/validation_failure";

const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

#[test]
fn kubeadm_nodes_are_adopted_and_returned_to_kubeadm() {
    SITE.allow_short_certificates();
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

    // At first, attestation is not enforced.
    let lifetimes = json!({ "expirationSeconds": OUR_SECONDS });
    scene.attend(&json!({ "certificate": lifetimes }));
    scene.wait_for_renewals(BUILT_IN, &nodes);
    let ways = scene.wait_for_paths("False", "AutoApproveBindingFound");
    assert!(ways.contains("3 Nodes have no node identity"), "{ways}");

    // These are the commands in docs/enable-cluster.md, on each node.
    scene.change(&json!({ "adoption": "Allow" }));
    for node in &nodes {
        scene.write_settings(node);
        scene.on(node, |machine| page::take_over(machine, &Attestor::TPM));
        let record = scene.record(node);
        assert_first_generation(&record);
    }
    let gone = machines
        .iter()
        .map(|machine| scene.wait_for_node_of(machine));
    assert!(gone.eq(nodes.iter().cloned()));

    scene.change(&json!({ "autoApproveBindings": "Remove" }));
    scene.wait_for_paths("True", "Closed");
    let built_in = || -> Vec<_> {
        let nodes = nodes.iter();
        nodes.map(|node| scene.renewals(BUILT_IN, node)).collect()
    };
    let before = built_in();
    scene.wait_for_renewals(&scene.signer(), &nodes);
    assert_eq!(before, built_in());
    scene.reads_well(&nodes);

    // All steps are undone: kubeadm's bindings are restored, and the cluster is no longer managed.
    scene.change(&json!({ "autoApproveBindings": "Report" }));
    scene.plane().kubeadm_bootstrap_token_phase();
    scene.wait_for_paths("False", "AutoApproveBindingFound");
    for node in &nodes {
        scene.on(node, |machine| {
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
    // The revocation remains effective, so a stolen certificate does not become valid again.
    let policies = "validatingadmissionpolicies,validatingadmissionpolicybindings";
    let left = || scene.plane().kubectl().ok(["get", policies, "-o", "name"]);
    let revocation = "\
validatingadmissionpolicy.admissionregistration.k8s.io/node-attestation-revocation
validatingadmissionpolicybinding.admissionregistration.k8s.io/node-attestation-revocation
";
    let gone = poll(PATIENCE, || (left() == revocation).then_some(()));
    assert!(gone.is_some(), "{}", left());
    scene.wait_for_renewals(BUILT_IN, &nodes);
    for node in &nodes {
        let left = scene.on(node, |machine| {
            machine.read("/etc/kubernetes/kubelet.conf").unwrap()
        });
        let left = String::from_utf8(left).unwrap();
        assert!(!left.contains("exec:"), "{left}");
    }
}

#[test]
fn unset_settings_enforce_by_themselves_and_no_node_fails() {
    let scene = Scene::unattended(joinable("by-itself"), Machines::Tpm(2));
    let stock = scene.stock_config();
    let deployment = scene.cluster.machine_deployment_of("pool-a", 2, stock);
    let machines = deployment.wait_until_running(2);
    let node = |machine: &Value| {
        machine["status"]["nodeRef"]["name"]
            .as_str()
            .map(str::to_owned)
    };
    let nodes: Vec<String> = machines.iter().map(|one| node(one).unwrap()).collect();
    let uids = || -> Vec<Value> {
        let uid = |name: &String| {
            let node = scene.plane().kubectl().json(["get", "node", name]);
            node["metadata"]["uid"].clone()
        };
        nodes.iter().map(uid).collect()
    };
    let before = uids();

    scene.attend_with_defaults();

    let told = scene.wait_for_paths("False", "WaitingForRecords");
    assert!(told.contains("2 Nodes have no node identity"), "{told}");
    for node in &nodes {
        scene.write_settings(node);
        // Attestation is not enforced until the last node has a node identity.
        scene.wait_for_paths("False", "WaitingForRecords");
        scene.on(node, |machine| page::take_over(machine, &Attestor::TPM));
        assert_first_generation(&scene.record(node));
    }
    // The template does not contain the plugin, but its machines have node identities.
    scene.wait_for_paths("True", "Closed");
    for node in &nodes {
        scene.plane().wait_for_node_ready(node);
    }
    assert_eq!(uids(), before, "no Node was created again");
    scene.reads_well(&nodes);
}

#[test]
fn machine_deployments_migrate_one_by_one_while_others_join() {
    let audit = Scratch::new("audit");
    let policy = audit.write("policy.yaml", AUDITED);
    let log = audit.join("log");
    let cluster = joinable("beside")
        .apiserver_arg(format!("--audit-policy-file={}", policy.display()))
        .apiserver_arg(format!("--audit-log-path={}", log.display()));
    let scene = Scene::unattended(cluster, Machines::Tpm(3));
    scene.attend(&json!({}));
    let deployment = |name, config| scene.cluster.machine_deployment_of(name, 1, config);
    let ours = deployment("ours", scene.config());
    scene.wait_for_node_of(&ours.wait_until_running(1)[0]);

    // An operator adds one Machine to the MachineDeployment, and does not change anything else.
    let stock = deployment("stock", scene.stock_config());

    let before = stock.wait_until_running(1);
    let node = before[0]["status"]["nodeRef"]["name"].as_str().unwrap();
    scene.plane().wait_for_node_ready(node);
    let ways = poll(PATIENCE, || {
        let ways = scene.wait_for_paths("False", "AutoApproveBindingFound");
        ways.contains("1 Nodes have no node identity")
            .then_some(ways)
    });
    assert!(
        ways.as_ref().is_some_and(|ways| ways.contains(node)),
        "{ways:?}"
    );

    let log = std::fs::read_to_string(log).unwrap();
    let mut written = log.lines().filter(|line| line.contains(VIOLATION));
    assert!(
        written.any(|line| line.contains("system:bootstrap:")),
        "{log}"
    );

    stock.bootstrap_as(&ours);

    let after = stock.wait_until_replaced(1, &names(&before));
    scene.wait_for_node_of(&after[0]);
    scene.change(&json!({ "autoApproveBindings": "Remove" }));
    scene.wait_for_paths("True", "Closed");
}
