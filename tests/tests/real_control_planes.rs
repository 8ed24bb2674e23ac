//! Tests of control planes that real kubeadm creates on machines, with the plugin and the controller in these clusters.

use std::fmt::Write as _;
use std::process::{Command, Output};
use std::time::Duration;

use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, Provider};
use kubelet_authenticator_test_support::control_plane::{KubeadmBinding, has_condition};
use kubelet_authenticator_test_support::machine::{KubeadmCluster, Machine, Role};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{
    Controller, Machine as Member, Setup, define_identities, reason_of,
};
use kubelet_authenticator_tests::node::NULL;
use kubelet_authenticator_tests::program;
use rustix::process::Signal;
use serde_json::{Value, json};

/// The path of the plugin on the machines.
const PLUGIN: &str = "/usr/local/bin/kubelet-authenticator-null";

const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";

const PATIENCE: Duration = Duration::from_secs(240);

const FIRST: Member = Member::new("first", "first1");
const SECOND: Member = Member::new("second", "second");
const WORKER: Member = Member::new("worker", "worker");

/// Boots a machine that does not belong to a cluster, and whose image contains the plugin and its drop-in.
fn boot(member: Member) -> Machine {
    let rendered = Command::new(program(NULL))
        .args(["render", "--command", PLUGIN, "kubelet-drop-in"])
        .output()
        .unwrap();
    assert!(rendered.status.success(), "{rendered:?}");
    Machine::of_no_cluster(member.name)
        .program(PLUGIN, &program(NULL))
        .file(DROP_IN, 0o644, rendered.stdout)
        .boot()
}

/// The inventory that contains all machines.
fn inventory() -> String {
    let machine = |member: Member, control_plane: bool| {
        json!({
            "name": member.name,
            "providerID": member.provider_id(),
            "tokenID": member.token,
            "controlPlane": control_plane,
        })
    };
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineInventory",
        "machines": [machine(FIRST, true), machine(SECOND, true), machine(WORKER, false)],
    })
    .to_string()
}

fn said(machine: &Machine, output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    write!(text, "{stderr}\n{}", machine.journal()).unwrap();
    text
}

/// Joins with kubeadm, and waits until the Node is ready. Asserts that only the project's signer issued a certificate
/// for the node.
#[track_caller]
fn join(cluster: &KubeadmCluster, first: &Machine, member: Member, role: Role) -> Machine {
    let kubectl = cluster.kubectl();
    let token = format!("{}.0123456789abcdef", member.token);
    first.ok(&["kubeadm", "token", "create", &token]);
    let machine = boot(member);
    let provider_id = member.provider_id();
    let arguments = [("provider-id", &*provider_id)];

    let joined = machine.kubeadm_join_to(cluster, role, &token, &arguments);

    assert!(joined.status.success(), "{}", said(&machine, &joined));
    let selector = format!("metadata.name={}", member.name);
    let nodes = ["nodes", "--field-selector", &selector];
    let ready = |node: &Value| has_condition(node, "Ready");
    kubectl.wait_for(&nodes, "that is ready", PATIENCE, ready);
    let users = [
        format!("system:bootstrap:{}", member.token),
        format!("system:node:{}", member.name),
    ];
    let requests = kubectl.json(["get", "certificatesigningrequests"]);
    let requests = requests["items"].as_array().unwrap().iter();
    let signers: Vec<_> = requests
        .filter(|csr| users.iter().any(|user| csr["spec"]["username"] == **user))
        .map(|csr| csr["spec"]["signerName"].as_str().unwrap())
        .collect();
    assert_eq!(signers, [Provider::NULL.client_signer()]);
    machine
}

fn bindings(cluster: &KubeadmCluster) -> Vec<String> {
    let bindings = cluster.kubectl().json(["get", "clusterrolebindings"]);
    let names = bindings["items"].as_array().unwrap().iter();
    names
        .map(|binding| binding["metadata"]["name"].as_str().unwrap().to_owned())
        .filter(|name| name.starts_with("kubeadm:node-autoapprove-"))
        .collect()
}

/// Removes kubeadm's auto-approval.
#[track_caller]
fn close(cluster: &KubeadmCluster) {
    for binding in [
        KubeadmBinding::NodeAutoapproveBootstrap,
        KubeadmBinding::NodeAutoapproveCertificateRotation,
    ] {
        let words = ["delete", "clusterrolebinding", binding.name()];
        cluster.kubectl().ok(words);
    }
}

/// The time for which a control plane waits for its certificate. By default, kubeadm would stop after one minute,
/// without setting the label and the taint.
const LATE: Duration = Duration::from_secs(120);

/// Resumes the stopped controller long after the machine has sent a request with its token.
#[track_caller]
fn answer_late(cluster: &KubeadmCluster, controller: &Controller, member: Member) {
    let user = format!("system:bootstrap:{}", member.token);
    let requests = ["certificatesigningrequests"];
    let is_of = |csr: &Value| csr["spec"]["username"] == *user;
    cluster
        .kubectl()
        .wait_for(&requests, "of the machine", PATIENCE, is_of);
    poll(LATE, || None::<()>);
    controller.process.signal(Signal::CONT);
}

#[test]
fn workers_and_late_control_planes_join_a_kubeadm_cluster() {
    let first = boot(FIRST);
    let cluster = first.kubeadm_init();
    let kubectl = cluster.kubectl();
    // `setup` has no kubeconfig to copy, because kubeadm created the kubelet's certificate.
    let conf = first.read(KUBELET_CONF).unwrap();
    let conf = String::from_utf8(conf).unwrap();
    assert!(conf.contains("kubelet-client-current.pem"), "{conf}");
    close(&cluster);
    assert_eq!(bindings(&cluster), [""; 0]);

    let version = first.ok(&["kubeadm", "version", "-o", "short"]);
    first.kubeadm_upgrade(&["apply", version.trim(), "--yes", "--force"]);

    let back = bindings(&cluster);
    assert_eq!(back.len(), 2, "{back:?}");
    close(&cluster);

    let ca = (&*cluster.ca_cert_path(), &*cluster.ca_key_path());
    define_identities(kubectl);
    let controller = program("null-attestation-controller");
    let duties = json!({"autoApproveBindings": "Remove", "exemptNodes": ["ControlPlane"]});
    let setup = Setup::new(&controller, cluster.admin_kubeconfig(), ca, &[]).spec(&duties);
    setup.write_inventory(&inventory());
    let mut controller = setup.start();
    controller.wait_until_it_watches();

    let worker = join(&cluster, &first, WORKER, Role::Worker);
    controller.process.signal(Signal::STOP);
    let second = std::thread::scope(|scope| {
        scope.spawn(|| answer_late(&cluster, &controller, SECOND));
        join(&cluster, &first, SECOND, Role::ControlPlane)
    });

    let node = kubectl.json(["get", "node", SECOND.name]);
    let label = "node-role.kubernetes.io/control-plane";
    assert!(node["metadata"]["labels"][label].is_string(), "{node:#}");
    let taints = node["spec"]["taints"].as_array().unwrap();
    let keeps_pods_away = |taint: &Value| taint["key"] == label && taint["effect"] == "NoSchedule";
    assert!(taints.iter().any(keeps_pods_away), "{node:#}");
    // The kubelet uses the API server on its own node. This API server was not running when `setup` ran.
    let conf = second.read(KUBELET_CONF).unwrap();
    let conf = String::from_utf8(conf).unwrap();
    let own = format!("https://{}:6443", second.address());
    assert!(conf.contains(&own) && conf.contains(PLUGIN), "{conf}");
    let journal = second.journal();
    assert!(journal.contains("kubelet set up: "), "{journal}");
    // The node runs the static pods of a control plane. The API server lists these Pods after the kubelet reports them.
    let pods = ["pods", "-n", "kube-system", "-l", "component=etcd"];
    let etcd = format!("etcd-{}", SECOND.name);
    kubectl.wait_for(&pods, &etcd, PATIENCE, |pod| {
        pod["metadata"]["name"] == *etcd
    });

    // The certificate that kubeadm created for the first node is renewed in the same way as the certificate of a stock
    // kubelet.
    first.ok(&["systemctl", "stop", "kubelet"]);
    first.remove(KUBELET_CONF);
    first.ok(&["sh", "-c", "rm /var/lib/kubelet/pki/kubelet-client-*"]);
    let config = "/etc/kubernetes/kubeadm-init.yaml";
    first.ok(&[
        "kubeadm",
        "init",
        "phase",
        "kubeconfig",
        "kubelet",
        "--config",
        config,
    ]);
    first.ok(&["systemctl", "start", "kubelet"]);
    let requests = ["certificatesigningrequests"];
    kubectl.wait_for(&requests, "of the first one, renewed", PATIENCE, |csr| {
        csr["spec"]["signerName"] == BUILT_IN_CLIENT_SIGNER
            && reason_of(csr, "Approved") == Some("ControlPlaneRenewal")
            && csr["status"]["certificate"].is_string()
    });
    drop((worker, second));
}
