//! What stands in a cluster's way is said in a condition, and nothing else stops for it.

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

/// One workload cluster for those that say nothing about it; each has a CA of its own beside it.
static WORKLOAD: LazyLock<Arc<ControlPlane>> = LazyLock::new(|| Arc::new(ControlPlane::start()));

fn kubectl() -> &'static Kubectl {
    BED.0.kubectl()
}

/// A cluster in a namespace of its own, whose CA is nobody else's.
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

/// A CA of its own: certificate and key, as PEM.
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
fn a_kubeconfig_that_runs_a_program_is_refused_by_name_and_taken_up_when_it_is_mended() {
    let (cluster, authentication) = ready("kubeconfig-refused");
    let good = workload_kubeconfig("prod-1", &WORKLOAD);
    let exec = "users:\n- name: evil\n  user:\n    exec: {command: /bin/true}\n";
    let bad = good.replacen("users:\n", exec, 1);
    assert_ne!(bad, good);

    cluster.write_kubeconfig(&bad);
    let message = not_ready(&authentication, "KubeconfigRefused");
    assert!(message.contains("exec"), "{message}");

    cluster.write_kubeconfig(&good);
    authentication.wait_until_ready(kubectl());
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
fn a_ca_whose_key_is_anothers_is_told_of_and_shows_no_key() {
    let (cluster, authentication) = ready("mismatch");
    let (certificate, _) = ca("one");
    let (_, key) = ca("two");

    cluster.write_ca(&certificate, Some(&key));

    let message = not_ready(&authentication, "CAKeyMismatch");
    assert!(!message.contains("PRIVATE"), "{message}");
}

#[test]
fn a_ca_without_a_key_needs_the_bindings_removed() {
    let (cluster, authentication) = ready("approve-only");
    let (certificate, _) = ca("one");

    cluster.write_ca(&certificate, None);

    not_ready(&authentication, "ApproveOnlyNotAllowed");
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
fn an_attestor_that_nobody_verifies_is_named() {
    let cluster = cluster("unknown-attestor");

    let authentication = authorize(&BED.0, &cluster, &["gcp"], json!({}));

    let message = not_ready(&authentication, "AttestorUnknown");
    assert!(message.contains("gcp"), "{message}");
}

#[test]
fn clusters_with_one_ca_key_are_neither_ready_until_one_has_another() {
    let (first, one) = ready("shared-a");
    let (second, other) = ready("shared-b");
    let (certificate, key) = ca("shared");
    for cluster in [&first, &second] {
        cluster.write_ca(&certificate, Some(&key));
    }

    let message = not_ready(&one, "SharedCA");
    assert!(message.contains("shared-b/prod-1"), "{message}");
    not_ready(&other, "SharedCA");

    let (certificate, key) = ca("own");
    second.write_ca(&certificate, Some(&key));
    one.wait_until_ready(kubectl());
    other.wait_until_ready(kubectl());
}

#[test]
fn a_user_that_the_workload_cluster_does_not_know_is_told_of() {
    let (cluster, authentication) = ready("no-access");
    let stranger = ControlPlane::start();
    let there = workload_kubeconfig("prod-1", &WORKLOAD);
    let credential = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.contains(key)).unwrap();
        line.trim().trim_start_matches("- ").to_owned()
    };
    let theirs = workload_kubeconfig("prod-1", &stranger);
    let mut text = there.clone();
    for key in ["client-certificate-data", "client-key-data"] {
        text = text.replace(&credential(&there, key), &credential(&theirs, key));
    }
    assert_ne!(text, there);

    cluster.write_kubeconfig(&text);

    not_ready(&authentication, "KubeconfigWithoutAccess");
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
