//! The names and addresses of a cluster's machines, by EC2's word.
//!
//! EC2 has no say in a machine whose provider ID is none of AWS's, or names a region that the cluster
//! has no instances in; then nobody is asked.

use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::ServingName;
use node_attestation_core::refusal::Unavailable;

use super::checks::node_name;
use super::place::Place;
use super::{InstanceFacts, Instances, OutageKind};
use crate::policy::AwsPolicy;

impl Instances {
    /// The name of the machine's Node; `None` where EC2 has no say.
    ///
    /// # Errors
    ///
    /// As [`describe`](Self::describe), and where EC2 does not know the instance, or no name of it.
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

    /// The private addresses and the private DNS name of the machine, none if it does not run;
    /// `None` where EC2 has no say.
    ///
    /// # Errors
    ///
    /// As [`describe`](Self::describe), and where EC2 does not know the instance.
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
        let name = facts.private_dns_name.map(|name| name.to_ascii_lowercase());
        Ok(Some(addresses.chain(name.map(ServingName::Dns)).collect()))
    }

    async fn facts<'a>(
        &self,
        policy: &AwsPolicy,
        provider_id: &'a ProviderId,
    ) -> Result<Option<(Place<'a>, InstanceFacts)>, Unavailable> {
        let Some(place) = Place::in_cluster(provider_id, policy) else {
            return Ok(None);
        };
        let described = self.describe(&policy.tenant, place.region, place.instance);
        let facts = described.await?;
        let unknown = || OutageKind::NotFound(place.instance.to_owned()).at(place.region);
        Ok(Some((place, facts.ok_or_else(unknown)?)))
    }
}
