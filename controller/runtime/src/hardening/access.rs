//! Calls to the workload cluster, and how they fail.

use std::fmt::Debug;
use std::future::Future;

use hyper::StatusCode;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::{ClusterResourceScope, ObjectMeta, Status};
use kube::{Client, Error as KubeError, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{CALL_DEADLINE, CONTROLLER, CallError, in_time, post};
use crate::watch::Lenient;

/// The workload cluster did not do as it was asked. None of these says anything about a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HardeningError {
    /// A right is missing, which an operator can grant.
    #[error("not allowed to {call}: {}", status.message)]
    Forbidden {
        /// The verb and the object.
        call: String,
        /// The API server's answer.
        status: Box<Status>,
    },
    /// Somebody else wrote at the same time; the next attempt sees what they wrote.
    #[error("cannot {call}, which has changed meanwhile")]
    Changed {
        /// The verb and the object.
        call: String,
    },
    /// The API server refused for another reason: it is too old, or the object is invalid.
    #[error("cannot {call}: the API server says {}: {}", status.code, status.message)]
    Refused {
        /// The verb and the object.
        call: String,
        /// The API server's answer.
        status: Box<Status>,
    },
    /// There was no answer, none that can be read, or that of an API server in trouble.
    #[error("cannot {call}")]
    Unavailable {
        /// The verb and the object.
        call: String,
        /// The reason.
        source: Box<KubeError>,
    },
    /// There was no answer in time.
    #[error("cannot {call} within {} s", CALL_DEADLINE.as_secs())]
    Deadline {
        /// The verb and the object.
        call: String,
    },
    /// There are more objects than are read.
    #[error("there are more than {limit} {object}")]
    TooMany {
        /// Their kind.
        object: &'static str,
        /// How many are read.
        limit: usize,
    },
}

impl HardeningError {
    fn of(call: String, error: CallError) -> Self {
        let status = match error {
            CallError::Deadline(_) => return Self::Deadline { call },
            CallError::Failed(source) => return Self::Unavailable { call, source },
            CallError::Refused(status) => status,
        };
        match StatusCode::from_u16(status.code) {
            Ok(StatusCode::FORBIDDEN) => Self::Forbidden { call, status },
            Ok(StatusCode::CONFLICT) => Self::Changed { call },
            // About what was asked, and not about the API server's own state.
            Ok(code)
                if code < StatusCode::INTERNAL_SERVER_ERROR
                    && code != StatusCode::TOO_MANY_REQUESTS =>
            {
                Self::Refused { call, status }
            }
            Ok(_) | Err(_) => {
                let source = Box::new(KubeError::Api(status));
                Self::Unavailable { call, source }
            }
        }
    }

    /// Whether there is no such object, or nothing of its kind.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code == StatusCode::NOT_FOUND)
    }
}

/// Calls, for no longer than a call may take; `what` is the verb and the object.
pub(super) async fn call<T>(
    what: impl Into<String>,
    call: impl Future<Output = Result<T, KubeError>>,
) -> Result<T, HardeningError> {
    let answer = in_time(CALL_DEADLINE, call).await;
    answer.map_err(|error| HardeningError::of(what.into(), error))
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

/// The call as messages name it.
fn named<K: Object>(verb: &str, name: &str) -> String {
    format!("{verb} {}/{name}", K::plural(&()))
}

/// The object of this name.
pub(super) async fn get<K: Object>(
    client: &Client,
    name: &str,
) -> Result<Option<K>, HardeningError> {
    let api: Api<K> = Api::all(client.clone());
    call(named::<K>("get", name), api.get_opt(name)).await
}

/// The metadata of the object of this name.
pub(super) async fn get_metadata<K: Object>(
    client: &Client,
    name: &str,
) -> Result<Option<ObjectMeta>, HardeningError> {
    let api: Api<K> = Api::all(client.clone());
    let found = call(named::<K>("get", name), api.get_metadata_opt(name)).await?;
    Ok(found.map(|found| found.metadata))
}

/// Makes the object as it is `wanted`, where it is not (`same`) yet.
///
/// A new one is made by server-side apply, whose right can be confined to a name as that of `POST`
/// cannot. One that is there is replaced, if nobody writes at the same time: an apply would leave
/// in it what another manager added to its lists, such as a condition under which a policy no
/// longer matches. (kube's `Api::entry` creates by `POST`, and reads no object that somebody else broke.)
pub(super) async fn put<K: Object>(
    client: &Client,
    wanted: &K,
    same: impl FnOnce(&K, &K) -> bool,
) -> Result<ApplyOutcome, HardeningError> {
    let name = wanted.name_any();
    let api: Api<K> = Api::all(client.clone());
    let lenient: Api<Lenient<K>> = Api::all(client.clone());
    let found = Box::pin(call(named::<K>("get", &name), lenient.get_opt(&name))).await?;
    let Some(found) = found else {
        let (parameters, patch) = (PatchParams::apply(CONTROLLER), Patch::Apply(wanted));
        let made = api.patch(&name, &parameters, &patch);
        call(named::<K>("create", &name), made).await?;
        return Ok(ApplyOutcome::Made);
    };
    // One that cannot be read is something else.
    if found.object.as_ref().is_ok_and(|found| same(found, wanted)) {
        return Ok(ApplyOutcome::Unchanged);
    }
    let mut replacement = wanted.clone();
    replacement.meta_mut().resource_version = found.resource_version();
    let parameters = post(CONTROLLER);
    let replaced = api.replace(&name, &parameters, &replacement);
    call(named::<K>("update", &name), replaced).await?;
    Ok(ApplyOutcome::Replaced)
}

/// Deletes the object if it is still the one with this UID.
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
    match call(named::<K>("delete", name), api.delete(name, &parameters)).await {
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
