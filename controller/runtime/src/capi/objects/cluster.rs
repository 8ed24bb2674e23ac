//! Cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::attestors::{OwnAttestors, Topology};
use super::{Kept, Nothing, RawReference, Reference, Watched, is_deleting, is_paused};

/// A Cluster, as far as it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cluster {
    /// Its UID, which changes in a move.
    pub uid: String,
    /// Whether it is to be left alone, by its spec or its annotation.
    pub paused: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The endpoint of its API server.
    pub endpoint: Option<Endpoint>,
    /// The ranges of its Services' addresses.
    pub service_ranges: Vec<String>,
    /// Its `InfraCluster`.
    pub infrastructure: Option<Reference>,
    /// The attestors that it authorizes by itself.
    pub attestors: OwnAttestors,
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address.
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
}

impl Kept for Cluster {
    type Spec = Spec;
    type Status = Nothing;

    fn kept(metadata: ObjectMeta, spec: Spec, _: Nothing) -> Option<Self> {
        let namespace = metadata.namespace.clone()?;
        let endpoint = spec.control_plane_endpoint.and_then(|endpoint| {
            let host = endpoint.host.filter(|host| !host.is_empty())?;
            let port = u16::try_from(endpoint.port?).ok()?;
            Some(Endpoint { host, port })
        });
        let services = spec.cluster_network.and_then(|network| network.services);
        Some(Self {
            paused: spec.paused == Some(true) || is_paused(&metadata),
            deleting: is_deleting(&metadata),
            endpoint,
            service_ranges: services
                .and_then(|ranges| ranges.cidr_blocks)
                .unwrap_or_default(),
            infrastructure: Reference::within(&namespace, spec.infrastructure_ref),
            attestors: OwnAttestors::of(&metadata, spec.topology),
            uid: metadata.uid?,
            labels: metadata.labels.unwrap_or_default(),
        })
    }
}
