//! The Clusters in a management cluster and their `KubeletAuthentication`s, for users.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::ApiResource;
use node_attestation_core::crd::KubeletAuthentication;
use serde::Serialize;

use crate::capi::{ObjectKey, cluster_resource};
use crate::client::{CallError, ClusterAccess, call};
use crate::watch::{Custom, Lenient, NoFields, all_metadata_of, all_of};

/// A Cluster, and the resource that defines which machines are allowed to join it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ClusterState {
    /// The namespace of the Cluster.
    pub namespace: String,
    /// The name of the Cluster.
    pub name: String,
    /// The `KubeletAuthentication`. Without this resource, the controller does not serve the Cluster.
    pub kubelet_authentication: Option<KubeletAuthentication>,
    /// The reason why the `KubeletAuthentication` cannot be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// The Clusters could not be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterStatesError {
    /// Cluster API is not installed.
    #[error(
        "the management cluster does not serve a supported version of Cluster: is Cluster API installed?"
    )]
    NoClusterApi,
    /// A list was rejected or failed.
    #[error("cannot list {of}")]
    List {
        /// The kind.
        of: &'static str,
        /// The reason.
        source: CallError,
    },
}

/// All Clusters, or only the Clusters in one namespace, sorted.
///
/// # Errors
///
/// Returns an error if the Clusters or the `KubeletAuthentication`s could not be read.
pub async fn list(
    management: &ClusterAccess,
    namespace: Option<&str>,
) -> Result<Vec<ClusterState>, ClusterStatesError> {
    let client = management.client();
    let failed = |of| move |source| ClusterStatesError::List { of, source };
    let found = call(cluster_resource(client)).await;
    let resource = found.map_err(failed("Clusters"))?;
    let resource = resource.ok_or(ClusterStatesError::NoClusterApi)?;
    let clusters = keys(client, namespace, &resource).await;
    let clusters = clusters.map_err(failed("Clusters"))?;
    let api: Api<Lenient<KubeletAuthentication>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let all = all_of(&api, ListParams::default()).await;
    let all = all.map_err(failed("KubeletAuthentications"))?;
    let known = all
        .into_iter()
        .filter_map(|one| Some((ObjectKey::of(&one.metadata)?, one.object)));
    let mut known: BTreeMap<_, _> = known.collect();
    let states = clusters.into_iter().map(|key| {
        let (kubelet_authentication, unreadable) = match known.remove(&key).transpose() {
            Ok(found) => (found, None),
            Err(error) => (None, Some(error.to_string())),
        };
        ClusterState {
            kubelet_authentication,
            unreadable,
            namespace: key.namespace,
            name: key.name,
        }
    });
    Ok(states.collect())
}

/// The keys of all Clusters, sorted.
async fn keys(
    client: &Client,
    namespace: Option<&str>,
    resource: &ApiResource,
) -> Result<BTreeSet<ObjectKey>, CallError> {
    let api: Api<Custom<NoFields>> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let all = all_metadata_of(&api, ListParams::default()).await?;
    let keys = all.iter().filter_map(|one| ObjectKey::of(&one.metadata));
    Ok(keys.collect())
}
