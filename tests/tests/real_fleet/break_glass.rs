//! A management cluster that hosts itself, and whose workers have all lost their certificates: the
//! controller cannot run in it any more, so a person runs it by hand on a control-plane node.

use jiff::Timestamp;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, DEADLINE, KubeadmBinding};
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, poll};
use kubelet_authenticator_tests::management::Management;
use kubelet_authenticator_tests::program;

use crate::bed::kubelet;

/// The program as it is run by hand, by the files of a control-plane node.
fn by_hand(plane: &ControlPlane, files: &Scratch, arguments: &[&str]) -> Process {
    Launch::new("by-hand", program("null-attestation-controller"))
        .arg("run")
        .arg("--workload-kubeconfig")
        .arg(plane.admin_kubeconfig())
        .arg("--ca-cert")
        .arg(plane.ca_cert_path())
        .arg("--ca-key")
        .arg(plane.ca_key_path())
        .args(["--cluster", "prod-1"])
        .arg("--management-kubeconfig")
        .arg(plane.admin_kubeconfig())
        .args(["--log-format", "json", "--verbose"])
        .args(arguments)
        .spawn(&files.join("by-hand.log"))
}

#[test]
fn workers_whose_certificates_have_all_expired_are_brought_back_by_hand() {
    let management = Management::start();
    let plane = management.control_plane();
    plane.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
    let cluster = management.cluster("prod-1").self_hosted().create();
    let machine = cluster.machine("m1").node_name("node-1").create();
    let files = Scratch::new("break-glass");
    let mut before = by_hand(plane, &files, &["--certificate-duration", "30s"]);
    let kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();
    before.kill();
    let record = || {
        management
            .kubectl()
            .json(["get", "nodeidentity", "prod-1.node-1"])
    };
    let end: Timestamp = record()["spec"]["notAfter"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    plane.wait_for_csr("without an answer", |csr| {
        csr["status"]["conditions"].is_null()
    });
    poll(DEADLINE, || (Timestamp::now() > end).then_some(())).expect("it expires");

    let _by_hand = by_hand(plane, &files, &[]);

    kubelet.wait_for_lease_renewal();
    assert_eq!(record()["spec"]["providerID"], machine.provider_id());
}
