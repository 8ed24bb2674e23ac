//! The identity of a workload cluster. It distinguishes clusters that have used the same name.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;

use super::access::{HardeningError, get};

/// The namespace that exists as long as its cluster. The API server creates it and never deletes it.
const NAMESPACE: &str = "kube-system";

/// The identity of a workload cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadIdentity {
    /// The UID of the namespace `kube-system`.
    pub uid: String,
    /// The creation time of the cluster.
    pub began: SystemTime,
}

/// The identity of the workload cluster, if it already has one.
///
/// # Errors
///
/// The namespace could not be read.
pub async fn read(client: &Client) -> Result<Option<WorkloadIdentity>, HardeningError> {
    let namespace: Option<Namespace> = get(client, NAMESPACE).await?;
    Ok(namespace.and_then(|namespace| {
        Some(WorkloadIdentity {
            uid: namespace.metadata.uid?,
            began: namespace.metadata.creation_timestamp?.0.into(),
        })
    }))
}
