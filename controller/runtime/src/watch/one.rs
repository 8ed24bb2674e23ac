//! Reads of single objects.
//!
//! kube decodes all metadata, and its errors and log lines contain values from the object. This module decodes each
//! object as a [`Lenient`], so that a hostile value makes only its own field unreadable.

use std::fmt::Debug;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, GetParams, PostParams, Request};
use kube::{Client, Error, Resource};
use node_attestation_core::crd::{KubeletAuthentication, NodeIdentity, RevokedNodeCredentials};
use serde::de::{DeserializeOwned, Error as _};
use zeroize::Zeroizing;

use super::steps::{MAX_VERSION_LEN, is_short_version};
use super::{Lenient, MetadataOf, NoFields, ReadAlone, Unreadable, read_alone};
use crate::client::{Excess, on_behalf_of};

read_alone! {
    "CertificateSigningRequest" => CertificateSigningRequest,
    "ClusterRole" => ClusterRole,
    "ClusterRoleBinding" => ClusterRoleBinding,
    "ConfigMap" => ConfigMap,
    "CustomResourceDefinition" => CustomResourceDefinition,
    "Event" => Event,
    "KubeletAuthentication" => KubeletAuthentication,
    "Lease" => Lease,
    "metadata" => NoFields,
    "Namespace" => Namespace,
    "NodeIdentity" => NodeIdentity,
    "RevokedNodeCredentials" => RevokedNodeCredentials,
    "Secret" => Secret,
    "Service" => Service,
    "ServiceCIDR" => ServiceCIDR,
    "ValidatingAdmissionPolicy" => ValidatingAdmissionPolicy,
    "ValidatingAdmissionPolicyBinding" => ValidatingAdmissionPolicyBinding,
}

/// Reads the object with this name.
///
/// # Errors
///
/// Returns an error if the call failed, or if the object does not exist. An invalid object is not an error.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) async fn required_one_of<K, R>(
    api: &Api<Lenient<K, R>>,
    name: &str,
) -> kube::Result<Lenient<K, R>>
where
    K: ReadAlone,
    R: Resource + Clone + Debug,
{
    api.get(name).await
}

/// Reads the object with this name. `None` if it does not exist.
///
/// # Errors
///
/// Returns an error if the call failed. An invalid object is not an error.
pub async fn one_of<K, R>(
    api: &Api<Lenient<K, R>>,
    name: &str,
) -> kube::Result<Option<Lenient<K, R>>>
where
    K: ReadAlone,
    R: Resource + Clone + Debug,
{
    if_exists(required_one_of(api, name).await)
}

/// Returns the object. Its `resourceVersion` is short enough to be kept during the next call, to which a tenant's API
/// server might never respond.
///
/// # Errors
///
/// Returns an error if the `resourceVersion` is longer than the limit for a watch.
pub(crate) fn with_short_version<K, R>(object: Lenient<K, R>) -> kube::Result<Lenient<K, R>> {
    let version = object.metadata.resource_version.as_deref();
    let is_short = version.is_none_or(is_short_version);
    let excess = || Error::Service(Excess::Version(MAX_VERSION_LEN).into());
    is_short.then_some(object).ok_or_else(excess)
}

/// Reads the cluster-scoped object with this name. `None` if it does not exist. The call waits in the queue of the
/// namespace that causes it.
///
/// # Errors
///
/// Returns an error if the call failed. An invalid object is not an error.
pub(crate) async fn one_on_behalf_of<K, R>(
    namespace: &str,
    api: &Api<Lenient<K, R>>,
    name: &str,
) -> kube::Result<Option<Lenient<K, R>>>
where
    K: ReadAlone,
    R: Resource + Clone + Debug,
{
    let request = Request::new(api.resource_url()).get(name, &GetParams::default());
    let request = request.map(|request| on_behalf_of(request, namespace));
    if_exists(called(api, request).await)
}

/// Reads a document from the API server at this path, which is not an object. The call waits in the queue of the
/// namespace that causes it.
///
/// # Errors
///
/// Returns an error if the call failed, or if the document is invalid. The error does not contain the invalid value.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) async fn document<T: DeserializeOwned>(
    namespace: &str,
    client: &Client,
    path: &str,
) -> kube::Result<T> {
    let request = hyper::Request::get(path).body(Vec::new());
    let request = on_behalf_of(request.map_err(Error::HttpError)?, namespace);
    let text = client.request_text(request).await?;
    serde_json::from_str(&text).map_err(|error| Unreadable::from(error).into())
}

/// Reads the object with this name. `None` if it does not exist.
///
/// # Errors
///
/// Returns an error if the call failed, or if the object is invalid. The error does not contain the invalid value.
pub async fn readable_one_of<K: ReadAlone + Resource>(
    api: &Api<K>,
    name: &str,
) -> kube::Result<Option<K>> {
    let request = Request::new(api.resource_url()).get(name, &GetParams::default());
    let found: kube::Result<Lenient<K>> = called(api, request).await;
    let object = if_exists(found)?.map(|found| found.object.map_err(Error::from));
    object.transpose()
}

/// Reads the metadata of the object with this name. `None` if it does not exist.
///
/// # Errors
///
/// Returns an error if the call failed.
pub async fn metadata_of_one<R: Resource + Clone>(
    api: &Api<R>,
    name: &str,
) -> kube::Result<Option<MetadataOf<R>>> {
    let request = Request::new(api.resource_url()).get_metadata(name, &GetParams::default());
    if_exists(called(api, request).await)
}

/// Reads the object with this name, as text that is wiped when it is dropped. `path` is the URL path for its kind.
///
/// # Errors
///
/// Returns an error if the call failed, or if the object does not exist.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) async fn text_of_one(
    client: &Client,
    path: String,
    name: &str,
) -> kube::Result<Zeroizing<String>> {
    let request = Request::new(path).get(name, &GetParams::default());
    let request = request.map_err(Error::BuildRequest)?;
    client.request_text(request).await.map(Zeroizing::new)
}

/// Requests a token for this service account. Returns the response as text that is wiped when it is dropped.
///
/// # Errors
///
/// Returns an error if the call failed, or if the service account does not exist.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub async fn token_text(
    client: &Client,
    (namespace, account): (&str, &str),
    request: &TokenRequest,
) -> kube::Result<Zeroizing<String>> {
    let body = serde_json::to_vec(request).map_err(Error::SerdeError)?;
    let path = ServiceAccount::url_path(&(), Some(namespace));
    let request =
        Request::new(path).create_subresource("token", account, &PostParams::default(), body);
    let request = request.map_err(Error::BuildRequest)?;
    client.request_text(request).await.map(Zeroizing::new)
}

#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(super) async fn called<K: Resource + Clone, T: DeserializeOwned>(
    api: &Api<K>,
    request: Result<hyper::Request<Vec<u8>>, kube::core::request::Error>,
) -> kube::Result<T> {
    let request = request.map_err(Error::BuildRequest)?;
    api.clone().into_client().request(request).await
}

fn if_exists<T>(found: kube::Result<T>) -> kube::Result<Option<T>> {
    match found {
        Err(Error::Api(status)) if status.is_not_found() => Ok(None),
        found => found.map(Some),
    }
}

impl From<Unreadable> for Error {
    fn from(error: Unreadable) -> Self {
        Self::SerdeError(serde_json::Error::custom(error))
    }
}

#[cfg(test)]
mod tests;
