//! A management cluster that is restored from a backup older than the certificates in use.

use std::process::Command;

use kubelet_authenticator_tests::management::Management;
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

use crate::bed::{Manager, allow_short_certificates, authorize, kubelet, management};
use crate::witness::{
    issued, mark, record, uid_of, wait_for_certificate, wait_until_ready, workload,
};

/// A lifetime with a renewal after 45 to 63 seconds.
const SECONDS: u32 = 90;

fn reset(management: &Management) {
    let output = Command::new(program("node-attestation-controller"))
        .args([
            "identities",
            "reset",
            "prod-1",
            "m1",
            "--namespace",
            "default",
        ])
        .arg("--kubeconfig")
        .arg(management.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn now(management: &Management) -> Value {
    record(management.kubectl(), "default", "prod-1", "m1")
}

#[test]
fn after_a_restore_a_reset_node_returns_with_its_next_renewal() {
    let management = management();
    allow_short_certificates(&management);
    let kubectl = management.kubectl();
    let cluster = management
        .cluster("prod-1")
        .workload(workload().into())
        .create();
    let plane = cluster.control_plane().clone();
    let machine = cluster.machine("m1").create();
    let manager = Manager::null(&management, &[]);
    let spec = json!({"certificate": {"expirationSeconds": SECONDS}});
    authorize(&management, &cluster, &["aws"], spec).wait_until_ready(kubectl);
    let mut kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();
    let backup = now(&management);
    reset(&management);
    kubelet.kill();
    std::fs::remove_dir_all(kubelet.var_lib().join("kubelet-authenticator")).unwrap();
    kubelet.start();
    let second = wait_for_certificate(&plane, "m1", 0, |csr| !uid_of(csr).ends_with(".1"));
    wait_until_ready(&plane, "m1");

    drop(manager);
    kubectl.ok(["delete", "nodeidentity", "prod-1.m1"]);
    let mut restored = backup.clone();
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
    ] {
        restored["metadata"][field] = Value::Null;
    }
    kubectl.apply_object(&restored);
    assert_eq!(mark(&now(&management)), mark(&backup));
    let known = issued(&plane, "m1").len();
    let _manager = Manager::null(&management, &[]);
    reset(&management);

    // The node itself is left alone.
    let third = wait_for_certificate(&plane, "m1", known, |_| true);
    assert!(
        third["spec"]["username"]
            .as_str()
            .unwrap()
            .starts_with("system:bootstrap:"),
        "{third:#}"
    );
    assert_ne!(third["metadata"]["name"], second["metadata"]["name"]);
    assert_eq!(uid_of(&third), mark(&now(&management)));
    kubelet.wait_for_lease_renewal();
    wait_until_ready(&plane, "m1");
}
