//! Tests, with a client, of the front server's additions to moto.

use std::sync::{Arc, LazyLock};

use kubelet_authenticator_test_support::moto::{Moto, NitroTpm, access_key};
use kubelet_authenticator_test_support::swtpm::Swtpm;

static MOTO: LazyLock<Moto> = LazyLock::new(Moto::start);

/// Requests the public key of a NitroTPM, as a client in an account does. Returns the status and the text of the
/// response.
fn public_key(account: &str, region: &str, asked: &str) -> (u16, String) {
    let call = format!("Action=GetInstanceTpmEkPub&Version=2016-11-15{asked}");
    post(account, region, call)
}

fn post(account: &str, region: &str, call: String) -> (u16, String) {
    let (key, _) = access_key(account);
    // The client needs a crypto provider even for plain HTTP.
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

/// Makes a call to Secrets Manager with this body. Returns the status and the text of the response.
fn secrets_manager(account: &str, operation: &str, body: &str) -> (u16, String) {
    let (key, _) = access_key(account);
    let scope = format!("{key}/20260101/eu-west-1/secretsmanager/aws4_request");
    let authorization = format!("AWS4-HMAC-SHA256 Credential={scope}, Signature=0");
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let client = reqwest::blocking::Client::new();
    let answer = client
        .post(MOTO.url())
        .header("authorization", authorization)
        .header("content-type", "application/x-amz-json-1.1")
        .header("x-amz-target", format!("secretsmanager.{operation}"))
        .body(body.to_owned())
        .send()
        .unwrap();
    (answer.status().as_u16(), answer.text().unwrap())
}

#[test]
fn a_json_call_reaches_moto_and_is_counted_by_its_operation() {
    let (own, other) = ("100000000010", "100000000011");
    let secret = r#"{"Name": "a-0", "SecretBinary": "c2VjcmV0"}"#;
    let created = secrets_manager(own, "CreateSecret", secret);
    assert_eq!(created.0, 200, "{}", created.1);

    let read = secrets_manager(own, "GetSecretValue", r#"{"SecretId": "a-0"}"#);

    assert_eq!(read.0, 200, "{}", read.1);
    assert!(
        read.1.contains(r#""SecretBinary": "c2VjcmV0""#),
        "{}",
        read.1
    );
    // The secret does not exist in another account.
    let foreign = secrets_manager(other, "GetSecretValue", r#"{"SecretId": "a-0"}"#);
    assert_ne!(foreign.0, 200, "{}", foreign.1);
    assert!(
        foreign.1.contains("ResourceNotFoundException"),
        "{}",
        foreign.1
    );
    assert_eq!(MOTO.count("GetSecretValue"), 2);
}

#[test]
fn a_public_key_is_refused_as_in_ec2() {
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
