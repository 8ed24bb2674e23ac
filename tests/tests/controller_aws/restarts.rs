//! An instance that was stopped and started: the same ID, another launch, another document.

use std::sync::LazyLock;

use kubelet_authenticator_test_support::moto::Field;
use kubelet_authenticator_tests::cloud::{ACCOUNT, Cloud, Instance, REGION};
use kubelet_authenticator_tests::controller::{
    Application, Bed, Change, Controller, certificate_of, is_issued, reason_of, request,
};
use serde_json::{Value, json};
use x509_parser::oid_registry::Oid;

static CLOUD: LazyLock<Cloud> = LazyLock::new(Cloud::start);

fn old() -> Instance {
    CLOUD.launched_an_hour_ago(&[])
}

/// The UID of the certificate in an answer: record and generation.
fn uid_of(answer: &Value) -> String {
    let pem = certificate_of(answer).expect("a certificate");
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(&pem.contents).unwrap();
    let oid = Oid::from(&[1, 3, 6, 1, 4, 1, 57683, 2]).unwrap();
    let uid = certificate.subject().iter_by_oid(&oid).next().unwrap();
    uid.as_str().unwrap().to_owned()
}

fn started(bed: &Bed) -> Controller {
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    controller
}

/// Puts the request there as if the holder of a certificate with this UID had sent it.
fn renew(bed: &Bed, application: &Application, node: &str, uid: &str) -> String {
    let mut object = application.to_json();
    object["spec"]["username"] = format!("system:node:{node}").into();
    object["spec"]["uid"] = uid.into();
    object["spec"]["groups"] = json!(["system:nodes", "system:authenticated"]);
    bed.server.put_csr(object);
    application.name()
}

#[test]
fn after_a_start_the_new_document_renews_and_enrols_and_the_old_one_is_denied() {
    let mut instances = [old()];
    let bed = Bed::instances(&CLOUD, &instances);
    let controller = started(&bed);
    let own = |instance: &Instance| request(&bed, &CLOUD, (0, instance), &Change::default());
    let joined = bed.wait_for_answer(&own(&instances[0]).put(&bed.server));
    let (node, uid) = (instances[0].node_name().to_owned(), uid_of(&joined));
    let old_document = [own(&instances[0]), own(&instances[0])];

    CLOUD.restart(&mut instances[0]);

    let renewed = own(&instances[0]);
    let renewed = bed.wait_for_answer(&renew(&bed, &renewed, &node, &uid));
    assert_eq!(uid_of(&renewed), uid, "a start is no other generation");
    // With an empty disk.
    let enrolled = bed.wait_for_answer(&own(&instances[0]).put(&bed.server));
    let record = uid.strip_suffix(".1").unwrap();
    assert_eq!(uid_of(&enrolled), format!("{record}.2"));

    // What EC2 said of the instance is remembered for seconds; one that begins remembers nothing.
    controller.stop();
    let mut controller = started(&bed);
    let [renews, enrols] = old_document;
    let uid = uid_of(&enrolled);
    for csr in [renew(&bed, &renews, &node, &uid), enrols.put(&bed.server)] {
        // The key, the credentials and the signature are as good as they were.
        let answer = bed.wait_for_answer(&csr);
        let reason = reason_of(&answer, "Denied");
        assert_eq!(reason, Some("DocumentOfEarlierLaunch"), "{answer:#}");
        assert_eq!(controller.wait_for_decision(&csr)["check"], "attest");
    }
    let again = bed.wait_for_answer(&own(&instances[0]).put(&bed.server));
    assert!(is_issued(&again), "{again:#}");
}

#[test]
fn while_it_is_stopped_the_document_that_it_had_is_denied() {
    let instances = [old()];
    let bed = Bed::instances(&CLOUD, &instances);
    let _controller = started(&bed);
    let ec2 = CLOUD.moto().ec2(ACCOUNT, REGION);

    ec2.stop(&instances[0].ec2.id);

    let csr = request(&bed, &CLOUD, (0, &instances[0]), &Change::default()).put(&bed.server);
    let answer = bed.wait_for_answer(&csr);
    assert_eq!(reason_of(&answer, "Denied"), Some("InstanceNotRunning"));
}

#[test]
fn a_start_that_ec2_does_not_show_yet_is_waited_for() {
    let mut instances = [old()];
    let bed = Bed::instances(&CLOUD, &instances);
    let mut controller = started(&bed);
    let (id, launched) = (
        instances[0].ec2.id.clone(),
        instances[0].ec2.launched.clone(),
    );
    CLOUD.restart(&mut instances[0]);
    CLOUD.moto().amend(&id, Field::State, "stopped");
    CLOUD.moto().amend(&id, Field::Launched, &launched);

    let csr = request(&bed, &CLOUD, (0, &instances[0]), &Change::default()).put(&bed.server);
    let line = controller.wait_for_line("decided", |line| {
        line["csr"] == *csr && line["reason"] == "InstanceNotVisible"
    });
    assert_eq!(line["outcome"], "deferred");
    CLOUD.moto().restore(&id);

    assert!(is_issued(&bed.wait_for_answer(&csr)));
}
