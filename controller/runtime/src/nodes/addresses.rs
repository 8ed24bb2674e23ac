//! What nodes report of themselves, read from the API server.

use std::time::Duration;

use futures::future::FutureExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use kubelet_attestation::names::NodeName;
use node_attestation_core::identifiers::ServingName;
use node_attestation_core::refusal::{Answer, Unavailable};
use node_attestation_core::serving::NodeReportedAddresses;
use serde::Deserialize;

use crate::client::in_time;
use crate::watch::Lenient;

/// For one look at a Node.
const DEADLINE: Duration = Duration::from_secs(10);

/// `Node.status.addresses` of the cluster that a client speaks to.
#[derive(Debug)]
pub struct KubeNodeAddresses(Api<Lenient<ReadNode, Node>>);

/// What is read of a Node: whoever is on a node writes its status, times included.
#[derive(Debug, Clone, Deserialize)]
struct ReadNode {
    status: Option<ReadStatus>,
}

#[derive(Debug, Clone, Deserialize)]
struct ReadStatus {
    addresses: Option<Vec<ReadAddress>>,
}

#[derive(Debug, Clone, Deserialize)]
struct ReadAddress {
    address: String,
}

impl KubeNodeAddresses {
    /// Reads with this client.
    pub fn new(client: Client) -> Self {
        Self(Api::all(client))
    }

    async fn read(&self, node_name: &NodeName) -> Result<Vec<ServingName>, Unavailable> {
        let node = in_time(DEADLINE, self.0.get_opt(node_name.as_str())).await?;
        let node = node.map(|node| node.object).transpose();
        let status = node.map_err(Unavailable::new)?.and_then(|node| node.status);
        let addresses = status.and_then(|status| status.addresses);
        let addresses = addresses.into_iter().flatten();
        Ok(addresses.map(serving_name).collect())
    }
}

fn serving_name(ReadAddress { address }: ReadAddress) -> ServingName {
    address
        .parse()
        .map_or_else(|_| ServingName::Dns(address.clone()), ServingName::Ip)
}

impl NodeReportedAddresses for KubeNodeAddresses {
    fn names<'a>(&'a self, node_name: &'a NodeName) -> Answer<'a, Vec<ServingName>> {
        self.read(node_name).boxed()
    }
}
