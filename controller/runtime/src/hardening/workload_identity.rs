//! The identity of a workload cluster, which distinguishes it from earlier clusters with the same name.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;

use super::access::{HardeningError, get};

/// A namespace that exists as long as the cluster: the API server creates it and never deletes it.
const NAMESPACE: &str = "kube-system";

/// The maximum length of a UID. The UID is stored in memory and written to the management cluster. Kubernetes UIDs have
/// 36 characters.
const MAX_UID_LEN: usize = 64;

/// The identity of a workload cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadIdentity {
    /// The UID of the namespace `kube-system`.
    pub uid: String,
    /// The creation time of the cluster.
    pub began: SystemTime,
}

/// Reads the identity of the workload cluster. `None` if the namespace does not exist yet.
///
/// # Errors
///
/// Returns an error if the namespace could not be read.
pub async fn read(client: &Client) -> Result<Option<WorkloadIdentity>, HardeningError> {
    let namespace: Option<Namespace> = get(client, NAMESPACE).await?;
    Ok(namespace.and_then(|namespace| {
        Some(WorkloadIdentity {
            uid: namespace
                .metadata
                .uid
                .filter(|uid| uid.len() <= MAX_UID_LEN)?,
            began: namespace.metadata.creation_timestamp?.0.into(),
        })
    }))
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::Response;
    use hyper::body::Bytes;
    use serde_json::json;

    use super::*;
    use crate::client::ClusterAccess;

    #[tokio::test]
    async fn a_uid_longer_than_those_of_kubernetes_is_no_identity() {
        for (len, is_known) in [(MAX_UID_LEN, true), (MAX_UID_LEN + 1, false)] {
            let created = "2026-01-01T00:00:00Z";
            let metadata = json!({"uid": "u".repeat(len), "creationTimestamp": created});
            let namespace = json!({"metadata": metadata}).to_string();
            let access = ClusterAccess::in_memory(move |_| {
                let answer = Response::new(Full::new(Bytes::from(namespace.clone())));
                async move { answer }
            });

            let identity = read(access.client()).await.unwrap();

            assert_eq!(identity.is_some(), is_known, "{len}");
        }
    }
}
