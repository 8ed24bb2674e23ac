//! Tests of machine names and addresses that EC2 reports.

use std::collections::BTreeMap;
use std::time::SystemTime;

use node_attestation_core::crd::AwsNodeName;
use node_attestation_core::refusal::Refusal;

use super::*;
use crate::ec2::{InstanceFacts, Limits};
use crate::testing::{ACCOUNT, FakeEc2, INSTANCE, facts};

async fn name_of(
    cluster: &ClusterTpms,
    provider_id: &str,
) -> Result<Option<NodeName>, Unavailable> {
    let provider_id = ProviderId::parse(provider_id).unwrap();
    cluster.node_name(&provider_id).await
}

#[tokio::test]
async fn the_node_name_follows_ec2_and_the_policy() {
    let account = "300000000021";
    let instance = instance(account);
    for (node_name, expected) in [
        (AwsNodeName::PrivateDnsName, &instance.private_dns_name),
        (AwsNodeName::InstanceId, &instance.id),
    ] {
        let settings = AwsSettings {
            accounts: vec![account.to_owned()],
            node_name,
            ..AwsSettings::default()
        };
        let policy = AwsPolicy::new(&settings, None).of_tenant(tenant(account).clone());
        let cluster = limited(LIMITS).of_cluster(instances(), policy);

        let told = name_of(&cluster, &provider_id(&instance)).await.unwrap();

        assert_eq!(told.unwrap().as_str(), expected);
    }
}

#[tokio::test]
async fn serving_names_come_from_ec2_while_the_instance_runs() {
    let account = "300000000024";
    let instance = instance(account);
    let cluster = cluster(account);
    let id = ProviderId::parse(&provider_id(&instance)).unwrap();

    let told = cluster.serving_names(&id).await.unwrap().unwrap();

    for expected in [
        ServingName::Ip(instance.private_ip.parse().unwrap()),
        ServingName::Dns(instance.private_dns_name.clone()),
    ] {
        assert!(told.contains(&expected), "{expected} is not in {told:?}");
    }
    MOTO.ec2(account, REGION).stop(&instance.id);
    let anew = limited(LIMITS).of_cluster(instances(), policy(account, &[]));
    assert_eq!(anew.serving_names(&id).await.unwrap(), Some(Vec::new()));
}

#[tokio::test]
async fn a_provider_id_outside_the_policy_gets_no_name_from_ec2() {
    let account = "300000000022";
    let instance = instance(account);
    let cluster = limited(LIMITS).of_cluster(instances(), policy(account, &["eu-west-2"]));

    for provider_id in [&*provider_id(&instance), "metal:///rack-1/7"] {
        assert_eq!(name_of(&cluster, provider_id).await.unwrap(), None);
        let provider_id = ProviderId::parse(provider_id).unwrap();
        assert_eq!(cluster.serving_names(&provider_id).await.unwrap(), None);
    }
    assert!(calls(account).is_empty());
}

#[tokio::test]
async fn a_node_waits_for_a_name_until_ec2_reports_its_instance() {
    let account = "300000000023";
    let young = instance(account);
    let cluster = cluster(account);
    MOTO.hide(&young.id);
    let id = provider_id(&young);

    let told = name_of(&cluster, &id).await.unwrap_err().to_string();

    let unknown = format!(
        "EC2 in eu-west-1 does not (yet) report the instance {}",
        young.id
    );
    assert_eq!(told, unknown);
    MOTO.restore(&young.id);
    assert!(name_of(&cluster, &id).await.unwrap().is_some());
}

#[tokio::test]
async fn a_node_whose_instance_has_no_private_dns_name_waits() {
    let ec2 = FakeEc2::with([InstanceFacts {
        private_dns_name: None,
        ..facts()
    }]);
    let instances = Instances::with(Arc::new(PerAccount), Arc::new(ec2), Limits::default());
    let cluster = limited(LIMITS).of_cluster(instances, policy(ACCOUNT, &[]));

    let told = name_of(&cluster, &format!("aws:///eu-west-1a/{INSTANCE}")).await;

    assert_eq!(
        told.unwrap_err().to_string(),
        format!(
            "EC2 in eu-west-1 does not (yet) report a valid node name for the instance {INSTANCE}"
        )
    );
}

/// A source for clusters whose instances are in one region.
#[derive(Debug)]
struct OfRegion(Result<&'static str, ()>);

#[async_trait::async_trait]
impl CredentialsSource for OfRegion {
    async fn credentials(
        &self,
        tenant: &Tenant,
        region: &str,
    ) -> Result<crate::credentials::Credentials, Unavailable> {
        PerAccount.credentials(tenant, region).await
    }

    fn may_be_in(&self, _: &Tenant, region: &str) -> Result<bool, Unavailable> {
        let own = self.0.map_err(|()| Unavailable::new("not read"));
        own.map(|own| own == region)
    }
}

/// The facts that the attestor `tpm` gets about an instance in a cluster that has this policy.
async fn checked_in(
    policy: AwsPolicy,
    facts: InstanceFacts,
    region: Result<&'static str, ()>,
    provider_id: &str,
) -> Result<(), Refusal> {
    let now = facts.launched.unwrap_or(SystemTime::UNIX_EPOCH) + Duration::from_hours(1);
    let ec2 = FakeEc2::with([facts]);
    let instances = Instances::with(Arc::new(PerAccount), Arc::new(ec2), Limits::default());
    let tpms = NitroTpms::with(Arc::new(OfRegion(region)), Ec2Settings::default(), LIMITS);
    let cluster = tpms.of_cluster(instances, policy);
    let provider_id = ProviderId::parse(provider_id).unwrap();
    cluster.check(&provider_id, now).await
}

async fn checked(policy: AwsPolicy, facts: InstanceFacts) -> Result<(), Refusal> {
    let id = format!("aws:///eu-west-1a/{INSTANCE}");
    checked_in(policy, facts, Ok(REGION), &id).await
}

fn reason(checked: Result<(), Refusal>) -> String {
    match checked.unwrap_err() {
        Refusal::Deny(denial) => denial.reason().to_owned(),
        Refusal::Retry(deferral) => deferral.reason().to_owned(),
        Refusal::Fail(failure) => panic!("{failure:?}"),
    }
}

/// A policy that requires an ownership tag, which `facts` contains.
fn owned() -> (AwsPolicy, InstanceFacts) {
    let tag = "sigs.k8s.io/cluster-api-provider-aws/cluster/prod".to_owned();
    let facts = InstanceFacts {
        tags: [(tag, "owned".to_owned())].into(),
        ..facts()
    };
    let policy = AwsPolicy {
        cluster: Some("prod".to_owned()),
        ..policy(ACCOUNT, &[REGION])
    };
    (policy, facts)
}

#[tokio::test]
async fn a_nitro_tpm_whose_instance_fails_a_check_is_denied() {
    let (policy, facts) = owned();
    checked(policy.clone(), facts.clone()).await.unwrap();

    let with = |change: &dyn Fn(&mut AwsSettings)| {
        let mut policy = policy.clone();
        change(&mut policy.settings);
        policy
    };
    let accounts = with(&|settings| settings.accounts = vec!["999999999999".to_owned()]);
    let regions = with(&|settings| settings.regions = vec!["eu-west-2".to_owned()]);
    let tags = with(&|settings| {
        settings.required_tags = [("team".to_owned(), "a".to_owned())].into();
    });
    for (policy, expected) in [
        (accounts, "AccountNotAllowed"),
        (regions, "RegionNotAllowed"),
        (tags, "TagMismatch"),
    ] {
        assert_eq!(reason(checked(policy, facts.clone()).await), expected);
    }

    let untagged = InstanceFacts {
        tags: BTreeMap::new(),
        ..facts.clone()
    };
    let of_another = InstanceFacts {
        owner: "999999999999".to_owned(),
        ..facts.clone()
    };
    let stopped = InstanceFacts {
        state: "stopped".to_owned(),
        ..facts.clone()
    };
    for (facts, expected) in [
        (untagged, "TagMismatch"),
        (of_another, "AccountNotAllowed"),
        (stopped, "InstanceNotRunning"),
    ] {
        assert_eq!(reason(checked(policy.clone(), facts).await), expected);
    }
}

#[tokio::test]
async fn a_tpm_in_a_foreign_region_is_denied_and_waits_during_an_outage() {
    let (policy, facts) = owned();
    let id = format!("aws:///eu-west-1a/{INSTANCE}");
    for (region, expected) in [
        (Ok("eu-west-2"), "RegionNotAllowed"),
        (Err(()), "VerifierUnavailable"),
    ] {
        let checked = checked_in(policy.clone(), facts.clone(), region, &id).await;
        assert_eq!(reason(checked), expected);
    }
    let metal = checked_in(policy.clone(), facts.clone(), Err(()), "metal:///rack-1/7").await;
    metal.unwrap();
    // This provider ID would be a second identity of the same instance.
    let elsewhere = format!("aws:///eu-west-1b/{INSTANCE}");
    let checked = checked_in(policy, facts, Ok(REGION), &elsewhere).await;
    assert_eq!(reason(checked), "InstanceContradictsDocument");
}
