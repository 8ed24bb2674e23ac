//! Tests of `kubectl logs`, `exec` and `top` for pods on a node that joined with the plugin: the API server and
//! metrics-server can connect to its kubelet only with the serving certificate that the controller approved.

use std::net::Ipv4Addr;
use std::process::Command;

use kubelet_attestation::names::BUILT_IN_SERVING_SIGNER;
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding,
};
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_tests::controller::{
    Machine as Member, Setup, define_identities, reason_of,
};
use kubelet_authenticator_tests::metrics_server::MetricsServer;
use kubelet_authenticator_tests::node::NULL;
use kubelet_authenticator_tests::pods::{self, text};
use kubelet_authenticator_tests::program;
use serde_json::json;

/// The path of the plugin on the machine.
const PLUGIN: &str = "/usr/local/bin/kubelet-authenticator-null";

const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

const MEMBER: Member = Member::new("pods-1", "podsof");

/// An inventory with the machine, for which the infrastructure reports these addresses.
fn inventory(addresses: &[Ipv4Addr]) -> String {
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineInventory",
        "machines": [{
            "name": MEMBER.name,
            "providerID": MEMBER.provider_id(),
            "tokenID": MEMBER.token,
            "addresses": addresses,
        }],
    })
    .to_string()
}

#[test]
fn kubectl_logs_exec_and_top_use_the_approved_certificate() {
    let plane = ControlPlane::builder()
        .anonymous_auth()
        .controllers(Controllers::Certificates)
        .start();
    plane.prepare_for_joins();
    plane.remove_binding(KubeadmBinding::NodeAutoapproveBootstrap);
    plane.remove_binding(KubeadmBinding::NodeAutoapproveCertificateRotation);
    let kubectl = plane.kubectl();
    let rendered = Command::new(program(NULL))
        .args(["render", "--command", PLUGIN, "kubelet-drop-in"])
        .output()
        .unwrap();
    let machine = Machine::builder(&plane, MEMBER.name)
        .program(PLUGIN, &program(NULL))
        .file(DROP_IN, 0o644, rendered.stdout);
    let ca = (&*plane.ca_cert_path(), &*plane.ca_key_path());
    define_identities(kubectl);
    let controller = program("null-attestation-controller");
    let setup = Setup::new(&controller, plane.admin_kubeconfig(), ca, &[]);
    setup.write_inventory(&inventory(&[]));
    let _controller = setup.start();
    let token = plane.add_bootstrap_token(MEMBER.token, "0123456789abcdef");
    plane.wait_for_discovery(&token);
    let machine = machine.boot();
    let joined = machine.kubeadm_join(
        &token.bearer(),
        &[
            ("provider-id", &MEMBER.provider_id()),
            ("rotate-server-certificates", "true"),
        ],
    );
    let said = || format!("{}\n{}", text(&joined.stderr), machine.journal());
    assert!(joined.status.success(), "{}", said());
    plane.wait_for_node_ready(MEMBER.name);
    pods::run(kubectl, "stays", MEMBER.name);
    plane.wait_for_csr("for serving that is denied", |csr| {
        csr["spec"]["signerName"] == BUILT_IN_SERVING_SIGNER
            && reason_of(csr, "Denied") == Some("ServingNameNotReported")
    });

    let refused = kubectl.run(["logs", "stays"]);

    // The kubelet does not have a serving certificate yet.
    let stderr = text(&refused.stderr);
    assert!(stderr.contains("tls: internal error"), "{stderr}");
    let mut metrics_server = MetricsServer::start(&plane);
    metrics_server.wait_until_it_logs("remote error: tls: internal error");

    setup.write_inventory(&inventory(&[machine.address()]));
    // After the restart, the kubelet sends a new request. The processes of the kubelet's pods continue to run.
    machine.ok(&["systemctl", "restart", "kubelet"]);
    let logs = pods::logs(kubectl, "stays");

    assert_eq!(logs, "it runs on pods-1\n", "{}", said());
    plane.wait_for_csr("for serving that is approved", |csr| {
        csr["spec"]["signerName"] == BUILT_IN_SERVING_SIGNER
            && reason_of(csr, "Approved") == Some("ServingNamesCorroborated")
    });
    pods::exec(kubectl, "stays");
    let node = metrics_server.top(kubectl, "nodes", 1).remove(0);
    assert!(node.starts_with(MEMBER.name), "{node}");
    let pod = metrics_server.top(kubectl, "pods", 1).remove(0);
    let of_the_pod: Vec<_> = pod.split_whitespace().collect();
    assert!(
        matches!(of_the_pod[..], ["stays", cpu, memory] if cpu.ends_with('m') && memory.ends_with("Mi")),
        "{pod}"
    );
}
