//! Tests of instances that count as machines because they have a cluster's tags: `awsInstances` in an inventory.

use std::sync::LazyLock;

use kubelet_authenticator_tests::cloud::{ACCOUNT, Cloud, Instance, REGION};
use kubelet_authenticator_tests::controller::{Bed, Controller, certificate_of, request};
use serde_json::json;

static CLOUD: LazyLock<Cloud> = LazyLock::new(Cloud::start);

/// A controller for the cluster whose instances have the tag `cluster` with this value.
fn bed(cloud: &Cloud, cluster: &str) -> (Bed, Controller) {
    let aws = json!({
        "accounts": [ACCOUNT], "regions": [REGION], "requiredTags": {"cluster": cluster},
    });
    let bed = Bed::found(cloud, &aws);
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    (bed, controller)
}

/// Sends a request from the instance itself. Returns its name.
fn ask(bed: &Bed, instance: &Instance) -> String {
    request(bed, &CLOUD, instance).put(&bed.server)
}

#[test]
fn an_instance_with_the_tag_joins_with_its_private_dns_name() {
    let instance = CLOUD.launch(&[("cluster", "joins")]);
    let (bed, mut controller) = bed(&CLOUD, "joins");

    let csr = ask(&bed, &instance);

    let answer = bed.wait_for_answer(&csr);
    let certificate = certificate_of(&answer).expect("a certificate");
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(&pem.contents).unwrap();
    let name = certificate.subject().iter_common_name().next().unwrap();
    let expected = format!("system:node:{}", instance.node_name());
    assert_eq!(name.as_str(), Ok(&*expected));
    assert_eq!(controller.wait_for_decision(&csr)["outcome"], "issued");
    // The controller makes only the calls that packaging/aws/controller-policy.json allows.
    let calls = CLOUD.moto().calls();
    assert!(calls.iter().all(|call| call.action == "DescribeInstances"));
}
