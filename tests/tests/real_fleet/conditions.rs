//! Tests that a condition reports a fault in a cluster, and that the fault does not affect other work.

use std::net::TcpListener;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Kubectl};
use kubelet_authenticator_test_support::pki::CertificateAuthority;
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::is_issued;
use kubelet_authenticator_tests::management::{Management, WorkloadCluster, workload_kubeconfig};
use serde_json::json;

use crate::bed::{Authentication, Manager, authorize, condition_of, kubelet, management};
use crate::requests::{answer, file};

/// The management cluster for all tests in this module. Each test has a separate namespace.
static BED: LazyLock<(Management, Manager)> = LazyLock::new(|| {
    let management = management();
    let manager = Manager::insecure(&management, &[]);
    (management, manager)
});

/// The workload cluster for the tests that do not need a special cluster. Each test also has a separate CA.
static WORKLOAD: LazyLock<Arc<ControlPlane>> = LazyLock::new(|| Arc::new(ControlPlane::start()));

fn kubectl() -> &'static Kubectl {
    BED.0.kubectl()
}

/// A cluster in a separate namespace, with a separate CA.
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

/// A new CA: its certificate and key, as PEM.
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
fn the_condition_names_missing_secrets() {
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

/// A cluster with a separate control plane. The CA of this control plane signs certificates.
fn with_control_plane(namespace: &str) -> (WorkloadCluster, Authentication) {
    let cluster = BED.0.cluster("prod-1").namespace(namespace).create();
    let authentication = authorize(&BED.0, &cluster, &["insecure"], json!({}));
    authentication.wait_until_ready(kubectl());
    (cluster, authentication)
}

/// A function that either stops or resumes the API server of a cluster.
type Step<'a> = &'a dyn Fn();

#[test]
fn requests_of_an_unserved_cluster_wait_until_it_is_served_again() {
    let (cluster, authentication) = with_control_plane("not-served");
    let (neighbor, _) = with_control_plane("served");
    let annotate = |value: &str| {
        let target = ["kubeletauthentication/prod-1", "--namespace=not-served"];
        kubectl().ok(["annotate", target[0], target[1], value]);
    };
    let plane = cluster.control_plane();
    let good = workload_kubeconfig("prod-1", plane);
    let refused = good.replace("client-certificate-data:", "client-certificate:");
    let own = plane.ca().pair();
    let (_, another_key) = ca("another");
    let shared = neighbor.control_plane().ca().pair();
    let write_ca = |certificate: &str, key: &String| cluster.write_ca(certificate, Some(key));
    let states: [(&str, Step, Step); 5] = [
        ("Paused", &|| cluster.set_paused(true), &|| {
            cluster.set_paused(false);
        }),
        ("Paused", &|| annotate("cluster.x-k8s.io/paused="), &|| {
            annotate("cluster.x-k8s.io/paused-");
        }),
        (
            "KubeconfigRefused",
            &|| cluster.write_kubeconfig(&refused),
            &|| cluster.write_kubeconfig(&good),
        ),
        (
            "CAKeyMismatch",
            &|| write_ca(&own.certificate_pem, &another_key),
            &|| write_ca(&own.certificate_pem, &own.key_pem),
        ),
        (
            "SharedCA",
            &|| cluster.write_ca(&shared.certificate_pem, None),
            &|| write_ca(&own.certificate_pem, &own.key_pem),
        ),
    ];
    for (number, (reason, stop, serve)) in states.into_iter().enumerate() {
        let [waits, joins] = [(&cluster, "waits"), (&neighbor, "joins")]
            .map(|(cluster, name)| cluster.machine(&format!("{name}-{number}")).create());
        stop();
        not_ready(&authentication, reason);

        let name = file(&cluster, &waits);
        let joined = answer(&neighbor, &file(&neighbor, &joins));
        assert!(is_issued(&joined), "{joined:#}");
        let read = || plane.kubectl().json(["get", "csr", &name]);
        assert_unanswered(Later::answer(&joined), read);

        serve();
        authentication.wait_until_ready(kubectl());
        let csr = answer(&cluster, &name);
        assert!(is_issued(&csr), "{reason}: {csr:#}");
    }
}

/// The number of clusters whose API servers never respond.
const HANGING: u32 = 6;

/// The deadline for each call of the controller, and therefore also for the first call to each of these API servers.
const OF_ONE_CALL: Duration = Duration::from_secs(20);

#[test]
fn unavailable_api_servers_do_not_delay_other_clusters() {
    let (dead, down) = ready("down");
    let gone = ControlPlane::start();
    dead.write_kubeconfig(&workload_kubeconfig("prod-1", &gone));
    down.wait_until_ready(kubectl());
    drop(gone);
    // The kernel accepts connections, but no process reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("https://{}", silent.local_addr().unwrap());
    let good = workload_kubeconfig("prod-1", &WORKLOAD);
    for number in 0..HANGING {
        let cluster = cluster(&format!("hangs-{number}"));
        cluster.write_kubeconfig(&good.replace(WORKLOAD.server(), &server));
        authorize(&BED.0, &cluster, &["insecure"], json!({}));
    }
    let living = BED.0.cluster("prod-1").namespace("living").create();
    let asked = Instant::now();
    let authentication = authorize(&BED.0, &living, &["insecure"], json!({}));

    authentication.wait_until_ready(kubectl());

    let (took, one_by_one) = (asked.elapsed(), HANGING * OF_ONE_CALL);
    assert!(took < one_by_one * 3 / 4, "{took:?} of {one_by_one:?}");
    let machine = living.machine("m1").create();
    let kubelet = kubelet(&living, &machine, "kubelet-authenticator-insecure").start();
    kubelet.wait_until_ready();
}
