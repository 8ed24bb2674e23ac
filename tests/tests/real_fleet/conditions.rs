//! A problem of a cluster is reported in a condition, and nothing else stops because of it.

use std::sync::{Arc, LazyLock};

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Kubectl};
use kubelet_authenticator_test_support::pki::CertificateAuthority;
use kubelet_authenticator_tests::management::{Management, WorkloadCluster, workload_kubeconfig};
use serde_json::json;

use crate::bed::{Authentication, Manager, authorize, condition_of, kubelet, management};

/// One management cluster for all tests here; each has a namespace of its own.
static BED: LazyLock<(Management, Manager)> = LazyLock::new(|| {
    let management = management();
    let manager = Manager::insecure(&management, &[]);
    (management, manager)
});

/// One workload cluster for the tests that need no special one; each also has a CA of its own.
static WORKLOAD: LazyLock<Arc<ControlPlane>> = LazyLock::new(|| Arc::new(ControlPlane::start()));

fn kubectl() -> &'static Kubectl {
    BED.0.kubectl()
}

/// A cluster in a namespace of its own, with a CA of its own.
fn cluster(namespace: &str) -> WorkloadCluster {
    let cluster = BED
        .0
        .cluster("prod-1")
        .namespace(namespace)
        .workload(WORKLOAD.clone())
        .create();
    let (certificate, key) = ca("another");
    cluster.write_ca(&certificate, Some(&key));
    cluster
}

/// A new CA: certificate and key, as PEM.
fn ca(name: &str) -> (String, String) {
    let ca = CertificateAuthority::new(name);
    let pair = ca.pair();
    (pair.certificate_pem.clone(), pair.key_pem.clone())
}

fn ready(namespace: &str) -> (WorkloadCluster, Authentication) {
    let cluster = cluster(namespace);
    let authentication = authorize(&BED.0, &cluster, &["insecure"], json!({}));
    authentication.wait_until_ready(kubectl());
    (cluster, authentication)
}

#[track_caller]
fn not_ready(authentication: &Authentication, reason: &str) -> String {
    let object = authentication.wait_for(kubectl(), "Ready", "False", reason);
    let message = condition_of(&object, "Ready")["message"].clone();
    message.as_str().unwrap().to_owned()
}

#[test]
fn secrets_that_are_missing_are_named() {
    let (cluster, authentication) = ready("missing");

    cluster.delete_secret("kubeconfig");
    let message = not_ready(&authentication, "KubeconfigNotFound");
    assert!(message.contains("prod-1-kubeconfig"), "{message}");

    cluster.write_kubeconfig(&workload_kubeconfig("prod-1", &WORKLOAD));
    authentication.wait_until_ready(kubectl());
    cluster.delete_secret("ca");
    let message = not_ready(&authentication, "CANotFound");
    assert!(message.contains("prod-1-ca"), "{message}");
}

#[test]
fn what_is_paused_is_left_alone_until_it_is_not() {
    let (cluster, authentication) = ready("paused");

    cluster.set_paused(true);
    not_ready(&authentication, "Paused");

    cluster.set_paused(false);
    authentication.wait_until_ready(kubectl());

    let annotate = |value: &str| {
        let object = ["kubeletauthentication/prod-1", "--namespace=paused"];
        let words = ["annotate", object[0], object[1], value];
        kubectl().ok(words);
    };
    annotate("cluster.x-k8s.io/paused=");
    not_ready(&authentication, "Paused");
    annotate("cluster.x-k8s.io/paused-");
    authentication.wait_until_ready(kubectl());
}

#[test]
fn a_cluster_that_is_down_delays_no_other() {
    let (dead, down) = ready("down");
    let gone = ControlPlane::start();
    dead.write_kubeconfig(&workload_kubeconfig("prod-1", &gone));
    down.wait_until_ready(kubectl());
    drop(gone);
    let living = BED.0.cluster("prod-1").namespace("living").create();
    let authentication = authorize(&BED.0, &living, &["insecure"], json!({}));

    authentication.wait_until_ready(kubectl());
    let machine = living.machine("m1").create();
    let kubelet = kubelet(&living, &machine, "kubelet-authenticator-insecure").start();
    kubelet.wait_until_ready();
}
