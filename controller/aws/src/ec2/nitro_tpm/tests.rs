//! Tests with the real SDK and moto's EC2, whose instances have software TPMs.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::moto::{Call, Failure, Instance, Moto, Scope};
use kubelet_authenticator_test_support::moto::{NitroTpm, PublicKey};
use node_attestation_core::crd::AwsSettings;
use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384, PublicKeyData as _};

use super::*;
use crate::testing::{PerAccount, tenant};

static MOTO: LazyLock<Moto> = LazyLock::new(Moto::start);

const REGION: &str = "eu-west-1";
const CALLED: &str = "GetInstanceTpmEkPub";
/// The duration of a call to a service that hangs.
const SHORT: Duration = Duration::from_millis(300);

/// The keys of a TPM. The test does not call this TPM.
fn tpm() -> NitroTpm {
    use aws_lc_rs::rsa::{KeySize, PrivateDecryptingKey};
    let key = |der| PublicKey {
        der,
        tpmt: b"not asked for".to_vec(),
    };
    let rsa = PrivateDecryptingKey::generate(KeySize::Rsa2048).unwrap();
    let rsa = aws_lc_rs::encoding::AsDer::as_der(&rsa.public_key()).unwrap();
    let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    NitroTpm {
        rsa: key(rsa.as_ref().to_vec()),
        p384: key(p384.subject_public_key_info()),
    }
}

/// An instance in an account that only this test uses.
fn instance(account: &str) -> Instance {
    MOTO.ec2(account, REGION).run(&[])
}

fn instance_with(account: &str, tpm: &NitroTpm) -> Instance {
    let instance = instance(account);
    MOTO.give_tpm(&instance.id, tpm.clone());
    instance
}

fn limited(limits: CallLimits) -> NitroTpms {
    let endpoints = [REGION, "eu-west-2"].map(|region| (region.to_owned(), MOTO.url()));
    let settings = Ec2Settings {
        endpoints: endpoints.into(),
    };
    NitroTpms::with(Arc::new(PerAccount), settings, limits)
}

/// The TPMs in a cluster whose instances are in this account.
fn cluster(account: &str) -> ClusterTpms {
    cluster_with(account, LIMITS)
}

fn cluster_with(account: &str, limits: CallLimits) -> ClusterTpms {
    limited(limits).of_cluster(instances(), policy(account, &[]))
}

/// The instances of moto.
fn instances() -> Instances {
    let settings = Ec2Settings {
        endpoints: [(REGION.to_owned(), MOTO.url())].into(),
    };
    Instances::new(Arc::new(PerAccount), settings)
}

fn policy(account: &str, regions: &[&str]) -> AwsPolicy {
    let settings = AwsSettings {
        accounts: vec![account.to_owned()],
        regions: regions.iter().map(|&region| region.to_owned()).collect(),
        ..AwsSettings::default()
    };
    AwsPolicy::new(&settings, None).of_tenant(tenant(account).clone())
}

async fn ask(
    cluster: &ClusterTpms,
    provider_id: &str,
    kind: KeyKind,
) -> Result<Option<KeyDigest>, Unavailable> {
    let provider_id = ProviderId::parse(provider_id).unwrap();
    cluster.endorsement_key(&provider_id, kind).await
}

fn provider_id(instance: &Instance) -> String {
    format!("aws:///{}/{}", instance.zone, instance.id)
}

async fn key_of(
    cluster: &ClusterTpms,
    instance: &Instance,
) -> Result<Option<KeyDigest>, Unavailable> {
    ask(cluster, &provider_id(instance), KeyKind::P384).await
}

/// The calls with credentials for this account.
fn calls(account: &str) -> Vec<Call> {
    let calls = MOTO.calls().into_iter();
    calls.filter(|call| call.account == account).collect()
}

fn scope(account: &str) -> Scope {
    Scope::account(account).and_action(CALLED)
}

#[tokio::test]
async fn a_key_of_each_kind_is_matched_to_its_instance() {
    let account = "300000000001";
    let (own, another) = (tpm(), tpm());
    let instance = instance_with(account, &own);
    instance_with(account, &another);
    let cluster = cluster(account);

    for (kind, key, of_another) in [
        (KeyKind::Rsa2048, &own.rsa, &another.rsa),
        (KeyKind::P384, &own.p384, &another.p384),
    ] {
        let told = ask(&cluster, &provider_id(&instance), kind).await;

        let told = told.unwrap().unwrap();
        assert_eq!(told, KeyDigest::of(&key.der), "{kind:?}");
        assert_ne!(told, KeyDigest::of(&of_another.der));
    }
}

#[tokio::test]
async fn the_two_requests_of_a_join_cost_one_permitted_ec2_call() {
    let account = "300000000002";
    let instance = instance_with(account, &tpm());
    let cluster = cluster(account);

    let first = key_of(&cluster, &instance).await.unwrap();
    let second = key_of(&cluster, &instance).await.unwrap();

    assert!(first.is_some() && first == second);
    let [call] = &calls(account)[..] else {
        panic!("{:?}", calls(account))
    };
    assert_eq!((&*call.action, &*call.region), (CALLED, REGION));
    assert_eq!(call.values("InstanceId"), [&*instance.id]);
    let policy = include_str!("../../../../../packaging/aws/controller-policy.json");
    let allowed = format!("{:?}", format!("{}:{CALLED}", call.service));
    assert!(policy.contains(&allowed), "{policy}");
}

#[tokio::test]
async fn the_user_agent_of_each_ec2_call_has_the_controller_version() {
    let account = "300000000025";
    let instance = instance_with(account, &tpm());

    key_of(&cluster(account), &instance).await.unwrap().unwrap();
    let described = instances();
    let described = described.describe(tenant(account), REGION, &instance.id);
    described.await.unwrap().unwrap();

    let name = concat!(
        "app/node-attestation-controller-",
        env!("CARGO_PKG_VERSION")
    );
    for action in ["DescribeInstances", CALLED] {
        let mut calls = calls(account).into_iter();
        let call = calls.find(|call| call.action == action).unwrap();
        let mut words = call.user_agent.split(' ');
        assert!(words.any(|word| word == name), "{action}: {call:?}");
    }
}

#[tokio::test]
async fn a_cached_key_expires() {
    let account = "300000000003";
    let instance = instance_with(account, &tpm());
    let cluster = cluster_with(
        account,
        CallLimits {
            remembered: Duration::ZERO,
            ..LIMITS
        },
    );

    for _ in 0..2 {
        key_of(&cluster, &instance).await.unwrap();
    }

    assert_eq!(calls(account).len(), 2);
}

#[tokio::test]
async fn ec2_is_not_called_for_foreign_providers_regions_and_key_kinds() {
    let account = "300000000004";
    let instance = instance_with(account, &tpm());
    let cluster = limited(LIMITS).of_cluster(instances(), policy(account, &["eu-west-2"]));
    let own = provider_id(&instance);

    for (provider_id, kind) in [
        // The region does not contain instances of the cluster.
        (&*own, KeyKind::P384),
        ("metal:///rack-1/7", KeyKind::P384),
        (&own.replace("eu-west-1", "eu-west-2"), KeyKind::P256),
    ] {
        let told = ask(&cluster, provider_id, kind).await;

        assert_eq!(told.unwrap(), None, "{provider_id}");
    }
    assert!(calls(account).is_empty());
}

#[tokio::test]
async fn an_instance_without_a_tpm_is_queried_until_it_has_a_key() {
    let account = "300000000005";
    let instance = instance(account);
    let cluster = cluster(account);
    assert_eq!(key_of(&cluster, &instance).await.unwrap(), None);

    let tpm = tpm();
    MOTO.give_tpm(&instance.id, tpm.clone());

    let key = Some(KeyDigest::of(&tpm.p384.der));
    assert_eq!(key_of(&cluster, &instance).await.unwrap(), key);
}

#[tokio::test]
async fn an_instance_unknown_to_ec2_is_queried_again() {
    let (account, owner) = ("300000000006", "300000000007");
    let (cluster, tpm) = (cluster(account), tpm());
    let foreign = instance_with(owner, &tpm);
    let young = instance_with(account, &tpm);
    MOTO.hide(&young.id);
    for instance in [&foreign, &young] {
        let told = key_of(&cluster, instance).await.unwrap_err().to_string();

        let id = &instance.id;
        let expected = format!("EC2 in eu-west-1 does not (yet) report the instance {id}");
        assert_eq!(told, expected);
    }

    MOTO.restore(&young.id);
    assert!(key_of(&cluster, &young).await.unwrap().is_some());
}

#[tokio::test]
async fn an_ec2_error_for_a_key_is_reported_as_an_outage_with_its_cause() {
    let account = "300000000008";
    let instance = instance_with(account, &tpm());
    let error = |code| Failure::Error { status: 400, code };
    for (failure, message) in [
        (
            Failure::throttled(),
            "EC2 {} throttles the controller: RequestLimitExceeded",
        ),
        (
            Failure::out_of_order(),
            "EC2 {} returned an error: Unavailable",
        ),
        (
            error("IncorrectInstanceState"),
            "EC2 {} returned an error: IncorrectInstanceState",
        ),
        (
            error("InvalidAction"),
            "EC2 {} returned an error: InvalidAction",
        ),
        (
            Failure::unauthorized(),
            "EC2 {} does not allow the controller to call ec2:GetInstanceTpmEkPub: UnauthorizedOperation",
        ),
        (
            Failure::bad_credentials(),
            "EC2 {} cannot be called with the cluster's AWS credentials: AuthFailure",
        ),
        (
            Failure::expired_credentials(),
            "EC2 {} cannot be called with the cluster's AWS credentials: RequestExpired",
        ),
        (Failure::Cut, "EC2 {} cannot be reached: no connection"),
        (
            Failure::Body("<html>".to_owned()),
            "EC2 {} returned an invalid response: it cannot be parsed",
        ),
    ] {
        MOTO.inject(scope(account), Times::once(), failure.clone());

        let told = key_of(&cluster(account), &instance).await;

        let told = told.unwrap_err().to_string();
        assert_eq!(told, message.replace("{}", "in eu-west-1"), "{failure:?}");
    }
}

#[tokio::test]
async fn a_hanging_key_query_times_out_and_is_retried_later() {
    let account = "300000000009";
    let instance = instance_with(account, &tpm());
    let cluster = cluster_with(
        account,
        CallLimits {
            call: SHORT,
            pause: Duration::ZERO,
            ..LIMITS
        },
    );
    MOTO.inject(scope(account), Times::once(), Failure::Hang);

    let hung = key_of(&cluster, &instance).await.unwrap_err().to_string();

    assert_eq!(hung, "EC2 in eu-west-1 did not respond in time");
    // A response can take longer on a busy machine.
    for _ in 0..100 {
        match key_of(&cluster, &instance).await {
            Err(late) if late.to_string().ends_with("did not respond in time") => {}
            answered => return assert!(answered.unwrap().is_some()),
        }
    }
    panic!("EC2 was called again and did not respond");
}

#[tokio::test]
async fn throttling_pauses_ec2_calls_and_an_error_for_one_instance_does_not() {
    for (account, failure, calls_made) in [
        ("300000000010", Failure::throttled(), 1),
        ("300000000011", Failure::unauthorized(), 2),
        ("300000000012", Failure::out_of_order(), 2),
    ] {
        let (one, other) = (instance(account), instance_with(account, &tpm()));
        let cluster = cluster_with(
            account,
            CallLimits {
                pause: Duration::from_hours(1),
                longest_pause: Duration::from_hours(1),
                ..LIMITS
            },
        );
        MOTO.inject(scope(account), Times::once(), failure.clone());
        let first = key_of(&cluster, &one).await.unwrap_err().to_string();

        let second = key_of(&cluster, &other).await;

        assert_eq!(calls(account).len(), calls_made, "{failure:?}");
        match second {
            Ok(key) => assert!(key.is_some() && calls_made == 2),
            Err(outage) => assert_eq!((outage.to_string(), calls_made), (first, 1)),
        }
    }
}

#[tokio::test]
async fn a_key_query_over_the_rate_limit_waits() {
    let account = "300000000013";
    let instance = instance(account);
    let cluster = cluster_with(
        account,
        CallLimits {
            rate: Rate {
                burst: 1,
                every: Duration::from_hours(1),
            },
            wait: Duration::from_millis(50),
            ..LIMITS
        },
    );
    key_of(&cluster, &instance).await.unwrap();

    let told = key_of(&cluster, &instance).await.unwrap_err().to_string();

    assert_eq!(
        told,
        "EC2 in eu-west-1 is not called now: too many requests are waiting for it"
    );
    assert_eq!(calls(account).len(), 1);
}

#[tokio::test]
async fn a_response_for_another_instance_or_key_is_refused() {
    let account = "300000000014";
    let (instance, tpm) = (instance(account), tpm());
    let answer = |id: &str, kind: &str, format: &str, value: &str| {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><{CALLED}Response \
             xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>0</requestId>\
             <instanceId>{id}</instanceId><keyType>{kind}</keyType>\
             <keyFormat>{format}</keyFormat><keyValue>{value}</keyValue></{CALLED}Response>"
        )
    };
    let (id, p384) = (&*instance.id, "ecc-sec-p384");
    let (key, rsa) = (
        STANDARD.encode(&tpm.p384.der),
        STANDARD.encode(&tpm.rsa.der),
    );
    let other = "i-00000000000000002";
    let not_asked = "it belongs to another instance or key";
    let cluster = cluster(account);
    for (body, why) in [
        (answer(other, p384, "der", &key), not_asked),
        (answer(id, "rsa-2048", "der", &rsa), not_asked),
        (answer(id, p384, "tpmt", &key), not_asked),
        (
            answer(id, p384, "der", &rsa),
            "it does not have the requested key type",
        ),
        (
            answer(id, p384, "der", ""),
            "it does not have the requested key type",
        ),
        (answer(id, p384, "der", "%"), "it is not base64"),
    ] {
        MOTO.inject(scope(account), Times::once(), Failure::Body(body));

        let told = key_of(&cluster, &instance).await.unwrap_err().to_string();

        let expected =
            format!("EC2 in eu-west-1 returned an invalid endorsement key for {id}: {why}");
        assert_eq!(told, expected);
    }
    let good = Failure::Body(answer(id, p384, "der", &key));
    MOTO.inject(scope(account), Times::once(), good);
    let told = key_of(&cluster, &instance).await.unwrap();
    assert_eq!(told, Some(KeyDigest::of(&tpm.p384.der)));
}

mod named;

#[tokio::test]
async fn a_nitro_tpm_platform_has_the_denial_reasons_of_aws() {
    assert_eq!(cluster("444400001111").denials(), AwsDenial::CATALOGUE);
}
