//! The identity of a workload cluster: another one under the same name is another cluster.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;

use super::access::{HardeningError, get};

/// The namespace that exists as long as its cluster. The API server creates it, and deletes it for nobody.
const NAMESPACE: &str = "kube-system";

/// The identity of a workload cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadIdentity {
    /// The UID of the namespace `kube-system`.
    pub uid: String,
    /// The beginning of the cluster.
    pub began: SystemTime,
}

/// The identity of the workload cluster, if it has one already.
///
/// # Errors
///
/// It could not be read.
pub async fn read(client: &Client) -> Result<Option<WorkloadIdentity>, HardeningError> {
    let namespace: Option<Namespace> = get(client, NAMESPACE).await?;
    Ok(namespace.and_then(|namespace| {
        Some(WorkloadIdentity {
            uid: namespace.metadata.uid?,
            began: namespace.metadata.creation_timestamp?.0.into(),
        })
    }))
}
