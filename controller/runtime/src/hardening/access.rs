//! Calls to the workload cluster, and their errors.

use std::fmt::Debug;

use hyper::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::{ClusterResourceScope, Status};
use kube::{Client, Error as KubeError, Resource, ResourceExt as _};
use serde::Serialize;

use crate::client::{CALL_DEADLINE, CONTROLLER, CallError, Pages, in_time, post};
use crate::watch::{
    Lenient, ReadAlone, deleted, metadata_of_one, one_of, page_of, patched, readable_one_of,
    replaced, with_short_version,
};

/// The error from a call to the workload cluster. The error never depends on a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HardeningError {
    /// A permission is missing. An operator can grant it.
    #[error("not allowed to {call}: {}", status.message)]
    Forbidden {
        /// The verb and the object.
        call: String,
        /// The response from the API server.
        status: Box<Status>,
    },
    /// The API server rejected the call for another reason: the server is too old, the object is invalid, or the object
    /// has changed since it was read.
    #[error("cannot {call}: the API server returned {}: {}", status.code, status.message)]
    Refused {
        /// The verb and the object.
        call: String,
        /// The response from the API server.
        status: Box<Status>,
    },
    /// The API server did not respond, its response was unreadable, or it reported an internal error.
    #[error("cannot {call}")]
    Unavailable {
        /// The verb and the object.
        call: String,
        /// The reason.
        source: CallError,
    },
    /// The number of objects exceeds the limit.
    #[error("there are more than {limit} {object}")]
    TooMany {
        /// The kind.
        object: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl HardeningError {
    fn of(call: String, error: CallError) -> Self {
        let status = match error {
            CallError::Refused(status) => status,
            source @ (CallError::Deadline(_) | CallError::Failed(_)) => {
                return Self::Unavailable { call, source };
            }
        };
        match StatusCode::from_u16(status.code) {
            Ok(StatusCode::FORBIDDEN) => Self::Forbidden { call, status },
            // These codes refer to the request, and not to the state of the API server.
            Ok(code) if !code.is_server_error() && code != StatusCode::TOO_MANY_REQUESTS => {
                Self::Refused { call, status }
            }
            Ok(_) | Err(_) => {
                let source = CallError::Refused(status);
                Self::Unavailable { call, source }
            }
        }
    }

    /// Whether the object or its kind is missing.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code == StatusCode::NOT_FOUND)
    }
}

/// Makes a call within its deadline. `what` is the verb and the object.
pub(super) async fn call<T>(
    what: impl Into<String>,
    call: impl Future<Output = Result<T, KubeError>>,
) -> Result<T, HardeningError> {
    let answer = in_time(CALL_DEADLINE, call).await;
    answer.map_err(|error| HardeningError::of(what.into(), error))
}

/// A cluster-scoped object in the workload cluster.
pub(super) trait Object:
    Resource<DynamicType = (), Scope = ClusterResourceScope> + ReadAlone + Serialize
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + ReadAlone + Serialize
{
}

/// Reads the next page of a list, or several smaller pages if it is too large. `None` after the last page.
pub(super) async fn next_page<K: Object>(
    api: &Api<Lenient<K>>,
    pages: &mut Pages,
) -> Result<Option<Vec<Lenient<K>>>, HardeningError> {
    let list = |page| async move { page_of(api, &page).await };
    let page = Box::pin(pages.next(list)).await;
    page.map_err(|error| HardeningError::of(format!("list {}", K::plural(&())), error))
}

/// The verb and the object, for error messages.
fn named<K: Object>(verb: &str, name: &str) -> String {
    format!("{verb} {}/{name}", K::plural(&()))
}

/// Reads the object with this name.
pub(super) async fn get<K: Object>(
    client: &Client,
    name: &str,
) -> Result<Option<K>, HardeningError> {
    let api: Api<K> = Api::all(client.clone());
    call(named::<K>("get", name), readable_one_of(&api, name)).await
}

/// Whether the object with this name exists. The object is not decoded, because a tenant's API server can return a
/// large object, and then never answer the next call. An invalid object also counts as existing.
pub(super) async fn exists<K: Object>(client: &Client, name: &str) -> Result<bool, HardeningError> {
    let api: Api<K> = Api::all(client.clone());
    let found = call(named::<K>("get", name), metadata_of_one(&api, name)).await?;
    Ok(found.is_some())
}

/// Reads the object. `None` if it does not exist or cannot be decoded.
pub(super) async fn get_readable<K: Object>(
    client: &Client,
    name: &str,
) -> Result<Option<K>, HardeningError> {
    let api: Api<Lenient<K>> = Api::all(client.clone());
    let found = Box::pin(call(named::<K>("get", name), one_of(&api, name))).await?;
    Ok(found.and_then(|found| found.object.ok()))
}

/// Creates or replaces the object, unless the existing object is the `same` as `wanted`. Returns whether it was
/// written.
///
/// A new object is created with server-side apply, because the permission for it can be limited to a name, unlike the
/// permission for `POST`. An existing object is replaced, in the version that was read. Server-side apply would keep
/// list items from another manager, such as a match condition that disables a policy. (kube's `Api::entry` creates with
/// `POST`, and cannot read an object that another client made invalid.)
pub(super) async fn put<K: Object>(
    client: &Client,
    wanted: &K,
    same: impl FnOnce(&K, &K) -> bool,
) -> Result<bool, HardeningError> {
    let name = wanted.name_any();
    let api: Api<K> = Api::all(client.clone());
    let lenient: Api<Lenient<K>> = Api::all(client.clone());
    let read = async {
        let found = one_of(&lenient, &name).await?;
        found.map(with_short_version).transpose()
    };
    let found = Box::pin(call(named::<K>("get", &name), read)).await?;
    let Some(found) = found else {
        let (parameters, patch) = (PatchParams::apply(CONTROLLER), Patch::Apply(wanted));
        let made = patched(&api, &name, &parameters, &patch);
        call(named::<K>("create", &name), made).await?;
        return Ok(true);
    };
    // An object that cannot be decoded counts as different from `wanted`.
    if found.object.as_ref().is_ok_and(|found| same(found, wanted)) {
        return Ok(false);
    }
    let version = found.resource_version();
    // Frees memory before the write: a tenant's API server can return a large object, and then never answer the write.
    drop(found);
    let mut replacement = wanted.clone();
    replacement.meta_mut().resource_version = version;
    let parameters = post(CONTROLLER);
    let made = replaced(&api, &name, &parameters, &replacement);
    call(named::<K>("update", &name), made).await?;
    Ok(true)
}

/// Creates the definition, or replaces an earlier version's definition. Sets all fields that this controller manages.
pub(super) async fn apply_definition(
    client: &Client,
    wanted: &CustomResourceDefinition,
) -> Result<(), HardeningError> {
    let name = wanted.name_any();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let (parameters, patch) = (PatchParams::apply(CONTROLLER).force(), Patch::Apply(wanted));
    let what = named::<CustomResourceDefinition>("patch", &name);
    call(what, patched(&api, &name, &parameters, &patch)).await?;
    Ok(())
}

/// Deletes the object with this name, if it exists. If a UID is given, deletes only the object with this UID.
pub(super) async fn delete<K: Object>(
    client: &Client,
    name: &str,
    uid: Option<String>,
) -> Result<(), HardeningError> {
    let api: Api<K> = Api::all(client.clone());
    let only = Preconditions {
        uid,
        ..Preconditions::default()
    };
    let parameters = DeleteParams::default().preconditions(only);
    let made = deleted(&api, name, &parameters);
    match call(named::<K>("delete", name), made).await {
        // If the permission is missing, the API server does not report whether the object exists.
        Err(error @ HardeningError::Forbidden { .. }) => {
            if exists::<K>(client, name).await? {
                Err(error)
            } else {
                Ok(())
            }
        }
        Err(error) if !error.is_not_found() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::{Method, Response};
    use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
    use k8s_openapi::api::rbac::v1::ClusterRole;
    use kube::api::ObjectMeta;
    use serde::{Deserialize, Deserializer};
    use serde_json::json;

    use super::*;
    use crate::client::{ClusterAccess, Excess, cause};

    thread_local! {
        /// The number of decoded objects that currently exist.
        static DECODED: Cell<usize> = const { Cell::new(0) };
    }

    /// A decoded object of this type is counted as long as it exists.
    #[derive(Debug, Clone, Default, Serialize, Resource)]
    #[resource(inherit = "ClusterRole")]
    struct Counted {
        metadata: ObjectMeta,
        #[serde(skip)]
        _decoded: Option<Decoded>,
    }

    #[derive(Debug)]
    struct Decoded;

    impl Decoded {
        fn new() -> Self {
            DECODED.set(DECODED.get() + 1);
            Self
        }
    }

    impl Clone for Decoded {
        fn clone(&self) -> Self {
            Self::new()
        }
    }

    impl Drop for Decoded {
        fn drop(&mut self) {
            DECODED.set(DECODED.get() - 1);
        }
    }

    impl<'de> Deserialize<'de> for Counted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            #[derive(Deserialize)]
            struct Fields {
                metadata: ObjectMeta,
            }
            let Fields { metadata } = Fields::deserialize(deserializer)?;
            Ok(Self {
                metadata,
                _decoded: Some(Decoded::new()),
            })
        }
    }

    impl ReadAlone for Counted {}

    #[tokio::test]
    async fn an_object_that_is_replaced_is_not_in_memory_during_the_write() {
        let access = ClusterAccess::in_memory(|request| async move {
            if request.method() == Method::PUT {
                assert_eq!(DECODED.get(), 0);
            }
            let found = json!({"metadata": {"name": "a", "resourceVersion": "7"}});
            Response::new(Full::new(Bytes::from(found.to_string())))
        });
        let mut wanted = Counted::default();
        wanted.metadata.name = Some("a".to_owned());
        let compared = Cell::new(0);
        let differs = |_: &Counted, _: &Counted| {
            compared.set(DECODED.get());
            false
        };

        let is_written = Box::pin(put(access.client(), &wanted, differs)).await;

        assert!(is_written.unwrap());
        assert_eq!(compared.get(), 1);
    }

    #[tokio::test]
    async fn an_object_with_a_long_version_is_not_replaced() {
        const LONGEST: usize = 16 * 1024;
        for (len, is_replaced) in [(LONGEST, true), (LONGEST + 1, false)] {
            let access = ClusterAccess::in_memory(move |request| async move {
                assert!(is_replaced || request.method() == Method::GET);
                let found = json!({"metadata": {"name": "a", "resourceVersion": "7".repeat(len)}});
                Response::new(Full::new(Bytes::from(found.to_string())))
            });
            let mut wanted = Counted::default();
            wanted.metadata.name = Some("a".to_owned());

            let written = Box::pin(put(access.client(), &wanted, |_, _| false)).await;

            match written {
                Ok(is_written) => assert!(is_written && is_replaced, "{len}"),
                Err(error) => {
                    let excess = cause::<Excess>(&error).copied();
                    assert_eq!(excess, Some(Excess::Version(LONGEST)), "{error}");
                    assert!(!is_replaced, "{len}");
                }
            }
        }
    }

    #[tokio::test]
    async fn an_object_whose_existence_is_checked_is_not_kept() {
        let access = ClusterAccess::in_memory(|request| async move {
            let accepted = request.headers()["accept"].to_str().unwrap();
            assert!(accepted.contains("PartialObjectMetadata"), "{accepted}");
            // The API server returns the complete object, but the client cannot decode it.
            let found = json!({"metadata": {"name": "a"}, "rules": 7});
            Response::new(Full::new(Bytes::from(found.to_string())))
        });

        let exists = Box::pin(exists::<ClusterRole>(access.client(), "a")).await;

        assert!(exists.unwrap());
    }

    /// Deletes an object on an API server that forbids the deletion, and responds to the following read with `read`.
    async fn deleted_without_the_right(read: u16) -> Result<(), HardeningError> {
        let access = ClusterAccess::in_memory(move |request| async move {
            let code = match *request.method() {
                Method::GET => read,
                _ => 403,
            };
            let reason = if code == 404 { "NotFound" } else { "Forbidden" };
            let body = json!({"metadata": {}, "code": code, "reason": reason, "message": ""});
            let body = Full::new(Bytes::from(body.to_string()));
            Response::builder().status(code).body(body).unwrap()
        });
        delete::<ValidatingAdmissionPolicy>(access.client(), "p", None).await
    }

    #[tokio::test]
    async fn a_forbidden_deletion_of_a_missing_object_is_not_an_error() {
        assert!(deleted_without_the_right(404).await.is_ok());
        for exists_or_unknown in [200, 403] {
            let error = deleted_without_the_right(exists_or_unknown).await;
            assert!(matches!(error, Err(HardeningError::Forbidden { .. })));
        }
    }
}
