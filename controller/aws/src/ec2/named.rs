//! The names and addresses of a cluster's machines, as reported by EC2.
//!
//! EC2 is not called for a machine whose provider ID is not an AWS ID, or whose region is not allowed for the cluster.

use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::ServingName;
use node_attestation_core::refusal::{Deferral, Denial, Refusal, Unavailable};
use node_attestation_core::verifier::{Foresight, Identity};

use super::checks::{Expected, check_expected, check_region, check_whole, node_name};
use super::place::InstancePlace;
use super::{InstanceFacts, Instances, OutageKind};
use crate::credentials::CredentialsSource;
use crate::policy::AwsPolicy;

impl Instances {
    /// Returns the name of the machine's Node. `None` if EC2 does not determine the name.
    ///
    /// # Errors
    ///
    /// The same errors as for [`describe`](Self::describe). Also returns an error if EC2 does not list the instance, or
    /// does not report a name for the instance.
    pub(crate) async fn node_name(
        &self,
        policy: &AwsPolicy,
        provider_id: &ProviderId,
    ) -> Result<Option<NodeName>, Unavailable> {
        let Some((place, facts)) = self.facts(policy, provider_id).await? else {
            return Ok(None);
        };
        let name = node_name(&facts, policy.settings.node_name);
        let unnamed = || OutageKind::Unnamed(place.instance.to_owned()).at(place.region);
        Ok(Some(name.ok_or_else(unnamed)?))
    }

    /// Returns the addresses and the DNS names of all interfaces of the machine. Empty if the machine is not running.
    /// `None` if EC2 does not determine them.
    ///
    /// # Errors
    ///
    /// The same errors as for [`describe`](Self::describe). Also returns an error if EC2 does not list the instance.
    pub(crate) async fn serving_names(
        &self,
        policy: &AwsPolicy,
        provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        let Some((_, facts)) = self.facts(policy, provider_id).await? else {
            return Ok(None);
        };
        if !facts.is_running() {
            return Ok(Some(Vec::new()));
        }
        let addresses = facts.addresses.into_iter().map(ServingName::Ip);
        let names = facts.dns_names.into_iter().map(ServingName::Dns);
        Ok(Some(addresses.chain(names).collect()))
    }

    /// Checks that the machine can belong to the cluster, as the attestation provider `aws` does for a document's
    /// instance. Accepts a machine that is not an AWS instance.
    ///
    /// # Errors
    ///
    /// Returns a denial of the attestation provider `aws`, or a [`Deferral`] if EC2 cannot be called or does not list
    /// the instance.
    pub(super) async fn check(
        &self,
        source: &dyn CredentialsSource,
        policy: &AwsPolicy,
        provider_id: &ProviderId,
        now: SystemTime,
    ) -> Result<(), Refusal> {
        let Some(place) = InstancePlace::of(provider_id) else {
            return Ok(());
        };
        let judge = |facts: &InstanceFacts, expected: Expected<'_>| {
            check_expected(facts, expected, policy, now)
        };
        self.judged(source, policy, place, judge).await
    }

    /// Applies `judge` to EC2's description of the instance at this place.
    async fn judged<T>(
        &self,
        source: &dyn CredentialsSource,
        policy: &AwsPolicy,
        place: InstancePlace<'_>,
        judge: impl FnOnce(&InstanceFacts, Expected<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        check_region(source, policy, place.region)?;
        let unavailable = Deferral::VerifierUnavailable;
        let asked = self.expect(&policy.tenant, place.region).await;
        let asked = asked.map_err(unavailable)?;
        let account = asked.account().map(ToOwned::to_owned);
        let facts = asked.describe(place.instance).await.map_err(unavailable)?;
        let unknown = || OutageKind::NotFound(place.instance.to_owned()).at(place.region);
        let facts = facts.ok_or_else(|| unavailable(unknown()))?;
        policy.accepts_place(&facts.owner, place.region)?;
        let not_yet = || Deferral::InstanceNotVisible(place.instance.to_owned());
        let expected = Expected {
            instance: place.instance,
            account: account.as_deref().unwrap_or(&facts.owner),
            zone: place.zone,
            launched: facts.launched.ok_or_else(not_yet)?,
        };
        judge(&facts, expected)
    }

    /// Returns the identity of an existing machine without its document, and whether EC2 has more facts about it.
    /// `None` if its provider ID is not an AWS ID, because such a machine cannot have evidence.
    ///
    /// # Errors
    ///
    /// Returns a denial of the attestation provider `aws`, or a [`Deferral`] if the instance is young.
    pub(crate) async fn foresee(
        &self,
        policy: &AwsPolicy,
        provider_id: &ProviderId,
        now: SystemTime,
    ) -> Result<Option<Foresight>, Refusal> {
        let Some(place) = InstancePlace::of(provider_id) else {
            return Ok(None);
        };
        let mut foresight = Foresight::of(Identity {
            instance: Some(place.instance.to_owned()),
            ..Identity::of(provider_id.clone())
        });
        let judge = |facts: &InstanceFacts, expected: Expected<'_>| {
            check_whole(facts, expected, policy, now)
        };
        let judged = self.judged(self.source(), policy, place, judge).await;
        if let Some(checked) = foresight.and(judged)? {
            foresight.identity.node_name = Some(checked.node_name);
            foresight.first_claim_only = checked.first_claim_only.map(Denial::from);
        }
        Ok(Some(foresight))
    }

    async fn facts<'a>(
        &self,
        policy: &AwsPolicy,
        provider_id: &'a ProviderId,
    ) -> Result<Option<(InstancePlace<'a>, InstanceFacts)>, Unavailable> {
        let Some(place) = InstancePlace::in_cluster(provider_id, policy) else {
            return Ok(None);
        };
        let described = self.describe(&policy.tenant, place.region, place.instance);
        let facts = described.await?;
        let unknown = || OutageKind::NotFound(place.instance.to_owned()).at(place.region);
        Ok(Some((place, facts.ok_or_else(unknown)?)))
    }
}
