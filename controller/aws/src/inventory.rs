//! The machines of a cluster without Cluster API: the instances that have the cluster's tags.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::ensure;
use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::AwsNodeName;
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::{
    Inventory, Machine, MachineState, StaticInventory, TokenOwner,
};
use node_attestation_core::refusal::Unavailable;
use node_attestation_runtime::shared::Turnstile;
use tokio::time::Instant;

use crate::credentials::Tenant;
use crate::ec2::{InstanceFacts, Instances, node_name};

/// The time for which a list of instances is used.
const FRESH: Duration = Duration::from_secs(30);

/// The minimum age of a list before a missing instance is looked up again.
const LOOKED_JUST_NOW: Duration = Duration::from_secs(3);

/// The instances that have all tags of a cluster, in the cluster's accounts and regions.
///
/// The name of a machine is its instance ID. Bootstrap tokens do not belong to a machine.
///
/// # Guarantees
///
/// - A machine is reported as missing only if it is not in any list from the last few seconds. Incomplete lists are not
///   used.
/// - An instance is ignored if its account does not match its place.
#[derive(Debug)]
pub struct TaggedInstances {
    instances: Instances,
    settings: InventorySettings,
    /// The last list, and the time of its request. Not shared: a process with this inventory has only one cluster.
    listed: Turnstile<Option<(Instant, Arc<StaticInventory>)>>,
}

/// The settings that select a cluster's instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventorySettings {
    /// The accounts and regions of the instances.
    pub places: Vec<Place>,
    /// The tags and values that the instances must have.
    pub tags: BTreeMap<String, String>,
    /// The kind of name for an instance's Node.
    pub node_name: AwsNodeName,
}

/// An account and region that can have instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The account.
    pub account: String,
    /// The region.
    pub region: String,
}

/// The reason why the settings do not select a cluster's instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidInventory {
    /// Without tags, the settings would select all instances of an account.
    #[error("no tag identifies the instances of the cluster")]
    NoTags,
    /// The settings have no account and region.
    #[error(
        "the settings do not contain an account and a region, which are required to list instances"
    )]
    NoPlaces,
}

impl TaggedInstances {
    /// Creates the inventory with these settings.
    pub fn new(
        instances: Instances,
        settings: InventorySettings,
    ) -> Result<Self, InvalidInventory> {
        ensure!(!settings.tags.is_empty(), InvalidInventory::NoTags);
        ensure!(!settings.places.is_empty(), InvalidInventory::NoPlaces);
        Ok(Self {
            instances,
            settings,
            listed: Turnstile::default(),
        })
    }

    /// Returns a list that is not older than `oldest`. Concurrent callers wait for the same list.
    async fn listed(&self, oldest: Duration) -> Result<Arc<StaticInventory>, Unavailable> {
        let asked = Instant::now();
        let mut listed = self.listed.lock().await;
        if let Some((at, machines)) = &*listed
            && (*at >= asked || asked.duration_since(*at) <= oldest)
        {
            return Ok(machines.clone());
        }
        let at = Instant::now();
        let machines = Arc::new(self.list().await?);
        *listed = Some((at, machines.clone()));
        Ok(machines)
    }

    async fn list(&self) -> Result<StaticInventory, Unavailable> {
        let InventorySettings {
            places,
            tags,
            node_name,
        } = &self.settings;
        let mut machines = Vec::new();
        for Place { account, region } in places {
            let found = self
                .instances
                .tagged(&Tenant::Controller, region, tags)
                .await?;
            let own = found.iter().filter(|facts| facts.owner == *account);
            machines.extend(own.filter_map(|facts| machine(facts, *node_name)));
        }
        StaticInventory::new(machines).map_err(Unavailable::new)
    }
}

/// The machine for an instance. `None` if the instance is terminated.
fn machine(facts: &InstanceFacts, policy: AwsNodeName) -> Option<Machine> {
    let state = match &*facts.state {
        "terminated" => return None,
        "shutting-down" => MachineState::Deleting,
        // A stopped instance can be started again, so it keeps its name.
        _ => MachineState::Ready,
    };
    let mut machine = Machine::new(&facts.id);
    machine.state = state;
    machine.provider_id = ProviderId::parse(&format!("aws:///{}/{}", facts.zone, facts.id)).ok();
    // A different instance might already have the name.
    if state == MachineState::Ready {
        machine.node_name = node_name(facts, policy);
    }
    machine.addresses.clone_from(&facts.addresses);
    machine.dns_names.clone_from(&facts.dns_names);
    Some(machine)
}

#[async_trait::async_trait]
impl Inventory for TaggedInstances {
    async fn by_provider_id(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Machine>, Unavailable> {
        let listed = self.listed(FRESH).await?;
        let found = listed.by_provider_id(provider_id).await?;
        if found.is_some() {
            return Ok(found);
        }
        let listed = self.listed(LOOKED_JUST_NOW).await?;
        listed.by_provider_id(provider_id).await
    }

    async fn by_token(&self, _token: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        Ok(None)
    }

    async fn by_address(&self, address: IpAddr) -> Result<Vec<Machine>, Unavailable> {
        self.listed(FRESH).await?.by_address(address).await
    }

    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable> {
        self.listed(FRESH).await?.by_name(name).await
    }
}

#[cfg(test)]
mod tests;
