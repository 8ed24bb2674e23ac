//! What the front of moto adds to it, as a client sees it.

use std::sync::LazyLock;

use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::moto::{Failure, Field, Moto, Scope, access_key};

static MOTO: LazyLock<Moto> = LazyLock::new(Moto::start);

/// Asks as an account's client does; the status and the text of the answer.
fn describe(account: &str, region: &str, instance: &str) -> (u16, String) {
    let (key, _) = access_key(account);
    // A client wants one also for plain HTTP.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let client = reqwest::blocking::Client::new();
    let answer = client
        .post(MOTO.url())
        .header(
            "authorization",
            format!("AWS4-HMAC-SHA256 Credential={key}/20260101/{region}/ec2/aws4_request, Signature=0"),
        )
        .header("content-type", "application/x-www-form-urlencoded")
        .body(format!(
            "Action=DescribeInstances&Version=2016-11-15&Filter.1.Name=instance-id&Filter.1.Value.1={instance}"
        ))
        .send()
        .unwrap();
    (answer.status().as_u16(), answer.text().unwrap())
}

fn knows((status, answer): (u16, String), instance: &str) -> bool {
    assert_eq!(status, 200, "{answer}");
    answer.contains(&format!("<instanceId>{instance}</instanceId>"))
}

#[test]
fn an_instance_is_of_one_account_and_one_region() {
    let instance = MOTO
        .ec2("100000000001", "eu-west-1")
        .run(&[("role", "worker")]);
    assert_eq!(instance.state, "running");
    assert_eq!(instance.zone, "eu-west-1a");
    assert!(
        instance
            .private_dns_name
            .ends_with(".eu-west-1.compute.internal")
    );

    let id = &instance.id;
    assert!(knows(describe("100000000001", "eu-west-1", id), id));
    assert!(!knows(describe("100000000002", "eu-west-1", id), id));
    assert!(!knows(describe("100000000001", "eu-west-2", id), id));
    let calls = MOTO.calls();
    let call = calls
        .iter()
        .find(|call| call.values("Filter.1.Value") == [&**id]);
    let call = call.expect("it is recorded");
    assert_eq!(
        (&*call.action, &*call.service),
        ("DescribeInstances", "ec2")
    );
    assert_eq!(
        (&*call.account, &*call.region),
        ("100000000001", "eu-west-1")
    );
}

#[test]
fn an_instance_is_stopped_started_tagged_and_terminated() {
    let ec2 = MOTO.ec2("100000000003", "eu-west-1");
    let id = ec2.run(&[]).id;

    ec2.stop(&id);
    assert_eq!(ec2.instance(&id).state, "stopped");
    ec2.start(&id);
    assert_eq!(ec2.instance(&id).state, "running");
    ec2.tag(&id, "kind", "one");
    assert!(
        describe("100000000003", "eu-west-1", &id)
            .1
            .contains("<key>kind</key><value>one</value>")
    );
    ec2.untag(&id, "kind");
    assert!(
        !describe("100000000003", "eu-west-1", &id)
            .1
            .contains("<key>kind</key>")
    );
    ec2.terminate(&id);
    assert_eq!(ec2.instance(&id).state, "terminated");
}

#[test]
fn a_failure_hits_whom_and_as_often_as_it_is_meant_to() {
    let account = "100000000004";
    let ec2 = MOTO.ec2(account, "eu-west-1");
    let id = ec2.run(&[]).id;
    MOTO.inject(Scope::account(account), Times::once(), Failure::throttled());

    assert!(!knows(describe("100000000005", "eu-west-1", "i-0"), "i-0"));
    let (status, answer) = describe(account, "eu-west-1", &id);
    assert_eq!(status, 503);
    assert!(answer.contains("<Code>RequestLimitExceeded</Code>"));
    assert!(knows(describe(account, "eu-west-1", &id), &id));
}

#[test]
fn an_answer_is_amended_and_an_instance_hidden_until_it_is_restored() {
    let account = "100000000006";
    let ec2 = MOTO.ec2(account, "eu-west-1");
    let instances = ec2.run_many(2, &[]);
    let [id, other] = [0, 1].map(|index: usize| instances[index].id.clone());
    let late = "2001-02-03T04:05:06.000Z";
    let text = |id: &str| describe(account, "eu-west-1", id).1;

    for (field, value) in [
        (Field::RootAttached, late),
        (Field::InterfaceAttached, "2002-02-03T04:05:06.000Z"),
        (Field::InterfaceIndex, "90417"),
        (Field::RootDeviceType, "instance-store"),
        (Field::Launched, "2003-02-03T04:05:06.000Z"),
        (Field::State, "shutting-down"),
        (Field::PrivateDnsName, "ip-1-2-3-4.example"),
        (Field::Zone, "eu-west-1z"),
        (Field::Owner, "999999999999"),
        (Field::Interfaces, "<!-- none -->"),
        (Field::Volumes, "<!-- none -->"),
    ] {
        assert!(!text(&id).contains(value), "{field:?}");
        MOTO.amend(&id, field, value);
        assert!(text(&id).contains(value), "{field:?}");
        assert!(!text(&other).contains(value), "{field:?}");
        MOTO.restore(&id);
    }
    MOTO.hide(&id);
    assert!(!text(&id).contains(&id));
    assert!(text(&other).contains(&other));
    MOTO.restore(&id);
    assert!(text(&id).contains(&id));
}
