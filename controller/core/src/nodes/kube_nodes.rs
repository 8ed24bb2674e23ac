//! Nodes in a Kubernetes API server.

use std::fmt::{self, Debug};
use std::future::Future;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::{Client, Error as KubeError};
use kubelet_attestation::names::NodeName;

use super::{Node, NodeState, Nodes};
use crate::refusal::Unavailable;

/// For one call. An API server under load answers within its own limit of 60 s for others, not for
/// one small object.
const CALL_DEADLINE: Duration = Duration::from_secs(20);

/// Where kubelets keep their Leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// HTTP status of a deletion of an object that is another by now.
const CONFLICT: u16 = 409;

/// The Nodes of one Kubernetes API server.
///
/// Its user may get and delete Nodes, and get Leases in `kube-node-lease`.
#[derive(Clone)]
pub struct KubeNodes {
    nodes: Api<KubeNode>,
    leases: Api<Lease>,
}

impl KubeNodes {
    /// The Nodes of the API server that `client` speaks to.
    pub fn new(client: Client) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client, LEASE_NAMESPACE),
        }
    }

    async fn read(&self, name: &str) -> Result<NodeState, Unavailable> {
        let Some(node) = in_time(self.nodes.get_opt(name)).await? else {
            return Ok(NodeState::Absent);
        };
        // One of a ready Node too: kube-controller-manager, which would call it down, may be.
        let lease = in_time(self.leases.get_opt(name)).await?;
        Ok(NodeState::Present(Node {
            ready: is_ready(&node),
            uid: node.metadata.uid.unwrap_or_default(),
            lease_renewed: lease.as_ref().and_then(renewed),
        }))
    }

    async fn remove(&self, name: &str, uid: &str) -> Result<(), Unavailable> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let deleted = tokio::time::timeout(CALL_DEADLINE, self.nodes.delete(name, &parameters));
        match deleted.await.map_err(Unavailable::new)? {
            Ok(_) => Ok(()),
            Err(KubeError::Api(status)) if status.is_not_found() || status.code == CONFLICT => {
                Ok(())
            }
            Err(error) => Err(Unavailable::new(error)),
        }
    }
}

fn is_ready(node: &KubeNode) -> bool {
    node.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn renewed(lease: &Lease) -> Option<SystemTime> {
    let time = lease.spec.as_ref()?.renew_time.as_ref()?;
    Some(SystemTime::from(time.0))
}

impl Debug for KubeNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeNodes").finish_non_exhaustive()
    }
}

impl Nodes for KubeNodes {
    fn state<'a>(&'a self, name: &'a NodeName) -> BoxFuture<'a, Result<NodeState, Unavailable>> {
        Box::pin(self.read(name.as_str()))
    }

    fn delete<'a>(
        &'a self,
        name: &'a NodeName,
        uid: &'a str,
    ) -> BoxFuture<'a, Result<(), Unavailable>> {
        Box::pin(self.remove(name.as_str(), uid))
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, KubeError>>) -> Result<T, Unavailable> {
    tokio::time::timeout(CALL_DEADLINE, call)
        .await
        .map_err(Unavailable::new)?
        .map_err(Unavailable::new)
}
