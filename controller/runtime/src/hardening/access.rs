//! Calls to the workload cluster, and how they fail.

use std::error::Error;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::{ClusterResourceScope, ObjectMeta};
use kube::{Client, Error as KubeError, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{CONTROLLER, post};
use crate::watch::Lenient;

/// For one call: an API server under load answers small objects within its own limit for others.
const CALL_DEADLINE: Duration = Duration::from_secs(20);

/// HTTP status of a right that is missing.
const FORBIDDEN: u16 = 403;

/// HTTP status of an object that is not there.
const NOT_FOUND: u16 = 404;

/// HTTP status of an object that another version has replaced.
const CONFLICT: u16 = 409;

/// HTTP status of an API server that has too much to do.
const TOO_MANY_REQUESTS: u16 = 429;

/// The first HTTP status of an API server, or something before it, that does not work.
const INTERNAL_ERROR: u16 = 500;

/// The workload cluster did not do as it was asked. None of these says anything about a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HardeningError {
    /// A right is missing, which an operator can grant.
    #[error("not allowed to {verb} {object}: {message}")]
    Forbidden {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: String,
        /// What the API server says.
        message: String,
    },
    /// Somebody else wrote at the same time; the next attempt sees what they wrote.
    #[error("cannot {verb} {object}, which has changed meanwhile")]
    Changed {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: String,
    },
    /// The API server refused for another reason: it is too old, or the object is invalid.
    #[error("cannot {verb} {object}: the API server says {code}: {message}")]
    Refused {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: String,
        /// HTTP status.
        code: u16,
        /// What the API server says.
        message: String,
    },
    /// There was no answer, none that can be read, or that of an API server in trouble.
    #[error("cannot {verb} {object}")]
    Unavailable {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: String,
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
    /// There was no answer in time.
    #[error("cannot {verb} {object} within {} s", CALL_DEADLINE.as_secs())]
    Deadline {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: String,
    },
    /// There are more objects than are read.
    #[error("there are more than {limit} {object}")]
    TooMany {
        /// Of what.
        object: &'static str,
        /// How many are read.
        limit: usize,
    },
}

impl HardeningError {
    /// Whether there is no such object, or nothing of its kind.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == NOT_FOUND)
    }
}

/// Calls, for no longer than a call may take.
pub(super) async fn call<T>(
    verb: &'static str,
    object: impl Into<String>,
    call: impl Future<Output = Result<T, KubeError>>,
) -> Result<T, HardeningError> {
    let object = object.into();
    let Ok(answer) = tokio::time::timeout(CALL_DEADLINE, call).await else {
        return Err(HardeningError::Deadline { verb, object });
    };
    answer.map_err(|error| {
        // About what was asked, and not about its own state.
        if let KubeError::Api(status) = &error
            && status.code != TOO_MANY_REQUESTS
            && status.code < INTERNAL_ERROR
        {
            let (code, message) = (status.code, status.message.clone());
            return match code {
                FORBIDDEN => HardeningError::Forbidden {
                    verb,
                    object,
                    message,
                },
                CONFLICT => HardeningError::Changed { verb, object },
                _ => HardeningError::Refused {
                    verb,
                    object,
                    code,
                    message,
                },
            };
        }
        HardeningError::Unavailable {
            verb,
            object,
            source: error.into(),
        }
    })
}

/// What became of an object that is to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApplyOutcome {
    /// It was as it should be; nothing was written.
    Unchanged,
    /// It was made.
    Made,
    /// It was something else, and is put right.
    Replaced,
}

/// An object of the whole workload cluster.
pub(super) trait Object:
    Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
{
}

/// As messages name the object.
fn named<K: Object>(name: &str) -> String {
    format!("{}/{name}", K::plural(&()))
}

/// The object of this name.
pub(super) async fn get<K: Object>(
    client: &Client,
    name: &str,
) -> Result<Option<K>, HardeningError> {
    let api: Api<K> = Api::all(client.clone());
    call("get", named::<K>(name), api.get_opt(name)).await
}

/// The metadata of the object of this name.
pub(super) async fn get_metadata<K: Object>(
    client: &Client,
    name: &str,
) -> Result<Option<ObjectMeta>, HardeningError> {
    let api: Api<K> = Api::all(client.clone());
    let found = call("get", named::<K>(name), api.get_metadata_opt(name)).await?;
    Ok(found.map(|found| found.metadata))
}

/// Makes the object as it is `wanted`, where it is not (`same`) yet.
///
/// A new one is made by server-side apply, whose right can be confined to a name as that of `POST`
/// cannot. One that is there is replaced, if nobody writes at the same time: an apply would leave
/// in it what another manager added to its lists, such as a condition under which a policy no
/// longer matches.
pub(super) async fn put<K: Object>(
    client: &Client,
    wanted: &K,
    same: impl FnOnce(&K, &K) -> bool,
) -> Result<ApplyOutcome, HardeningError> {
    let name = wanted.name_any();
    let object = named::<K>(&name);
    let api: Api<K> = Api::all(client.clone());
    let lenient: Api<Lenient<K>> = Api::all(client.clone());
    let found = Box::pin(call("get", &object, lenient.get_opt(&name))).await?;
    // One that cannot be read is something else.
    let found = found.map(|found| {
        let is_same = found.object.as_ref().is_ok_and(|found| same(found, wanted));
        (is_same, found.resource_version())
    });
    match found {
        Some((true, _)) => Ok(ApplyOutcome::Unchanged),
        Some((false, version)) => {
            let mut replacement = wanted.clone();
            replacement.meta_mut().resource_version = version;
            let options = post(CONTROLLER);
            let written = api.replace(&name, &options, &replacement);
            call("update", &object, written).await?;
            Ok(ApplyOutcome::Replaced)
        }
        None => {
            let options = PatchParams::apply(CONTROLLER);
            let patch = Patch::Apply(wanted);
            let written = api.patch(&name, &options, &patch);
            call("create", &object, written).await?;
            Ok(ApplyOutcome::Made)
        }
    }
}

/// Deletes the object if it is still the one with this UID.
pub(super) async fn delete<K: Object>(
    client: &Client,
    name: &str,
    uid: Option<String>,
) -> Result<(), HardeningError> {
    let api: Api<K> = Api::all(client.clone());
    let options = DeleteParams::default().preconditions(Preconditions {
        uid,
        resource_version: None,
    });
    match call("delete", named::<K>(name), api.delete(name, &options)).await {
        Err(error) if !error.is_not_found() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Deletes the object of this name, if there is one.
pub(super) async fn delete_if_there<K: Object>(
    client: &Client,
    name: &str,
) -> Result<(), HardeningError> {
    if let Some(found) = get_metadata::<K>(client, name).await? {
        delete::<K>(client, name, found.uid).await?;
    }
    Ok(())
}
