//! Tests with the real SDK and moto's EC2.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::credential_fn::provide_credentials_fn;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_credential_types::provider::error::CredentialsError;
use futures::future::join_all;
use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::moto::{Failure, Field, Instance, Moto, Scope};
use node_attestation_core::crd::{AwsNodeName, AwsSettings};
use node_attestation_core::inventory::Inventory as _;
use node_attestation_core::refusal::{Denial, Refusal, Unavailable};

mod sessions;

use super::*;
use crate::credentials::{Credentials, CredentialsKey, CredentialsSource, Lease, Tenant};
use crate::denial::AwsDenial;
use crate::document::VerifiedDocument;
use crate::inventory::{InventorySettings, Place, TaggedInstances};
use crate::policy::AwsPolicy;
use crate::testing::{PerAccount, tenant};

static MOTO: LazyLock<Moto> = LazyLock::new(Moto::start);

const REGION: &str = "eu-west-1";
const OWNED: (&str, &str) = ("sigs.k8s.io/cluster-api-provider-aws/cluster/prod", "owned");
const MINUTE: Duration = Duration::from_mins(1);
/// The duration of a call to a service that hangs.
const SHORT: Duration = Duration::from_millis(300);

fn instances() -> Instances {
    limited(Limits::default())
}

fn limited(limits: Limits) -> Instances {
    let endpoints = [REGION, "eu-west-2"].map(|region| (region.to_owned(), MOTO.url()));
    let settings = Ec2Settings {
        endpoints: endpoints.into(),
    };
    Instances::with(Arc::new(PerAccount), Arc::new(Ec2::new(settings)), limits)
}

/// An instance in the cluster `prod`, in an account that only this test uses.
fn instance(account: &str) -> Instance {
    MOTO.ec2(account, REGION).run(&[OWNED])
}

async fn described(instance: &Instance) -> Option<InstanceFacts> {
    let instances = instances();
    let described = instances.describe(tenant(&instance.account), REGION, &instance.id);
    described.await.unwrap()
}

/// The document from the latest launch of the instance.
fn document(instance: &Instance, facts: &InstanceFacts) -> VerifiedDocument {
    VerifiedDocument {
        account: instance.account.clone(),
        region: REGION.to_owned(),
        availability_zone: instance.zone.clone(),
        instance: instance.id.clone(),
        pending_time: facts.launched.unwrap(),
        digest: [1; 32],
    }
}

/// The result for an instance one hour after the launch that its document describes.
fn checked(facts: &InstanceFacts, document: &VerifiedDocument) -> Result<Checked, Refusal> {
    let policy = AwsPolicy::new(&AwsSettings::default(), Some("prod".to_owned()));
    check(
        facts,
        document,
        &policy,
        document.pending_time + 60 * MINUTE,
    )
}

#[track_caller]
fn denied(checked: Result<Checked, Refusal>) -> AwsDenial {
    match checked {
        Err(Refusal::Deny(Denial::Evidence(denial))) => {
            denial.downcast_ref::<AwsDenial>().unwrap().clone()
        }
        other => panic!("not denied: {other:?}"),
    }
}

/// The calls with credentials for this account.
fn calls(account: &str) -> Vec<kubelet_authenticator_test_support::moto::Call> {
    let calls = MOTO.calls().into_iter();
    calls.filter(|call| call.account == account).collect()
}

#[tokio::test]
async fn the_facts_of_an_instance_are_read_from_ec2() {
    let instance = instance("200000000001");

    let facts = described(&instance).await.unwrap();

    assert_eq!(facts.id, instance.id);
    assert_eq!(facts.owner, instance.account);
    assert_eq!(facts.state, "running");
    assert_eq!(facts.zone, "eu-west-1a");
    assert_eq!(
        facts.private_dns_name.as_ref(),
        Some(&instance.private_dns_name)
    );
    let private: IpAddr = instance.private_ip.parse().unwrap();
    assert!(facts.addresses.contains(&private), "{facts:?}");
    assert!(facts.dns_names.contains(&instance.private_dns_name));
    assert_eq!(facts.tags.get(OWNED.0).map(String::as_str), Some("owned"));
    let RootDevice::Volume(Some(Attachment { time: Some(_) })) = facts.root else {
        panic!("{:?}", facts.root)
    };
    assert!(facts.first_interface.unwrap().time.is_some());
    let checked = checked(&facts, &document(&instance, &facts)).unwrap();
    assert_eq!(checked.node_name.as_str(), instance.private_dns_name);
    assert_eq!(checked.first_claim_only, None);
}

#[tokio::test]
async fn two_hundred_joins_cost_four_calls_and_only_allowed_actions() {
    let account = "200000000002";
    let fleet = MOTO.ec2(account, REGION).run_many(200, &[OWNED]);
    let instances = instances();

    let asked = fleet
        .iter()
        .map(|one| instances.describe(tenant(account), REGION, &one.id));
    let answers = join_all(asked).await;

    for (instance, answer) in fleet.iter().zip(answers) {
        assert_eq!(answer.unwrap().unwrap().id, instance.id);
    }
    let calls = calls(account);
    assert!(calls.len() <= 4, "{} calls", calls.len());
    let mut called: BTreeSet<_> = calls
        .iter()
        .map(|call| format!("{}:{}", call.service, call.action))
        .collect();
    let policy = include_str!("../../../../packaging/aws/controller-policy.json");
    let policy: serde_json::Value = serde_json::from_str(policy).unwrap();
    let statements = policy["Statement"].as_array().unwrap().iter();
    let allowed: BTreeSet<_> = statements
        .map(|statement| {
            assert_eq!(statement["Effect"], "Allow");
            statement["Action"].as_str().unwrap().to_owned()
        })
        .collect();
    // The other permission is for NitroTPMs.
    let tpm = "ec2:GetInstanceTpmEkPub".to_owned();
    called.insert(tpm);
    assert_eq!(called, allowed);
}

#[tokio::test]
async fn an_unknown_instance_does_not_affect_other_instances_in_a_call() {
    let instance = instance("200000000003");
    let instances = instances();
    let ask = |id: &'static str| instances.describe(tenant(&instance.account), REGION, id);

    let (known, unknown, odd) = futures::join!(
        instances.describe(tenant(&instance.account), REGION, &instance.id),
        ask("i-0123456789abcdef0"),
        ask("no instance at all"),
    );

    assert_eq!(known.unwrap().unwrap().id, instance.id);
    assert_eq!((unknown.unwrap(), odd.unwrap()), (None, None));
    assert_eq!(calls(&instance.account).len(), 1);
}

#[tokio::test]
async fn an_instance_in_another_account_or_region_is_not_found() {
    let instance = instance("200000000004");
    let instances = instances();

    let elsewhere = instances
        .describe(tenant("200000000005"), REGION, &instance.id)
        .await;
    assert_eq!(elsewhere.unwrap(), None);
    let elsewhere = instances
        .describe(tenant(&instance.account), "eu-west-2", &instance.id)
        .await;
    assert_eq!(elsewhere.unwrap(), None);
}

#[tokio::test]
async fn an_ec2_error_is_reported_as_an_outage_with_its_cause() {
    let account = "200000000006";
    let region = "in eu-west-1";
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
            Failure::unauthorized(),
            "EC2 {} does not allow the controller to call ec2:DescribeInstances: UnauthorizedOperation",
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
        MOTO.inject(Scope::account(account), Times::once(), failure.clone());

        let described = instances()
            .describe(tenant(account), REGION, "i-0123456789abcdef0")
            .await;

        let told = described.unwrap_err().to_string();
        assert_eq!(told, message.replace("{}", region), "{failure:?}");
    }
}

#[tokio::test]
async fn a_hanging_ec2_call_times_out_and_is_retried_later() {
    let account = "200000000007";
    let instance = instance(account);
    let mut limits = Limits::default();
    limits.calls.call = SHORT;
    limits.calls.pause = Duration::ZERO;
    let instances = limited(limits);
    MOTO.inject(Scope::account(account), Times::once(), Failure::Hang);

    let hung = instances
        .describe(tenant(account), REGION, &instance.id)
        .await;

    assert_eq!(
        hung.unwrap_err().to_string(),
        "EC2 in eu-west-1 did not respond in time"
    );
    // A response can take longer on a busy machine.
    for _ in 0..100 {
        match instances
            .describe(tenant(account), REGION, &instance.id)
            .await
        {
            Err(late) if late.to_string().ends_with("did not respond in time") => {}
            answered => return assert!(answered.unwrap().is_some()),
        }
    }
    panic!("EC2 was called again and did not respond");
}

#[tokio::test]
async fn a_stopped_or_terminated_instance_is_denied_despite_its_document() {
    let instance = instance("200000000008");
    let ec2 = MOTO.ec2(&instance.account, REGION);
    let document = document(&instance, &described(&instance).await.unwrap());

    ec2.stop(&instance.id);
    let facts = described(&instance).await.unwrap();
    assert_eq!(
        denied(checked(&facts, &document)).reason(),
        "InstanceNotRunning"
    );
    ec2.terminate(&instance.id);
    let facts = described(&instance).await.unwrap();
    assert_eq!(
        denied(checked(&facts, &document)).reason(),
        "InstanceNotRunning"
    );
}

#[tokio::test]
async fn a_root_volume_attached_at_another_time_is_detected() {
    let instance = instance("200000000009");
    MOTO.amend(
        &instance.id,
        Field::RootAttached,
        "2026-01-01T00:00:00.000Z",
    );

    let facts = described(&instance).await.unwrap();

    let checked = checked(&facts, &document(&instance, &facts)).unwrap();
    assert_eq!(
        checked.first_claim_only.unwrap().reason(),
        "RootVolumeMoved"
    );
}

#[tokio::test]
async fn a_missing_or_wrong_interface_0_is_detected() {
    for (field, value, account) in [
        (Field::Interfaces, "", "200000000010"),
        (Field::InterfaceIndex, "1", "200000000011"),
    ] {
        let instance = instance(account);
        MOTO.amend(&instance.id, field, value);

        let facts = described(&instance).await.unwrap();

        let denied = denied(checked(&facts, &document(&instance, &facts)));
        assert_eq!(denied.reason(), "InstanceIncomplete");
    }
}

#[tokio::test]
async fn an_instance_that_changes_its_cluster_is_denied() {
    let instance = instance("200000000012");
    let ec2 = MOTO.ec2(&instance.account, REGION);
    ec2.untag(&instance.id, OWNED.0);
    ec2.tag(
        &instance.id,
        "sigs.k8s.io/cluster-api-provider-aws/cluster/dev",
        "owned",
    );

    let facts = described(&instance).await.unwrap();

    let denied = denied(checked(&facts, &document(&instance, &facts)));
    assert_eq!(denied.reason(), "TagMismatch");
}

#[tokio::test]
async fn an_instance_store_root_is_recognized() {
    let instance = instance("200000000013");
    MOTO.amend(&instance.id, Field::RootDeviceType, "instance-store");
    MOTO.amend(&instance.id, Field::Volumes, "");

    assert_eq!(
        described(&instance).await.unwrap().root,
        RootDevice::InstanceStore
    );
}

#[tokio::test]
async fn instances_are_found_by_their_tags() {
    // The controller's own account.
    let account = crate::testing::ACCOUNT;
    let ec2 = MOTO.ec2(account, REGION);
    let own = ec2.run(&[("cluster", "prod"), ("role", "worker")]);
    ec2.run(&[("cluster", "dev"), ("role", "worker")]);
    ec2.run(&[("cluster", "prod")]);
    let tags = [("cluster", "prod"), ("role", "worker")];
    let settings = InventorySettings {
        places: vec![Place {
            account: account.to_owned(),
            region: REGION.to_owned(),
        }],
        tags: tags
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        node_name: AwsNodeName::InstanceId,
    };
    let inventory = TaggedInstances::new(instances(), settings).unwrap();

    let found = inventory
        .by_address(own.private_ip.parse().unwrap())
        .await
        .unwrap();

    assert_eq!(found.len(), 1);
    assert_eq!(found[0].node_name.as_ref().unwrap().as_str(), own.id);
    assert_eq!(calls(account).len(), 1);
}

#[derive(Debug)]
struct NoCredentials;

#[async_trait::async_trait]
impl CredentialsSource for NoCredentials {
    async fn credentials(&self, _: &Tenant, _region: &str) -> Result<Credentials, Unavailable> {
        let none = || async { Err(CredentialsError::not_loaded_no_source()) };
        let provider = SharedCredentialsProvider::new(provide_credentials_fn(none));
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(provider)
            .build();
        let key = CredentialsKey::new([1; 32]);
        Ok(Credentials {
            key,
            config,
            account: None,
            lease: Lease::Endless,
        })
    }
}

#[tokio::test]
async fn missing_credentials_are_reported_as_an_outage_without_a_call() {
    let settings = Ec2Settings {
        endpoints: [(REGION.to_owned(), MOTO.url())].into(),
    };
    let instances = Instances::new(Arc::new(NoCredentials), settings);

    let told = instances
        .describe(tenant("200000000015"), REGION, "i-0123456789abcdef0")
        .await;

    assert_eq!(
        told.unwrap_err().to_string(),
        "EC2 in eu-west-1 cannot be called with the cluster's AWS credentials: no credentials were found"
    );
    assert!(calls("200000000015").is_empty());
}

#[test]
fn debug_output_contains_no_credentials() {
    let credentials = crate::testing::credentials(1, "AKIASHOWN");

    let shown = format!("{credentials:?} {:?}", instances());

    assert!(
        !shown.contains("AKIASHOWN") && !shown.contains("secret"),
        "{shown}"
    );
}
