//! Writes.
//!
//! kube decodes the response to a write as the whole object. If a value in the response cannot be decoded, a completed
//! write looks like a failed one. These functions decode the response as a [`Lenient`], or ignore its content. If the
//! caller needs at most the metadata, the API server returns only the metadata, which costs both sides less processor
//! time.

use hyper::header::{ACCEPT, HeaderValue};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Request};
use kube::core::request::Error as RequestError;
use kube::{Error, Resource};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::one::called;
use super::{Lenient, MetadataOf, ReadAlone, Unreadable};

/// The media type of a response that contains only the metadata of the object.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

type Built = Result<hyper::Request<Vec<u8>>, RequestError>;

/// Requests only the metadata of the written object.
fn for_metadata(request: Built) -> Built {
    let mut request = request?;
    let metadata = HeaderValue::from_static(METADATA);
    request.headers_mut().insert(ACCEPT, metadata);
    Ok(request)
}

/// Creates the object, and returns it as the API server stored it.
///
/// # Errors
///
/// Returns an error if the call failed. An invalid object in the response is not an error.
pub(crate) async fn created<K>(
    api: &Api<K>,
    parameters: &PostParams,
    object: &K,
) -> kube::Result<Lenient<K>>
where
    K: ReadAlone + Resource + Serialize,
{
    let object = serde_json::to_vec(object).map_err(Error::SerdeError)?;
    let request = Request::new(api.resource_url()).create(parameters, object);
    called(api, request).await
}

/// Creates the object. The response contains only metadata, which is ignored.
///
/// # Errors
///
/// Returns an error if the call failed.
pub(crate) async fn created_metadata<K>(
    api: &Api<K>,
    parameters: &PostParams,
    object: &K,
) -> kube::Result<()>
where
    K: Resource + Clone + Serialize,
{
    let object = serde_json::to_vec(object).map_err(Error::SerdeError)?;
    let request = Request::new(api.resource_url()).create(parameters, object);
    let IgnoredAny = called(api, for_metadata(request)).await?;
    Ok(())
}

/// Sends a review, and returns it with the API server's answer. A review is not stored.
///
/// # Errors
///
/// Returns an error if the call failed, or if the answer is invalid. The error does not contain the invalid value.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) async fn reviewed<K>(api: &Api<K>, review: &K) -> kube::Result<K>
where
    K: Resource + Clone + Serialize + DeserializeOwned,
{
    let review = serde_json::to_vec(review).map_err(Error::SerdeError)?;
    let request = Request::new(api.resource_url()).create(&PostParams::default(), review);
    let request = request.map_err(Error::BuildRequest)?;
    let text = api.clone().into_client().request_text(request).await?;
    serde_json::from_str(&text).map_err(|error| Unreadable::from(error).into())
}

/// Replaces the object, and returns it as the API server stored it.
///
/// # Errors
///
/// Returns an error if the call failed. An invalid object in the response is not an error.
pub(crate) async fn replaced<K>(
    api: &Api<K>,
    name: &str,
    parameters: &PostParams,
    object: &K,
) -> kube::Result<Lenient<K>>
where
    K: ReadAlone + Resource + Serialize,
{
    let object = serde_json::to_vec(object).map_err(Error::SerdeError)?;
    let request = Request::new(api.resource_url()).replace(name, parameters, object);
    called(api, request).await
}

/// Replaces this subresource of the object with this name. Returns only the metadata of the object as the API server
/// stored it.
///
/// # Errors
///
/// Returns an error if the call failed.
pub(crate) async fn replaced_part_metadata<K>(
    api: &Api<K>,
    (subresource, name): (&str, &str),
    parameters: &PostParams,
    object: &K,
) -> kube::Result<ObjectMeta>
where
    K: Resource + Clone + Serialize,
{
    let object = serde_json::to_vec(object).map_err(Error::SerdeError)?;
    let request = Request::new(api.resource_url());
    let request = request.replace_subresource(subresource, name, parameters, object);
    let answer: MetadataOf<K> = called(api, for_metadata(request)).await?;
    Ok(answer.metadata)
}

/// Patches the object with this name. Returns the object as the API server stored it.
///
/// # Errors
///
/// Returns an error if the call failed. An invalid object in the response is not an error.
pub(crate) async fn patched<K, P>(
    api: &Api<K>,
    name: &str,
    parameters: &PatchParams,
    patch: &Patch<P>,
) -> kube::Result<Lenient<K>>
where
    K: ReadAlone + Resource,
    P: Serialize,
{
    let request = Request::new(api.resource_url()).patch(name, parameters, patch);
    called(api, request).await
}

/// Patches the status of the object with this name. The response contains only metadata, which is ignored.
///
/// # Errors
///
/// Returns an error if the call failed.
pub(crate) async fn patched_status<K, P>(
    api: &Api<K>,
    name: &str,
    parameters: &PatchParams,
    patch: &Patch<P>,
) -> kube::Result<()>
where
    K: Resource + Clone,
    P: Serialize,
{
    let request = Request::new(api.resource_url());
    let request = request.patch_subresource("status", name, parameters, patch);
    let IgnoredAny = called(api, for_metadata(request)).await?;
    Ok(())
}

/// Patches the object with this name. The response contains only metadata, which is ignored.
///
/// # Errors
///
/// Returns an error if the call failed.
pub async fn patched_metadata<K, P>(
    api: &Api<K>,
    name: &str,
    parameters: &PatchParams,
    patch: &Patch<P>,
) -> kube::Result<()>
where
    K: Resource + Clone,
    P: Serialize,
{
    let request = Request::new(api.resource_url()).patch_metadata(name, parameters, patch);
    let IgnoredAny = called(api, request).await?;
    Ok(())
}

/// Deletes the object with this name.
///
/// # Errors
///
/// Returns an error if the call failed.
pub(crate) async fn deleted<K: Resource + Clone>(
    api: &Api<K>,
    name: &str,
    parameters: &DeleteParams,
) -> kube::Result<()> {
    let request = Request::new(api.resource_url()).delete(name, parameters);
    let IgnoredAny = called(api, request).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::Full;
    use hyper::Response;
    use hyper::body::Bytes;
    use k8s_openapi::api::authentication::v1::SelfSubjectReview;
    use node_attestation_core::crd::{KubeletAuthentication, KubeletAuthenticationSpec};
    use serde_json::{Value, json};

    use super::*;
    use crate::client::ClusterAccess;
    use crate::testing::{hostile_values, with_each_value};

    fn written() -> Value {
        json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
            "metadata": {
                "name": "prod-1", "namespace": "a", "resourceVersion": "7", "labels": {"a": "b"},
                "managedFields": [{"manager": "m", "time": "9999-12-31T23:59:59Z"}],
            },
            "spec": {"clusterName": "prod-1", "authorizedAttestors": ["aws"]},
            "status": {"conditions": []},
        })
    }

    /// For each call, whether it requested only metadata.
    type Calls = Arc<Mutex<Vec<bool>>>;

    /// An API server that returns this response, and its calls.
    fn answering(answer: &Value) -> (ClusterAccess, Calls) {
        let (answer, calls) = (Bytes::from(answer.to_string()), Calls::default());
        let seen = calls.clone();
        let access = ClusterAccess::in_memory(move |request| {
            let accepted = request.headers().get(ACCEPT);
            let is_for_metadata = accepted.is_some_and(|accepted| accepted == METADATA);
            seen.lock().unwrap().push(is_for_metadata);
            let answer = Response::new(Full::new(answer.clone()));
            async move { answer }
        });
        (access, calls)
    }

    /// The number of writes that request only metadata. They are the first writes of [`write_all`].
    const FOR_METADATA: usize = 4;

    /// Makes all writes on this API server.
    async fn write_all(
        access: &ClusterAccess,
    ) -> kube::Result<[Lenient<KubeletAuthentication>; 4]> {
        let api: Api<KubeletAuthentication> = Api::namespaced(access.client().clone(), "a");
        let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        let mut object = KubeletAuthentication::new("prod-1", spec);
        object.metadata.resource_version = Some("6".to_owned());
        let (post, merge) = (PostParams::default(), PatchParams::default());
        let patch = Patch::Merge(json!({"status": {}}));
        let status = ("status", "prod-1");
        patched_status(&api, "prod-1", &merge, &patch).await?;
        patched_metadata(&api, "prod-1", &merge, &patch).await?;
        created_metadata(&api, &post, &object).await?;
        let metadata = replaced_part_metadata(&api, status, &post, &object).await?;
        deleted(&api, "prod-1", &DeleteParams::default()).await?;
        let mut with_metadata = created(&api, &post, &object).await?;
        with_metadata.metadata = metadata;
        Ok([
            with_metadata,
            created(&api, &post, &object).await?,
            replaced(&api, "prod-1", &post, &object).await?,
            patched(&api, "prod-1", &merge, &patch).await?,
        ])
    }

    #[tokio::test]
    async fn a_completed_write_with_an_unreadable_response_is_not_a_failure() {
        let (access, _) = answering(&written());
        for object in Box::pin(write_all(&access)).await.unwrap() {
            assert!(object.object.is_ok(), "{object:?}");
        }
        for (place, hostile) in with_each_value(&written(), &hostile_values()) {
            let (access, _) = answering(&hostile);
            let objects = Box::pin(write_all(&access)).await;
            let objects = objects.unwrap_or_else(|error| panic!("{place}: {error}"));
            for object in objects {
                let is_kept = !["", "/metadata", "/metadata/resourceVersion"].contains(&&*place);
                let version = object.metadata.resource_version.as_deref();
                assert!(!is_kept || version == Some("7"), "{place}");
            }
        }
    }

    #[tokio::test]
    async fn a_write_whose_response_is_not_used_requests_only_metadata() {
        let (access, calls) = answering(&written());

        Box::pin(write_all(&access)).await.unwrap();

        let calls = calls.lock().unwrap();
        let (for_metadata, others) = calls.split_at(FOR_METADATA);
        assert!(for_metadata.iter().all(|is_for_metadata| *is_for_metadata));
        assert!(others.iter().all(|is_for_metadata| !is_for_metadata));
    }

    #[tokio::test]
    async fn a_written_object_is_known_even_if_the_response_is_unreadable() {
        let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        let mut sent = KubeletAuthentication::new("prod-1", spec);
        sent.metadata.resource_version = Some("6".to_owned());
        let mut answer = written();
        for (place, value, version) in [
            ("/status", json!({"conditions": []}), "7"),
            ("/spec", json!("hostile"), "7"),
            ("/metadata", json!([]), "6"),
        ] {
            *answer.pointer_mut(place).unwrap() = value;
            let (access, _) = answering(&answer);
            let objects = Box::pin(write_all(&access)).await.unwrap();

            for object in objects {
                let known = object.readable_or(&sent);

                assert_eq!(known.spec, sent.spec, "{place}");
                assert_eq!(known.metadata.resource_version.as_deref(), Some(version));
                assert_eq!(known.metadata.name.as_deref(), Some("prod-1"), "{place}");
            }
        }
    }

    #[tokio::test]
    async fn the_error_of_an_unreadable_review_does_not_contain_the_value() {
        let access = ClusterAccess::in_memory(|_| async {
            let answer =
                json!({"status": {"userInfo": {"username": "s3cret", "groups": "s3cret"}}});
            Response::new(Full::new(Bytes::from(answer.to_string())))
        });
        let reviews: Api<SelfSubjectReview> = Api::all(access.client().clone());

        let answer = reviewed(&reviews, &SelfSubjectReview::default()).await;

        let error = answer.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }
}
