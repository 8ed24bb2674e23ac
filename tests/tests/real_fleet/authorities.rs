//! Tests of the CA that signs for a cluster: expired, replaced, or next to another CA.

use std::sync::LazyLock;

use kubelet_authenticator_test_support::control_plane::DEADLINE;
use kubelet_authenticator_test_support::pki::CertificateAuthority;
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::{certificate_of, is_signed_by};
use kubelet_authenticator_tests::management::{Management, WorkloadCluster};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use crate::bed::{Authentication, Manager, authorize, condition_of, management};
use crate::requests::{answer, file, join};

/// The management cluster for all tests in this module.
static BED: LazyLock<(Management, Manager)> = LazyLock::new(|| {
    let management = management();
    let manager = Manager::insecure(&management, &[]);
    (management, manager)
});

fn ready(name: &str, namespace: &str) -> (WorkloadCluster, Authentication) {
    let cluster = BED.0.cluster(name).namespace(namespace).create();
    let authentication = authorize(&BED.0, &cluster, &["insecure"], json!({}));
    authentication.wait_until_ready(BED.0.kubectl());
    (cluster, authentication)
}

/// The certificate and the key (PEM) of a CA that expired long ago.
fn expired() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(2019, 1, 1);
    params.not_after = date_time_ymd(2020, 1, 1);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

#[test]
fn requests_wait_until_a_new_ca_replaces_an_expired_ca() {
    let (cluster, authentication) = ready("prod-1", "expired-ca");
    let (other, _) = ready("prod-1", "beside-expired-ca");
    let machine = cluster.machine("waits").create();
    let neighbour = other.machine("joins").create();
    let (certificate, key) = expired();
    cluster.write_ca(&certificate, Some(&key));
    let kubectl = BED.0.kubectl();
    let said = authentication.wait_for(kubectl, "Ready", "False", "CAExpired");
    let message = condition_of(&said, "Ready")["message"].clone();
    assert!(message.as_str().unwrap().contains("replaced"), "{message}");

    let name = file(&cluster, &machine);
    let selector = "involvedObject.name=waits,reason=CaNotValid";
    let events = ["events", "-n", "expired-ca", "--field-selector", selector];
    let event = kubectl.wait_for(&events, "CaNotValid", DEADLINE, |_| true);
    assert_unanswered(Later::event(&event), || {
        let kubectl = cluster.control_plane().kubectl();
        kubectl.json(["get", "csr", &name])
    });
    let reachable = condition_of(&said, "WorkloadClusterReachable");
    assert_ne!(reachable["status"], "False");
    join(&other, &neighbour);

    let next = CertificateAuthority::new("next");
    cluster.write_ca(next.certificate_pem(), Some(&next.pair().key_pem));
    let csr = answer(&cluster, &name);
    let issued = certificate_of(&csr).unwrap_or_else(|| panic!("{csr:#}"));
    assert!(is_signed_by(&issued, next.certificate_pem()));
}

#[test]
fn a_certificate_issued_after_a_ca_replacement_is_signed_by_the_new_ca() {
    let (cluster, authentication) = ready("prod-1", "replaced-ca");
    let [before, after] = ["before", "after"].map(|name| cluster.machine(name).create());
    let former = cluster.control_plane().ca().certificate_pem().to_owned();
    let issued = join(&cluster, &before);
    assert!(is_signed_by(&issued, &former));

    // An unusable CA is written in between, so that the test can detect when the next CA is used.
    let next = CertificateAuthority::new("next");
    let another = CertificateAuthority::new("another");
    let kubectl = BED.0.kubectl();
    cluster.write_ca(next.certificate_pem(), Some(&another.pair().key_pem));
    authentication.wait_for(kubectl, "Ready", "False", "CAKeyMismatch");
    cluster.write_ca(next.certificate_pem(), Some(&next.pair().key_pem));
    authentication.wait_until_ready(kubectl);

    let issued = join(&cluster, &after);
    assert!(is_signed_by(&issued, next.certificate_pem()));
    assert!(!is_signed_by(&issued, &former));
}

#[test]
fn a_cluster_with_the_ca_certificate_of_another_stops_only_itself() {
    let (tenant, of_tenant) = ready("prod-1", "shows-a-ca");
    let (victim, of_victim) = ready("prod-1", "has-a-ca");
    let own = CertificateAuthority::new("victim");
    let kubectl = BED.0.kubectl();
    // The copy exists before the victim has the CA, because the first claim must not take precedence.
    tenant.write_ca(own.certificate_pem(), None);
    victim.write_ca(own.certificate_pem(), Some(&own.pair().key_pem));
    of_tenant.wait_for(kubectl, "Ready", "False", "SharedCA");

    let machine = victim.machine("joins").create();
    assert!(is_signed_by(
        &join(&victim, &machine),
        own.certificate_pem()
    ));
    of_victim.wait_until_ready(kubectl);

    // The private key proves the ownership of the CA, regardless of the owner of the copy.
    tenant.write_ca(own.certificate_pem(), Some(&own.pair().key_pem));
    of_victim.wait_for(kubectl, "Ready", "False", "SharedCA");
    of_tenant.wait_for(kubectl, "Ready", "False", "SharedCA");
    let another = CertificateAuthority::new("another");
    tenant.write_ca(another.certificate_pem(), Some(&another.pair().key_pem));
    of_victim.wait_until_ready(kubectl);
    of_tenant.wait_until_ready(kubectl);
}

#[test]
fn two_clusters_in_one_namespace_have_separate_cas_and_records() {
    let clusters = ["one", "two"].map(|name| ready(name, "both").0);
    let machines = clusters.each_ref().map(|cluster| {
        let name = format!("{}-m1", cluster.name());
        cluster.machine(&name).node_name("node-1").create()
    });

    let issued = [0, 1].map(|one: usize| join(&clusters[one], &machines[one]));

    for (own, other) in [(0, 1), (1, 0)] {
        let ca = |one: usize| clusters[one].control_plane().ca().certificate_pem();
        assert!(is_signed_by(&issued[own], ca(own)));
        assert!(!is_signed_by(&issued[own], ca(other)));
        let record = format!("{}.node-1", clusters[own].name());
        let words = ["get", "nodeidentities", &record, "-n", "both"];
        let record: Value = BED.0.kubectl().json(words);
        assert_eq!(record["spec"]["providerID"], machines[own].provider_id());
    }
}
