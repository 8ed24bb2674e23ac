//! Discovers the served version of a kind.

use kube::core::ApiResource;
use kube::{Client, Error};
use serde::Deserialize;

use super::objects::{CORE_GROUP, Cluster, Reference, Watched as _};
use crate::watch::document;

/// The supported contracts, newest first.
const CONTRACTS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The API server does not serve a kind in the required version. The controller treats this as an outage, because
/// objects of this kind might still exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the API server does not serve the kind in the required version")]
pub(crate) struct NotServed;

/// The API groups. Only the fields that the controller uses are decoded, so that other fields cannot make the document
/// unreadable. An API server can return an empty list as null.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Groups {
    groups: Option<Vec<Group>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Group {
    name: String,
    versions: Option<Vec<Version>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Version {
    version: String,
}

/// The resources of a version, with only the fields that the controller uses.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    resources: Option<Vec<Served>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Served {
    name: String,
    kind: String,
}

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

/// Returns the resource to which a reference refers, in this namespace. If the reference has no version, the first
/// version in which the API server lists the kind is used.
pub(super) async fn referred(
    (client, namespace): (&Client, &str),
    reference: &Reference,
) -> Result<Option<ApiResource>, Error> {
    let Reference { group, kind, .. } = reference;
    if let Some(version) = &reference.version {
        return in_version((client, namespace), group, version, kind).await;
    }
    first_listed((client, namespace), group, kind).await
}

/// Returns the resource for this kind, in the first version in which the API server lists the kind. `None` if it does
/// not list the kind.
///
/// # Errors
///
/// Returns an error if the call failed.
pub async fn listed(
    client: &Client,
    group: &str,
    kind: &str,
) -> Result<Option<ApiResource>, Error> {
    first_listed((client, ""), group, kind).await
}

async fn first_listed(
    (client, namespace): (&Client, &str),
    group: &str,
    kind: &str,
) -> Result<Option<ApiResource>, Error> {
    let groups: Groups = document(namespace, client, "/apis").await?;
    let versions = groups
        .groups
        .into_iter()
        .flatten()
        .find(|one| one.name == group)
        .and_then(|group| group.versions)
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
    let resources = match document::<Resources>(namespace, client, &path).await {
        Ok(list) => list.resources,
        Err(Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(error) => return Err(error),
    };
    // A subresource has the same kind as its resource, but its name contains a slash.
    let resource = resources
        .into_iter()
        .flatten()
        .find(|resource| resource.kind == kind && !resource.name.contains('/'));
    Ok(resource.map(|resource| ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: resource.name,
    }))
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::Response;
    use hyper::body::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::client::ClusterAccess;
    use crate::testing::{hostile_values, with_each_value};

    const GROUP: &str = "bootstrap.example";

    fn groups() -> Value {
        let version = json!({"groupVersion": "bootstrap.example/v1", "version": "v1"});
        let group = json!({
            "name": GROUP, "versions": [version], "preferredVersion": version,
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "a"}],
        });
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})
    }

    fn resources() -> Value {
        let resource = json!({
            "name": "configs", "singularName": "config", "namespaced": true, "kind": "Config",
            "verbs": ["get"], "shortNames": ["c"], "categories": ["a"], "storageVersionHash": "a",
        });
        json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "bootstrap.example/v1",
            "resources": [resource],
        })
    }

    /// The resource to which a reference without a version refers, on an API server with these discovery documents.
    async fn found(groups: &Value, resources: &Value) -> Result<Option<ApiResource>, Error> {
        let [groups, resources] = [groups, resources].map(|one| Bytes::from(one.to_string()));
        let access = ClusterAccess::in_memory(move |request| {
            let is_list = request.uri().path() == "/apis";
            let document = if is_list { &groups } else { &resources };
            let answer = Response::new(Full::new(document.clone()));
            async move { answer }
        });
        let reference = Reference {
            group: GROUP.to_owned(),
            version: None,
            kind: "Config".to_owned(),
            name: "a".to_owned(),
        };
        referred((access.client(), "a"), &reference).await
    }

    #[tokio::test]
    async fn an_empty_list_of_a_discovery_document_can_be_null() {
        assert!(found(&groups(), &resources()).await.unwrap().is_some());

        let (mut other, mut empty) = (groups(), resources());
        let empty_group = json!({"name": "other.example", "versions": null});
        other["groups"].as_array_mut().unwrap().push(empty_group);
        empty["resources"] = Value::Null;

        assert!(found(&other, &resources()).await.unwrap().is_some());
        assert!(found(&groups(), &empty).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn only_the_fields_in_use_of_a_discovery_document_can_be_invalid() {
        let (groups, resources) = (groups(), resources());
        let used = [
            "",
            "/groups",
            "/groups/0",
            "/groups/0/name",
            "/groups/0/versions",
            "/groups/0/versions/0",
            "/groups/0/versions/0/version",
            "/resources",
            "/resources/0",
            "/resources/0/name",
            "/resources/0/kind",
        ];
        for (is_list, good) in [(true, &groups), (false, &resources)] {
            for (place, hostile) in with_each_value(good, &hostile_values()) {
                let answer = if is_list {
                    found(&hostile, &resources).await
                } else {
                    found(&groups, &hostile).await
                };

                let is_found = matches!(&answer, Ok(Some(_)));
                if !used.contains(&place.as_str()) {
                    assert!(is_found, "{place}: {answer:?}");
                } else if let Err(error) = answer {
                    assert!(error.to_string().len() < 300, "{place}: {error}");
                }
            }
        }
    }
}
