//! Two replicas that share the clusters of a management cluster.

use std::sync::Arc;
use std::time::Duration;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, KubeadmBinding};
use kubelet_authenticator_test_support::pki::CertificateAuthority;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::{Management, WorkloadCluster};
use serde_json::{Value, json};

use crate::bed::{Authentication, Manager, authorize, management};
use crate::requests::{is_signed_by, join};

/// Two replicas that started together have two Leases each within some seconds.
const PATIENCE: Duration = Duration::from_mins(2);

const SHARDS: &str = "--shards=4";

/// Whether each of two replicas holds two Leases.
fn is_balanced(management: &Management) -> bool {
    let leases = management
        .kubectl()
        .json(["get", "leases", "-n", "default"]);
    let holder = |lease: &Value| lease["spec"]["holderIdentity"].as_str().map(str::to_owned);
    let leases = leases["items"].as_array().unwrap().iter();
    let mut holders: Vec<String> = leases.filter_map(holder).collect();
    holders.sort_unstable();
    match holders.as_slice() {
        [a, b, c, d] => a == b && c == d && b != c,
        _ => false,
    }
}

/// Whether the replica has reported that it serves the cluster.
fn serves(manager: &Manager, cluster: &WorkloadCluster) -> bool {
    let name = format!("{}/{}", cluster.namespace(), cluster.name());
    let log = manager.process.log().since(manager.process.log_start());
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .map(|mut line| line["fields"].take())
        .any(|fields| fields["message"] == "serving" && fields["cluster"] == name.as_str())
}

/// Gives the cluster a CA that no other cluster has; returns its PEM.
fn write_ca(cluster: &WorkloadCluster) -> String {
    let ca = CertificateAuthority::new(cluster.namespace());
    let pair = ca.pair();
    cluster.write_ca(&pair.certificate_pem, Some(&pair.key_pem));
    pair.certificate_pem.clone()
}

#[test]
fn replicas_share_clusters_compare_their_ca_keys_and_follow_one_that_died() {
    let management = management();
    let workload = Arc::new(ControlPlane::start());
    workload.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
    let mut first = Manager::insecure(&management, &[SHARDS]);
    let second = Manager::insecure(&management, &[SHARDS]);
    let balanced = || is_balanced(&management).then_some(());
    assert!(
        poll(PATIENCE, balanced).is_some(),
        "{}",
        second.process.log()
    );

    let create = |number: usize| -> (WorkloadCluster, Authentication, String) {
        let builder = management
            .cluster("prod-1")
            .namespace(&format!("tenant-{number}"));
        let cluster = builder.workload(workload.clone()).create();
        let ca = write_ca(&cluster);
        let authentication = authorize(&management, &cluster, &["insecure"], json!({}));
        authentication.wait_until_ready(management.kubectl());
        (cluster, authentication, ca)
    };
    // The UID that the API server gives a Cluster determines the replica that serves it.
    let mut of_first = None;
    let mut of_second = None;
    for number in 0..24 {
        let created = create(number);
        match (serves(&first, &created.0), serves(&second, &created.0)) {
            (true, false) => of_first = Some(created),
            (false, true) => of_second = Some(created),
            both => panic!("one replica serves a cluster: {both:?}"),
        }
        if of_first.is_some() && of_second.is_some() {
            break;
        }
    }
    let (one, of_one, ca) = of_first.expect("a cluster of the first replica");
    let (other, of_other, _) = of_second.expect("a cluster of the second replica");

    let kubectl = management.kubectl();
    let own_key = CertificateAuthority::new("one");
    let own_key = own_key.pair();
    for cluster in [&one, &other] {
        cluster.write_ca(&own_key.certificate_pem, Some(&own_key.key_pem));
    }
    of_one.wait_for(kubectl, "Ready", "False", "SharedCA");
    of_other.wait_for(kubectl, "Ready", "False", "SharedCA");
    write_ca(&other);
    of_one.wait_until_ready(kubectl);
    of_other.wait_until_ready(kubectl);

    first.process.kill();
    let machine = one.machine("m1").node_name("node-1").create();
    let certificate = join(&one, &machine);
    assert!(is_signed_by(&certificate, &own_key.certificate_pem));
    assert!(!is_signed_by(&certificate, &ca));
    assert!(serves(&second, &one));
}
