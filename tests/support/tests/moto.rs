//! What the front of moto adds to it, as a client sees it.

use std::sync::{Arc, LazyLock};

use base64::prelude::*;
use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::moto::{Failure, Field, Moto, NitroTpm, Scope, access_key};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};

static MOTO: LazyLock<Moto> = LazyLock::new(Moto::start);

/// Asks as an account's client does; the status and the text of the answer.
fn describe(account: &str, region: &str, instance: &str) -> (u16, String) {
    let call = format!(
        "Action=DescribeInstances&Version=2016-11-15&Filter.1.Name=instance-id&Filter.1.Value.1={instance}"
    );
    post(account, region, call)
}

/// The same, for the public key of its NitroTPM.
fn public_key(account: &str, region: &str, asked: &str) -> (u16, String) {
    let call = format!("Action=GetInstanceTpmEkPub&Version=2016-11-15{asked}");
    post(account, region, call)
}

fn post(account: &str, region: &str, call: String) -> (u16, String) {
    let (key, _) = access_key(account);
    // A client wants one also for plain HTTP.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let client = reqwest::blocking::Client::new();
    let answer = client
        .post(MOTO.url())
        .header(
            "authorization",
            format!(
                "AWS4-HMAC-SHA256 Credential={key}/20260101/{region}/ec2/aws4_request, Signature=0"
            ),
        )
        .header("content-type", "application/x-www-form-urlencoded")
        .body(call)
        .send()
        .unwrap();
    (answer.status().as_u16(), answer.text().unwrap())
}

fn knows((status, answer): (u16, String), instance: &str) -> bool {
    assert_eq!(status, 200, "{answer}");
    answer.contains(&format!("<instanceId>{instance}</instanceId>"))
}

#[test]
fn an_instance_is_started_in_a_network_with_user_data() {
    let ec2 = MOTO.ec2("100000000011", "eu-west-1");
    let network = ec2.create_network("198.18.7.0/24", &["node", "lb"]);
    let groups: Vec<_> = network.security_groups.keys().collect();
    assert_eq!(groups, ["lb", "node"]);
    assert_eq!(network.zone, "eu-west-1a");
    let data = BASE64_STANDARD.encode("#cloud-config");

    let started = ec2.call(
        "RunInstances",
        &[
            ("ImageId".to_owned(), "ami-12345678"),
            ("MinCount".to_owned(), "1"),
            ("MaxCount".to_owned(), "1"),
            ("SubnetId".to_owned(), &network.subnet),
            ("UserData".to_owned(), &data),
        ],
    );

    let (_, id) = started.split_once("<instanceId>").unwrap();
    let id = id.split_once('<').unwrap().0;
    let instance = ec2.instance(id);
    let ip = &instance.private_ip;
    assert!(ip.starts_with("198.18.7."), "{ip}");
    let name = format!("ip-{}.eu-west-1.compute.internal", ip.replace('.', "-"));
    assert_eq!(instance.private_dns_name, name);
    assert_eq!(ec2.user_data(id), "#cloud-config");
    assert_eq!(ec2.user_data(&ec2.run(&[]).id), "");
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

#[test]
fn the_public_keys_of_a_nitro_tpm_are_those_of_the_tpm() {
    let tpm = Arc::new(Swtpm::start());
    let account = "100000000007";
    let id = MOTO.ec2(account, "eu-west-1").run(&[]).id;
    MOTO.give_tpm(&id, NitroTpm::of(&tpm));

    for (key, key_type) in [
        (EndorsementKey::Rsa2048, "rsa-2048"),
        (EndorsementKey::P384, "ecc-sec-p384"),
    ] {
        let machine = TpmMachine::new(tpm.clone(), key);
        for (format, expected) in [("der", machine.ek_spki()), ("tpmt", machine.ek_public())] {
            let asked = format!("&InstanceId={id}&KeyType={key_type}&KeyFormat={format}");
            let (status, answer) = public_key(account, "eu-west-1", &asked);
            assert_eq!(status, 200, "{answer}");
            let value = BASE64_STANDARD.encode(expected);
            for (element, text) in [
                ("instanceId", &*id),
                ("keyType", key_type),
                ("keyFormat", format),
                ("keyValue", &value),
            ] {
                assert!(answer.contains(&format!("<{element}>{text}</{element}>")));
            }
        }
    }
    let calls = MOTO.calls();
    let calls = calls
        .iter()
        .filter(|call| call.action == "GetInstanceTpmEkPub" && call.values("InstanceId") == [&*id]);
    assert_eq!(calls.count(), 4);
}

#[test]
fn a_public_key_is_refused_as_ec2_refuses_it() {
    let tpm = NitroTpm::of(&Arc::new(Swtpm::start()));
    let account = "100000000008";
    let ec2 = MOTO.ec2(account, "eu-west-1");
    let [id, hidden, without] = [0; 3].map(|_| ec2.run(&[]).id);
    for instance in [&id, &hidden] {
        MOTO.give_tpm(instance, tpm.clone());
    }
    MOTO.hide(&hidden);
    let asked = |id: &str| format!("&InstanceId={id}&KeyType=rsa-2048&KeyFormat=der");
    let good = asked(&id);
    assert_eq!(public_key(account, "eu-west-1", &good).0, 200);

    let not_found = (400, "InvalidInstanceID.NotFound");
    for (account, region, asked, (status, code)) in [
        (
            account,
            "eu-west-1",
            asked("i-0123456789abcdef0"),
            not_found,
        ),
        (account, "eu-west-1", asked(&hidden), not_found),
        (account, "eu-west-2", good.clone(), not_found),
        ("100000000009", "eu-west-1", good.clone(), not_found),
        (
            account,
            "eu-west-1",
            asked(&without),
            (400, "UnsupportedOperation"),
        ),
        (
            account,
            "eu-west-1",
            format!("{good}&DryRun=true"),
            (412, "DryRunOperation"),
        ),
        (
            account,
            "eu-west-1",
            good.replace("rsa-2048", "rsa-1"),
            (400, "InvalidParameterValue"),
        ),
        (
            account,
            "eu-west-1",
            format!("&InstanceId={id}"),
            (400, "MissingParameter"),
        ),
    ] {
        let answer = public_key(account, region, &asked);
        assert_eq!(answer.0, status, "{asked}: {}", answer.1);
        assert!(
            answer.1.contains(&format!("<Code>{code}</Code>")),
            "{}",
            answer.1
        );
    }
}

#[test]
fn a_failure_may_be_of_one_action() {
    let action = "GetInstanceTpmEkPub";
    let account = "100000000010";
    let id = MOTO.ec2(account, "eu-west-1").run(&[]).id;
    let asked = format!("&InstanceId={id}&KeyType=rsa-2048&KeyFormat=der");
    let scope = Scope::account(account).and_action(action);
    MOTO.inject(scope, Times::once(), Failure::unauthorized());

    assert!(knows(describe(account, "eu-west-1", &id), &id));
    let (status, answer) = public_key(account, "eu-west-1", &asked);
    assert_eq!(status, 403);
    assert!(answer.contains("<Code>UnauthorizedOperation</Code>"));
}
