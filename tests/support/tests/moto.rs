//! What the front of moto adds to it, as a client sees it.

use std::sync::{Arc, LazyLock};

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
