//! Cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::errors::shortened;
use serde::Deserialize;

use super::attestors::{OwnAttestors, Topology};
use super::{
    Kept, MAX_KIND_LEN, MAX_NAME_LEN, Nothing, ObjectKey, Raw, RawReference, Reference,
    WATCH_FILTER_LABEL, Watched, is_deleting, is_paused, label,
};
use crate::watch::Unreadable;

/// The maximum number of Service ranges to keep, which is the limit in v1beta2.
const MAX_SERVICE_RANGES: usize = 100;

/// The maximum length of a Service range. A longer text is not a valid range.
const MAX_RANGE_LEN: usize = 64;

/// The required fields of a Cluster.
///
/// # Guarantees
///
/// - A value is stored as long as the object exists. Its size in memory is limited, regardless of the object's size.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cluster {
    /// The UID. It changes when the Cluster is moved to another management cluster.
    pub uid: String,
    /// Whether the Cluster is paused, either by its spec or by its annotation.
    pub paused: bool,
    /// Whether the Cluster is being deleted.
    pub deleting: bool,
    /// The value of the label `cluster.x-k8s.io/watch-filter`.
    pub watch_filter: Option<String>,
    /// The endpoint of the API server.
    pub endpoint: Option<Endpoint>,
    /// The address ranges of the Services.
    pub service_ranges: Vec<String>,
    /// The `InfraCluster`.
    pub infrastructure: Option<Reference>,
    /// The kind of the control plane.
    pub control_plane: Option<String>,
    /// The attestation providers that the Cluster itself authorizes, in an annotation or in a topology variable.
    pub attestors: OwnAttestors,
}

/// An observer of the Cluster watch. The process has only one Cluster watch.
///
/// Each method runs on the watch's task and must not block.
pub trait ClusterObserver: Debug + Send + Sync {
    /// Replaces the stored data of a Cluster. `None` means that the Cluster was deleted.
    ///
    /// # Errors
    ///
    /// Returns an error if the observer cannot read the Cluster. The watch logs the error.
    fn put(
        &self,
        key: &ObjectKey,
        cluster: Option<Result<ClusterReferences<'_>, Unreadable>>,
    ) -> Result<(), Unreadable>;

    /// Records that a list of all Clusters is complete.
    fn listed(&self, clusters: &BTreeSet<ObjectKey>);

    /// Records an event from the API server on the watch.
    fn heard(&self);

    /// Records a failure of the watch.
    fn failed(&self);
}

/// The parts of a Cluster that observers need, as returned by the API server.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterReferences<'a> {
    /// The labels.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// `spec.infrastructureRef`.
    pub infrastructure: Option<ReferencedObject<'a>>,
    /// `spec.controlPlaneRef`.
    pub control_plane: Option<ReferencedObject<'a>>,
}

/// The parts of a reference that exist in both contracts.
#[derive(Debug, Clone, Copy)]
pub struct ReferencedObject<'a> {
    /// `kind`.
    pub kind: Option<&'a str>,
    /// `name`.
    pub name: Option<&'a str>,
}

impl<'a> ReferencedObject<'a> {
    fn of(raw: &'a RawReference) -> Self {
        Self {
            kind: raw.kind.as_deref(),
            name: raw.name.as_deref(),
        }
    }
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A host name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct Spec {
    paused: Option<bool>,
    control_plane_endpoint: Option<RawEndpoint>,
    cluster_network: Option<Network>,
    infrastructure_ref: Option<RawReference>,
    control_plane_ref: Option<RawReference>,
    topology: Option<Topology>,
}

#[derive(Debug, Clone, Deserialize)]
struct RawEndpoint {
    host: Option<String>,
    port: Option<i64>,
}

#[derive(Debug, Clone, Deserialize)]
struct Network {
    services: Option<Ranges>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ranges {
    cidr_blocks: Option<Vec<String>>,
}

impl Watched for Cluster {
    const KIND: &'static str = "Cluster";
    const MAY_BE_ABSENT: bool = false;
    const IS_CLUSTER: bool = true;

    fn tell(
        observer: &dyn ClusterObserver,
        key: &ObjectKey,
        object: &Raw<Self>,
    ) -> Result<(), Unreadable> {
        let found = match &object.object {
            Ok(fields) => {
                let spec = fields.spec.as_ref();
                let infrastructure = spec.and_then(|spec| spec.infrastructure_ref.as_ref());
                let control_plane = spec.and_then(|spec| spec.control_plane_ref.as_ref());
                Ok(ClusterReferences {
                    labels: object.metadata.labels.as_ref(),
                    infrastructure: infrastructure.map(ReferencedObject::of),
                    control_plane: control_plane.map(ReferencedObject::of),
                })
            }
            Err(unreadable) => Err(unreadable.clone()),
        };
        observer.put(key, Some(found))
    }
}

impl Kept for Cluster {
    type Spec = Spec;
    type Status = Nothing;

    fn kept(metadata: ObjectMeta, spec: Spec, _: Nothing) -> Option<Self> {
        let namespace = metadata.namespace.clone()?;
        let endpoint = spec.control_plane_endpoint.and_then(|endpoint| {
            let host = endpoint.host;
            let host = host.filter(|host| !host.is_empty() && host.len() <= MAX_NAME_LEN)?;
            let port = u16::try_from(endpoint.port?).ok()?;
            Some(Endpoint { host, port })
        });
        let services = spec.cluster_network.and_then(|network| network.services);
        let control_plane = spec.control_plane_ref.and_then(|reference| reference.kind);
        Some(Self {
            paused: spec.paused == Some(true) || is_paused(&metadata),
            deleting: is_deleting(&metadata),
            endpoint,
            service_ranges: services
                .and_then(|ranges| ranges.cidr_blocks)
                .map(|all| service_ranges(&all))
                .unwrap_or_default(),
            infrastructure: Reference::within(&namespace, spec.infrastructure_ref),
            // The v1beta1 definition does not limit the length of the kind.
            control_plane: control_plane.filter(|kind| kind.len() <= MAX_KIND_LEN),
            attestors: OwnAttestors::of(&metadata, spec.topology),
            watch_filter: label(&metadata, WATCH_FILTER_LABEL).cloned(),
            uid: metadata.uid?,
        })
    }
}

/// The ranges to keep. If there are more ranges than the limit, an invalid entry replaces the remaining ones, so that
/// the list does not appear to be complete.
fn service_ranges(all: &[String]) -> Vec<String> {
    let has_more = all.len() > MAX_SERVICE_RANGES;
    let ranges = all.iter().take(MAX_SERVICE_RANGES);
    let mut ranges: Vec<String> = ranges
        .map(|range| shortened(range, MAX_RANGE_LEN).to_owned())
        .collect();
    if has_more {
        ranges.push(format!("more than {MAX_SERVICE_RANGES} ranges"));
    }
    ranges
}
