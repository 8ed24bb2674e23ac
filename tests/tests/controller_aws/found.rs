//! Machines that are the instances with a cluster's tags: `--aws-inventory`.

use std::sync::LazyLock;

use kubelet_authenticator_test_support::moto::Failure;
use kubelet_authenticator_test_support::moto::Scope;
use kubelet_authenticator_test_support::sts::Times;
use kubelet_authenticator_tests::cloud::{ACCOUNT, Cloud, Instance, REGION};
use kubelet_authenticator_tests::controller::{
    Bed, Change, Controller, certificate_of, is_issued, reason_of, request,
};
use serde_json::Value;

/// Tests that stop EC2 have a cloud of their own.
static CLOUD: LazyLock<Cloud> = LazyLock::new(Cloud::start);

/// A controller of the cluster whose instances have the tag `cluster` with this value.
fn bed(cloud: &Cloud, cluster: &str, more: &[&str]) -> (Bed, Controller) {
    let account = format!("--aws-account={ACCOUNT}");
    let region = format!("--aws-region={REGION}");
    let tag = format!("--aws-required-tag=cluster={cluster}");
    let bed = Bed::found(cloud, &[&[&*account, &region, &tag], more].concat());
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    (bed, controller)
}

/// Files the instance's own request; gives its name.
fn ask(bed: &Bed, instance: &Instance) -> String {
    request(bed, &CLOUD, (0, instance), &Change::default()).put(&bed.server)
}

/// Waits until the request is put off for this reason; it has no condition then.
#[track_caller]
fn wait_until_deferred(bed: &Bed, controller: &mut Controller, csr: &str, reason: &str) {
    let line = controller.wait_for_line("decided", |line: &Value| {
        line["csr"] == csr && line["reason"] == reason
    });
    assert_eq!(line["outcome"], "deferred");
    let csr = bed.server.csr(csr).unwrap();
    assert!(csr["status"]["conditions"].is_null(), "{csr:#}");
}

#[test]
fn an_instance_with_the_tag_joins_under_its_private_dns_name() {
    let instance = CLOUD.launch(&[("cluster", "joins")]);
    let (bed, mut controller) = bed(&CLOUD, "joins", &[]);

    let csr = ask(&bed, &instance);

    let answer = bed.wait_for_answer(&csr);
    let certificate = certificate_of(&answer).expect("a certificate");
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(&pem.contents).unwrap();
    let name = certificate.subject().iter_common_name().next().unwrap();
    let expected = format!("system:node:{}", instance.node_name());
    assert_eq!(name.as_str(), Ok(&*expected));
    assert_eq!(controller.wait_for_decision(&csr)["outcome"], "issued");
    // What packaging/aws/controller-policy.json allows for it.
    let calls = CLOUD.moto().calls();
    assert!(calls.iter().all(|call| call.action == "DescribeInstances"));
}

#[test]
fn under_the_name_policy_of_instance_ids_that_is_the_name_and_no_other() {
    let instance = CLOUD.launch(&[("cluster", "named")]);
    let (bed, _controller) = bed(&CLOUD, "named", &["--aws-node-name=instance-id"]);

    let other = bed.wait_for_answer(&ask(&bed, &instance));
    assert_eq!(reason_of(&other, "Denied"), Some("NodeNameMismatch"));

    let change = Change {
        node_name: Some(&instance.ec2.id),
        ..Change::default()
    };
    let own = request(&bed, &CLOUD, (0, &instance), &change).put(&bed.server);
    assert!(is_issued(&bed.wait_for_answer(&own)));
}

#[test]
fn an_instance_that_is_not_among_those_looked_for_waits_until_it_is() {
    let (bed, mut controller) = bed(&CLOUD, "waits", &[]);
    let elsewhere = |account, region, tag| {
        let ec2 = CLOUD.moto().ec2(account, region);
        CLOUD.boot(ec2.run(&[("cluster", tag)]))
    };
    let mut asked = Vec::new();
    for (account, region, tag) in [
        (ACCOUNT, REGION, "another"),
        (ACCOUNT, "eu-west-2", "waits"),
        ("444455556666", REGION, "waits"),
    ] {
        let instance = elsewhere(account, region, tag);
        let csr = ask(&bed, &instance);
        wait_until_deferred(&bed, &mut controller, &csr, "MachineNotFound");
        asked.push((instance, csr));
    }

    let (instance, csr) = &asked[0];
    let owner = CLOUD.moto().ec2(ACCOUNT, REGION);
    owner.tag(&instance.ec2.id, "cluster", "waits");

    assert!(is_issued(&bed.wait_for_answer(csr)));
    for (_, csr) in &asked[1..] {
        assert!(bed.server.csr(csr).unwrap()["status"]["conditions"].is_null());
    }
}

#[test]
fn an_instance_that_was_given_to_another_cluster_since_is_denied() {
    let cloud = Cloud::start();
    let instances = cloud.launch_many(2, &[("cluster", "given")]);
    let (bed, _controller) = bed(&cloud, "given", &[]);
    let ask = |instance| {
        let csr = request(&bed, &cloud, (0, instance), &Change::default()).put(&bed.server);
        bed.wait_for_answer(&csr)
    };
    // The list has both.
    assert!(is_issued(&ask(&instances[0])));
    let owner = cloud.moto().ec2(ACCOUNT, REGION);
    owner.tag(&instances[1].ec2.id, "cluster", "another");

    let answer = ask(&instances[1]);

    assert_eq!(
        reason_of(&answer, "Denied"),
        Some("TagMismatch"),
        "{answer:#}"
    );
}

#[test]
fn a_list_that_cannot_be_had_delays_a_join() {
    let cloud = Cloud::start();
    let instance = cloud.launch(&[("cluster", "prod-1")]);
    let (bed, mut controller) = bed(&cloud, "prod-1", &[]);
    let refused = Failure::unauthorized();
    cloud.moto().inject(Scope::any(), Times::always(), refused);
    let csr = request(&bed, &cloud, (0, &instance), &Change::default()).put(&bed.server);
    wait_until_deferred(&bed, &mut controller, &csr, "InventoryUnavailable");

    cloud.moto().clear_failures();

    assert!(is_issued(&bed.wait_for_answer(&csr)));
}

#[test]
fn instances_on_a_list_are_denied_where_they_are_not_what_is_said() {
    let instances = [CLOUD.launched_an_hour_ago(&[])];
    for (option, reason) in [
        ("--aws-account=444455556666", "AccountNotAllowed"),
        ("--aws-region=eu-west-2", "RegionNotAllowed"),
        ("--aws-required-tag=cluster=prod-1", "TagMismatch"),
        ("--aws-cluster-name=prod-1", "TagMismatch"),
    ] {
        let mut bed = Bed::instances(&CLOUD, &instances);
        bed.setup = bed.setup.args(&[option]);
        let mut controller = bed.setup.start();
        controller.wait_until_it_watches();

        let answer = bed.wait_for_answer(&ask(&bed, &instances[0]));

        assert_eq!(reason_of(&answer, "Denied"), Some(reason), "{option}");
    }
}
