//! A step for a Cluster: the decision about it, and its writes.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::{Api, Patch};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::{
    AutoApproveBindings, CLUSTER_NAME_LABEL, ENABLED_BY_ANNOTATION, KubeletAuthentication,
    KubeletAuthenticationSpec,
};
use node_attestation_core::log_lines::LogLines as _;
use node_attestation_core::refusal::Unavailable;
use serde_json::json;

use crate::capi::{
    Cluster, InvalidOwnAttestors, ObjectKey, OwnAttestors, WATCH_FILTER_LABEL, are_same,
    cluster_resource, has_former_version, is_paused, renew_versions,
};
use crate::client::{in_time, merge, post};
use crate::clock::now;
use crate::events;
use crate::hardening::floor::SETTINGS_POLICY;
use crate::log_lines::ClusterLines;
use crate::management::Shared;
use crate::management::condition_events::in_turn;
use crate::turns::FairRate;
use crate::watch::{created, patched, patched_metadata};

/// The deadline for the writes of one step.
const DEADLINE: Duration = Duration::from_secs(20);

/// The field manager that the API server records for these writes.
const FIELD_MANAGER: &str = "node-attestation-controller-enablement";

/// The value of [`ENABLED_BY_ANNOTATION`] on objects that this module creates.
const BY_CLUSTER: &str = "Cluster";

/// The HTTP status codes for a rejected step: bad request, forbidden, invalid.
const REFUSALS: [u16; 3] = [400, 403, 422];

/// A step for a Cluster.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Create a `KubeletAuthentication`, with the Cluster's watch filter. In a namespace with a floor, the new object
    /// enforces attestation.
    Create {
        attestors: Vec<String>,
        watch_filter: Option<String>,
    },
    /// Change the attestation providers in this version of an object that this module created.
    Change {
        resource_version: Option<String>,
        attestors: Vec<String>,
    },
    /// Update the API versions in the owner references to served versions, in this version of an object that this
    /// module created.
    Own {
        resource_version: Option<String>,
        owners: Vec<OwnerReference>,
    },
    /// Report the error with an Event.
    Report(EnableError),
}

/// The reason why the Cluster's attestation providers are not authorized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EnableError {
    #[error(transparent)]
    Invalid(#[from] InvalidOwnAttestors),
    #[error(
        "the KubeletAuthentication was created by a user and authorizes different attestors: change its \
         authorizedAttestors, or remove the annotation or variable of the Cluster"
    )]
    MadeByPerson,
    /// The message from the API server.
    #[error("{0}")]
    Refused(String),
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepOutcome {
    Written,
    /// The API server did not respond, the object changed during the step, or the Event about a rejection did not get a
    /// turn.
    Unavailable,
    /// The API server rejected the step, and an Event reports this.
    Refused,
    /// The API server rejected the step, and the Event could not be written.
    Unreported,
}

/// The next step for the Cluster, if any. `version` is the API version in which Clusters are served.
pub(super) fn step(
    cluster: &Cluster,
    known: Option<&KubeletAuthentication>,
    version: Option<&str>,
) -> Option<Step> {
    if cluster.paused || cluster.deleting {
        return None;
    }
    of_attestors(cluster, known).or_else(|| of_owner(cluster, known?, version?))
}

/// The step that keeps the Cluster as an owner of the created object, if the step is due. Kubernetes does not delete an
/// object whose owner reference has an API version that is not served.
fn of_owner(cluster: &Cluster, known: &KubeletAuthentication, version: &str) -> Option<Step> {
    let metadata = &known.metadata;
    let owners = metadata.owner_references.as_ref()?;
    let now = OwnerReference {
        api_version: version.to_owned(),
        uid: cluster.uid.clone(),
        ..OwnerReference::default()
    };
    // A search calls this function for each Cluster, so the owners are copied only if a step is due.
    let has_former = owners.iter().any(|owner| has_former_version(owner, &now));
    let is_ours = is_made_here(known) && metadata.deletion_timestamp.is_none();
    (has_former && is_ours && !is_paused(metadata)).then(|| {
        let mut owners = owners.clone();
        renew_versions(&mut owners, &now);
        Step::Own {
            resource_version: metadata.resource_version.clone(),
            owners,
        }
    })
}

fn is_made_here(known: &KubeletAuthentication) -> bool {
    let annotations = known.metadata.annotations.as_ref();
    let made_by = annotations.and_then(|all| all.get(ENABLED_BY_ANNOTATION));
    made_by.is_some_and(|by| by == BY_CLUSTER)
}

fn of_attestors(cluster: &Cluster, known: Option<&KubeletAuthentication>) -> Option<Step> {
    let attestors = match &cluster.attestors {
        OwnAttestors::Unset => return None,
        OwnAttestors::Invalid(invalid) => return Some(Step::Report((*invalid).into())),
        OwnAttestors::Named(attestors) => attestors.clone(),
    };
    let Some(known) = known else {
        return Some(Step::Create {
            attestors,
            watch_filter: cluster.watch_filter.clone(),
        });
    };
    if are_same(&known.spec.authorized_attestors, &attestors)
        || known.metadata.deletion_timestamp.is_some()
        || is_paused(&known.metadata)
    {
        return None;
    }
    Some(if is_made_here(known) {
        Step::Change {
            resource_version: known.metadata.resource_version.clone(),
            attestors,
        }
    } else {
        Step::Report(EnableError::MadeByPerson)
    })
}

/// Executes the step, and reports a rejection. `is_repeated` is set if the same step has already failed.
pub(super) async fn take(
    shared: Arc<Shared>,
    key: ObjectKey,
    cluster_uid: String,
    step: Step,
    is_repeated: bool,
) -> StepOutcome {
    const MESSAGE: &str = "cannot write the KubeletAuthentication";
    let lines = ClusterLines::of(&key);
    let to = (&shared.controller.management, &shared.condition_events);
    let taken = in_time(DEADLINE, taken(to, (&key, &lines), &cluster_uid, step)).await;
    taken.unwrap_or_else(|error| {
        let error = error_chain(&Unavailable::from(error));
        if is_repeated {
            let cluster = lines.cluster();
            tracing::debug!(cluster, error, "{MESSAGE}");
        } else {
            cluster_line!(&lines, WARN, error, "{MESSAGE}");
        }
        StepOutcome::Unavailable
    })
}

pub(super) async fn taken(
    (management, events): (&Client, &FairRate),
    (key, lines): (&ObjectKey, &ClusterLines),
    cluster_uid: &str,
    step: Step,
) -> Result<StepOutcome, kube::Error> {
    let Some(resource) = cluster_resource(management).await? else {
        return Ok(StepOutcome::Unavailable);
    };
    let cluster = OwnerReference {
        api_version: resource.api_version,
        kind: resource.kind,
        name: key.name.clone(),
        uid: cluster_uid.to_owned(),
        ..OwnerReference::default()
    };
    let api = Api::namespaced(management.clone(), &key.namespace);
    let error = match write(&api, &cluster, step, lines).await {
        Ok(None) => return Ok(StepOutcome::Written),
        Ok(Some(error)) => error,
        Err(kube::Error::Api(status)) if REFUSALS.contains(&status.code) => {
            EnableError::Refused(status.message)
        }
        Err(error) => return Err(error),
    };
    // A tenant can have any number of Clusters whose step is rejected.
    if !in_turn(events, key).await {
        return Ok(StepOutcome::Unavailable);
    }
    let note = error.to_string();
    cluster_line!(
        lines,
        WARN,
        note,
        "the Cluster's attestors are not authorized"
    );
    let regarding = ObjectReference {
        api_version: Some(cluster.api_version),
        kind: Some(cluster.kind),
        namespace: Some(key.namespace.clone()),
        name: Some(cluster.name),
        uid: Some(cluster.uid),
        ..ObjectReference::default()
    };
    let words = ("Warning", "Enable", error.reason(), note);
    let is_written = events::write_one(management.clone(), regarding, words, now()).await;
    Ok(if is_written {
        StepOutcome::Refused
    } else {
        StepOutcome::Unreported
    })
}

/// Executes the step, and returns the error that must be reported.
///
/// The writes do not use server-side apply. For a list of this type, an apply removes only items from the same field
/// manager, and after `clusterctl move`, the items belong to a different field manager. An apply would also change an
/// object that a user created after the check.
async fn write(
    api: &Api<KubeletAuthentication>,
    cluster: &OwnerReference,
    step: Step,
    lines: &ClusterLines,
) -> Result<Option<EnableError>, kube::Error> {
    let name = &cluster.name;
    match step {
        Step::Create {
            attestors,
            watch_filter,
        } => {
            let attestors: Vec<&str> = attestors.iter().map(String::as_str).collect();
            let spec = KubeletAuthenticationSpec::new(name, &attestors);
            let mut object = KubeletAuthentication::new(name, spec);
            let metadata = &mut object.metadata;
            metadata.owner_references = Some(vec![cluster.clone()]);
            let filter = watch_filter.map(|value| (WATCH_FILTER_LABEL, value));
            let labels = [(CLUSTER_NAME_LABEL, name.clone())]
                .into_iter()
                .chain(filter);
            let labels = labels.map(|(label, value)| (label.to_owned(), value));
            metadata.labels = Some(labels.collect());
            let mark = (ENABLED_BY_ANNOTATION.to_owned(), BY_CLUSTER.to_owned());
            metadata.annotations = Some([mark].into());
            let parameters = post(FIELD_MANAGER);
            let mut answer = created(api, &parameters, &object).await;
            // A floor rejects an object without a mode, or without a list of exempt Nodes. The floor also applies to
            // this write.
            if let Err(kube::Error::Api(status)) = &answer
                && status.message.contains(SETTINGS_POLICY)
            {
                object.spec.auto_approve_bindings = Some(AutoApproveBindings::Remove);
                object.spec.exempt_nodes = Some(Vec::new());
                answer = created(api, &parameters, &object).await;
            }
            answer?;
            cluster_line!(lines, INFO, ?attestors, "KubeletAuthentication created");
        }
        Step::Change {
            resource_version,
            attestors,
        } => {
            let patch = json!({
                "metadata": {"resourceVersion": resource_version},
                "spec": {"authorizedAttestors": attestors},
            });
            let parameters = merge(FIELD_MANAGER);
            patched(api, name, &parameters, &Patch::Merge(&patch)).await?;
            cluster_line!(lines, INFO, ?attestors, "KubeletAuthentication changed");
        }
        Step::Own {
            resource_version,
            owners,
        } => {
            let patch = json!({
                "metadata": {"resourceVersion": resource_version, "ownerReferences": owners},
            });
            let parameters = merge(FIELD_MANAGER);
            patched_metadata(api, name, &parameters, &Patch::Merge(&patch)).await?;
            cluster_line!(
                lines,
                INFO,
                "updated the owner of the KubeletAuthentication"
            );
        }
        Step::Report(error) => return Ok(Some(error)),
    }
    Ok(None)
}

impl EnableError {
    /// The reason for the Event.
    fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(InvalidOwnAttestors::Contradictory) => "AttestorsContradictory",
            Self::Invalid(_) => "AttestorsInvalid",
            Self::MadeByPerson => "AttestorsOfPerson",
            Self::Refused(_) => "AttestorsRefused",
        }
    }
}

#[cfg(test)]
mod tests;
