//! Tests of `kubeadm upgrade` from the previous minor version to the current version, in a cluster whose nodes join
//! with the plugin.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::binaries::{control_plane_binary, older_kubernetes};
use kubelet_authenticator_test_support::control_plane::{KubeadmBinding, Kubectl, has_condition};
use kubelet_authenticator_test_support::machine::{Machine, Role};
use kubelet_authenticator_tests::controller::{Machine as Member, Setup, define_identities};
use kubelet_authenticator_tests::node::NULL;
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

/// The previous minor version.
const FORMER: &str = "1.35";

/// The path of the plugin on the machines.
const PLUGIN: &str = "/usr/local/bin/kubelet-authenticator-null";

const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

const PATIENCE: Duration = Duration::from_secs(240);

/// The programs that an upgrade replaces.
const UPGRADED: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubeadm",
    "kubelet",
];

const FIRST: Member = Member::new("upgraded-first", "first1");
const WORKER: Member = Member::new("upgraded-worker", "worker");

/// The directory that contains this version's programs on the machines.
fn directory(version: &str) -> String {
    format!("/opt/kubernetes/{version}")
}

/// Boots a machine that does not belong to a cluster. The machine contains the programs of both versions, the plugin
/// and its drop-in, and runs the previous version.
fn boot(member: Member, former: &Path) -> Machine {
    let rendered = Command::new(program(NULL))
        .args(["render", "--command", PLUGIN, "kubelet-drop-in"])
        .output()
        .unwrap();
    assert!(rendered.status.success(), "{rendered:?}");
    let mut builder = Machine::of_no_cluster(member.name)
        .program(PLUGIN, &program(NULL))
        .file(DROP_IN, 0o644, rendered.stdout);
    for name in UPGRADED {
        let (old, new) = (directory("former"), directory("today"));
        builder = builder
            .program(&format!("{old}/{name}"), &former.join(name))
            .program(&format!("{new}/{name}"), &control_plane_binary(name))
            .link(&format!("/usr/bin/{name}"), &format!("{old}/{name}"));
    }
    builder.boot()
}

/// Installs the current version of these programs, as a package manager does.
fn install(machine: &Machine, programs: &[&str]) {
    for name in programs {
        let source = format!("{}/{name}", directory("today"));
        machine.ok(&["ln", "-sfn", &source, &format!("/usr/bin/{name}")]);
    }
}

/// Waits until the Node is ready with a kubelet of this version.
#[track_caller]
fn wait_for_kubelet(kubectl: &Kubectl, member: Member, version: &str) {
    let selector = format!("metadata.name={}", member.name);
    let nodes = ["nodes", "--field-selector", &selector];
    kubectl.wait_for(
        &nodes,
        &format!("with a kubelet of {version}"),
        PATIENCE,
        |node| {
            has_condition(node, "Ready") && node["status"]["nodeInfo"]["kubeletVersion"] == version
        },
    );
}

/// The signers of the worker's requests.
fn signers(kubectl: &Kubectl) -> Vec<String> {
    let requests = kubectl.json(["get", "certificatesigningrequests"]);
    let of_the_worker = |csr: &&Value| {
        let user = csr["spec"]["username"].as_str().unwrap();
        user == format!("system:bootstrap:{}", WORKER.token)
            || user == format!("system:node:{}", WORKER.name)
    };
    let requests = requests["items"].as_array().unwrap().iter();
    requests
        .filter(of_the_worker)
        .map(|csr| csr["spec"]["signerName"].as_str().unwrap().to_owned())
        .collect()
}

fn version(machine: &Machine) -> String {
    let version = machine.ok(&["kubeadm", "version", "-o", "short"]);
    version.trim().to_owned()
}

#[test]
fn a_joined_node_renews_after_an_upgrade_to_the_next_minor_version() {
    let former = older_kubernetes(FORMER);
    let first = boot(FIRST, &former);
    let cluster = first.kubeadm_init();
    let kubectl = cluster.kubectl();
    for binding in [
        KubeadmBinding::NodeAutoapproveBootstrap,
        KubeadmBinding::NodeAutoapproveCertificateRotation,
    ] {
        kubectl.ok(["delete", "clusterrolebinding", binding.name()]);
    }
    let ca = (&*cluster.ca_cert_path(), &*cluster.ca_key_path());
    define_identities(kubectl);
    let controller = program("null-attestation-controller");
    let setup = Setup::new(&controller, cluster.admin_kubeconfig(), ca, &[])
        .spec(&json!({"autoApproveBindings": "Remove"}));
    let inventory = json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineInventory",
        "machines": [{
            "name": WORKER.name, "providerID": WORKER.provider_id(), "tokenID": WORKER.token,
        }],
    });
    setup.write_inventory(&inventory.to_string());
    let mut controller = setup.start();
    controller.wait_until_it_watches();
    let token = format!("{}.0123456789abcdef", WORKER.token);
    first.ok(&["kubeadm", "token", "create", &token]);
    let worker = boot(WORKER, &former);
    let provider_id = WORKER.provider_id();
    let arguments = [("provider-id", &*provider_id)];
    let joined = worker.kubeadm_join_to(&cluster, Role::Worker, &token, &arguments);
    assert!(joined.status.success(), "{joined:?}\n{}", worker.journal());
    let before = version(&worker);
    assert!(before.starts_with(&format!("v{FORMER}.")), "{before}");
    wait_for_kubelet(kubectl, WORKER, &before);

    // The order is as in Kubernetes' documentation: first the control plane, then its kubelet, and then the worker.
    install(&first, &UPGRADED[..4]);
    let after = version(&first);
    first.kubeadm_upgrade(&["apply", &after, "--yes"]);
    install(&first, &UPGRADED[4..]);
    first.ok(&["systemctl", "restart", "kubelet"]);
    wait_for_kubelet(kubectl, FIRST, &after);
    install(&worker, &UPGRADED[..4]);
    worker.kubeadm_upgrade(&["node"]);
    install(&worker, &UPGRADED[4..]);
    worker.ok(&["systemctl", "restart", "kubelet"]);
    wait_for_kubelet(kubectl, WORKER, &after);
    // `kubeadm upgrade` has recreated kubeadm's bindings.
    for binding in [
        KubeadmBinding::NodeAutoapproveBootstrap,
        KubeadmBinding::NodeAutoapproveCertificateRotation,
    ] {
        kubectl.ok(["delete", "clusterrolebinding", binding.name()]);
    }

    worker.ok(&[PLUGIN, "renew", "--force"]);

    assert_ne!(before, after);
    let conf = worker.read("/etc/kubernetes/kubelet.conf").unwrap();
    let conf = String::from_utf8(conf).unwrap();
    assert!(conf.contains(PLUGIN), "{conf}");
    let signer = Provider::NULL.client_signer();
    assert_eq!(signers(kubectl), [&*signer, &*signer]);
}
