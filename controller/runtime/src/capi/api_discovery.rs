//! Discovers the served version of a kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList};
use kube::core::ApiResource;
use kube::{Client, Error};

use super::objects::{CORE_GROUP, Cluster, Reference, Watched as _};
use crate::watch::document;

/// The supported contracts, newest first.
const CONTRACTS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The API server does not serve a kind in the required version. This is an outage, because objects of this kind might
/// still exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the API server does not serve the kind in the required version")]
pub(crate) struct NotServed;

/// A referenced object could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The kind is not served.
    #[error(transparent)]
    NotServed(#[from] NotServed),
    /// The call failed.
    #[error(transparent)]
    Call(#[from] Error),
}

impl From<FetchError> for Error {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::NotServed(error) => Self::Service(error.into()),
            FetchError::Call(error) => error,
        }
    }
}

/// The Cluster resource in the newest contract that the API server serves.
///
/// # Errors
///
/// Returns an error if the call failed, or if no supported contract is served.
pub(crate) async fn required_cluster_resource(client: &Client) -> Result<ApiResource, Error> {
    required(client, Cluster::KIND).await
}

/// The resource for this Cluster API core kind in the newest contract that the API server serves.
///
/// # Errors
///
/// Returns an error if the call failed, or if no supported contract is served.
pub(super) async fn required(client: &Client, kind: &str) -> Result<ApiResource, Error> {
    let resource = served(client, kind).await?;
    resource.ok_or_else(|| Error::Service(NotServed.into()))
}

/// The Cluster resource in the newest contract that the API server serves. `None` if no supported contract is served.
pub(crate) async fn cluster_resource(client: &Client) -> Result<Option<ApiResource>, Error> {
    served(client, Cluster::KIND).await
}

/// The resource for this Cluster API core kind in the newest contract that the API server serves.
pub(super) async fn served(client: &Client, kind: &str) -> Result<Option<ApiResource>, Error> {
    for version in CONTRACTS {
        if let Some(resource) = in_version((client, ""), CORE_GROUP, version, kind).await? {
            return Ok(Some(resource));
        }
    }
    Ok(None)
}

/// The resource that a reference names, in the namespace. If the reference has no version, the first version in which
/// the API server lists the kind is used.
pub(super) async fn referred(
    (client, namespace): (&Client, &str),
    reference: &Reference,
) -> Result<Option<ApiResource>, Error> {
    let Reference { group, kind, .. } = reference;
    if let Some(version) = &reference.version {
        return in_version((client, namespace), group, version, kind).await;
    }
    let groups: APIGroupList = document(namespace, client, "/apis").await?;
    let versions = groups
        .groups
        .into_iter()
        .find(|one| one.name == *group)
        .map(|group| group.versions)
        .unwrap_or_default();
    for version in versions {
        if let Some(resource) =
            in_version((client, namespace), group, &version.version, kind).await?
        {
            return Ok(Some(resource));
        }
    }
    Ok(None)
}

async fn in_version(
    (client, namespace): (&Client, &str),
    group: &str,
    version: &str,
    kind: &str,
) -> Result<Option<ApiResource>, Error> {
    let api_version = format!("{group}/{version}");
    let path = format!("/apis/{api_version}");
    let resources = match document::<APIResourceList>(namespace, client, &path).await {
        Ok(list) => list.resources,
        Err(Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(error) => return Err(error),
    };
    // A subresource has the same kind as its resource, but its name contains a slash.
    let resource = resources
        .into_iter()
        .find(|resource| resource.kind == kind && !resource.name.contains('/'));
    Ok(resource.map(|resource| ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: resource.name,
    }))
}
