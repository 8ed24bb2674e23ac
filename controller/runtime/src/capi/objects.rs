//! Cluster API objects in the contracts v1beta1 and v1beta2, reduced to the required fields.
//!
//! An invalid field value, such as an invalid provider ID, counts as missing, so that only the affected machine is not
//! ready. The secret part of a bootstrap token is dropped during decoding.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::names::{is_dns_label, is_dns_subdomain};
use node_attestation_core::crd::CLUSTER_NAME_LABEL;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use crate::object_key::{InvalidObjectKey, ObjectKey};
use crate::watch::{Custom, Unreadable, read_alone};

mod attestors;
mod bootstrap_config;
mod cluster;
mod infrastructure;
mod machine;
mod member_limit;
mod pool;
mod templates;

pub(crate) use attestors::are_same;
pub use attestors::{InvalidOwnAttestors, OwnAttestors};
pub(super) use bootstrap_config::BootstrapConfig;
pub use cluster::{Cluster, ClusterObserver, ClusterReferences, Endpoint, ReferencedObject};
pub(super) use infrastructure::{InfraMachine, InfraMachinePool};
pub(super) use machine::Machine;
pub use machine::{Attested, NODE_ATTESTED, condition_digest};
pub(super) use member_limit::MemberLimit;
pub(super) use pool::{ChangedMembers, MachinePool, label_value, last_segment};
pub(super) use templates::{
    AnyControlPlane, ControlPlaneOf, ControlPlaneReference, KubeadmControlPlane, MachineDeployment,
    MachineTemplate, PoolConfig,
};

/// The group of Cluster, Machine, `MachineDeployment` and `MachinePool`.
pub(super) const CORE_GROUP: &str = "cluster.x-k8s.io";

/// The API version for references: the version that Cluster API will serve the longest. Readers look up the served
/// version by kind.
pub(crate) const CORE_API_VERSION: &str = "cluster.x-k8s.io/v1beta2";

/// The maximum length of an object name (RFC 1123).
const MAX_NAME_LEN: usize = 253;

/// The maximum length of a stored kind: the limit that Kubernetes sets.
const MAX_KIND_LEN: usize = 63;

/// The maximum length of a stored API version, which is a DNS label. The v1beta1 definitions do not limit it.
const MAX_VERSION_LEN: usize = 63;

/// The label on a Cluster that selects one of several controllers.
pub(crate) const WATCH_FILTER_LABEL: &str = "cluster.x-k8s.io/watch-filter";

/// The annotation that pauses Cluster API's reconciliation of an object. Its value is ignored.
pub(crate) const PAUSED_ANNOTATION: &str = "cluster.x-k8s.io/paused";

/// A kind that the controller reads: the parts to decode, and the fields to keep.
pub(super) trait Kept: Clone + Debug + Send + 'static {
    /// The part of the spec to decode.
    type Spec: Clone + Debug + Default + DeserializeOwned + Send + Sync + 'static;
    /// The part of the status to decode.
    type Status: Clone + Debug + Default + DeserializeOwned + Send + Sync + 'static;

    /// The fields to keep. `None` if the object does not belong to a cluster.
    fn kept(metadata: ObjectMeta, spec: Self::Spec, status: Self::Status) -> Option<Self>;
}

/// A watched object of the group [`CORE_GROUP`].
pub(super) trait Watched: Kept {
    /// Its kind.
    const KIND: &'static str;
    /// Whether Cluster API can run without this kind.
    const MAY_BE_ABSENT: bool;
    /// Whether other tasks wait for changes to objects of this kind.
    const IS_CLUSTER: bool = false;

    /// Notifies the observer of Clusters, if the object is a Cluster.
    ///
    /// # Errors
    ///
    /// Returns an error if the observer cannot read the object.
    fn tell(
        _observer: &dyn ClusterObserver,
        _key: &ObjectKey,
        _object: &Raw<Self>,
    ) -> Result<(), Unreadable> {
        Ok(())
    }
}

/// An object as an API server returns it. Any content decodes without an error.
pub(super) type Raw<W> = Custom<Fields<W>>;

/// The parts of an object to decode.
#[derive(Debug, Clone, Deserialize)]
#[serde(bound = "")]
pub(super) struct Fields<W: Kept> {
    spec: Option<W::Spec>,
    status: Option<W::Status>,
}

read_alone! {
    "Cluster" => Fields<Cluster>,
    "Cluster with its control plane" => Fields<ControlPlaneOf>,
    "control plane of any kind" => Fields<AnyControlPlane>,
    "InfraMachine" => Fields<InfraMachine>,
    "InfraMachinePool" => Fields<InfraMachinePool>,
    "KubeadmConfig" => Fields<BootstrapConfig>,
    "KubeadmConfig of a pool" => Fields<PoolConfig>,
    "KubeadmConfigTemplate" => Fields<MachineTemplate>,
    "KubeadmControlPlane" => Fields<KubeadmControlPlane>,
    "Machine" => Fields<Machine>,
    "MachineDeployment" => Fields<MachineDeployment>,
    "MachinePool" => Fields<MachinePool>,
}

/// The content of an object that has no fields to decode.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Nothing {}

impl<W: Kept> Raw<W> {
    /// The key of the object. `None` if the object has no name or namespace, which no API server returns.
    pub(super) fn key(&self) -> Option<ObjectKey> {
        ObjectKey::of(&self.metadata)
    }

    /// Converts the object to its stored form.
    ///
    /// # Errors
    ///
    /// Returns an error if a required field has an invalid type.
    pub(super) fn kept(self) -> Result<Option<W>, Unreadable> {
        let Fields { spec, status } = self.object?;
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        Ok(W::kept(self.metadata, spec, status))
    }
}

/// A reference in a spec to an object in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The group.
    pub group: String,
    /// The version, if the contract includes it (v1beta1).
    pub version: Option<String>,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
}

/// A reference in either contract: `apiVersion` (v1beta1) or `apiGroup` (v1beta2).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawReference {
    api_version: Option<String>,
    api_group: Option<String>,
    kind: Option<String>,
    name: Option<String>,
    namespace: Option<String>,
}

impl Reference {
    /// The reference from an object in `namespace`. `None` if it refers to another namespace, which can belong to
    /// another tenant.
    ///
    /// Parts of the reference become URL path segments, so the reference is invalid if one of them is not a valid
    /// segment.
    fn within(namespace: &str, raw: Option<RawReference>) -> Option<Self> {
        let raw = raw?;
        let is_inside = |own: &String| own == namespace || own.is_empty();
        if !raw.namespace.as_ref().is_none_or(is_inside) {
            return None;
        }
        let (group, version) = match (raw.api_group, raw.api_version) {
            (Some(group), _) => (group, None),
            (None, Some(api_version)) => {
                let (group, version) = api_version.split_once('/')?;
                (group.to_owned(), Some(version.to_owned()))
            }
            (None, None) => return None,
        };
        let is_version = |text: &str| text.len() <= MAX_VERSION_LEN && is_dns_label(text);
        let is_valid = is_dns_subdomain(&group) && version.as_deref().is_none_or(is_version);
        is_valid.then_some(Self {
            group,
            version,
            kind: raw
                .kind
                .filter(|kind| !kind.is_empty() && kind.len() <= MAX_KIND_LEN)?,
            name: raw.name.filter(|name| is_dns_subdomain(name))?,
        })
    }
}

/// The `KubeadmConfig` of a Machine or a pool in the same namespace. The group and the kind are omitted, because they
/// are always the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigReference {
    version: Option<String>,
    pub(super) name: String,
}

impl ConfigReference {
    const GROUP: &'static str = "bootstrap.cluster.x-k8s.io";
    const KIND: &'static str = "KubeadmConfig";

    /// The complete reference.
    pub(super) fn complete(&self) -> Reference {
        Reference {
            group: Self::GROUP.to_owned(),
            version: self.version.clone(),
            kind: Self::KIND.to_owned(),
            name: self.name.clone(),
        }
    }
}

/// The initialization status in v1beta2. Its fields never become false again.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Initialization {
    bootstrap_data_secret_created: Option<bool>,
    infrastructure_provisioned: Option<bool>,
}

/// Whether the bootstrap data was created, as reported in v1beta1 (`bootstrapReady`) or v1beta2.
fn was_bootstrapped(ready: Option<bool>, initialization: Option<&Initialization>) -> bool {
    let created = initialization.and_then(|one| one.bootstrap_data_secret_created);
    created == Some(true) || ready == Some(true)
}

/// The bootstrap configuration of a machine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bootstrap {
    config_ref: Option<RawReference>,
    data_secret_name: Option<String>,
}

impl Bootstrap {
    /// Whether a provider or a user has set the Secret with the bootstrap data.
    fn has_data(&self) -> bool {
        let name = self.data_secret_name.as_ref();
        name.is_some_and(|name| !name.is_empty())
    }

    /// The reference to the `KubeadmConfig`. Configurations for other bootstrap providers are not read.
    fn config(self, namespace: &str) -> Option<ConfigReference> {
        let found = Reference::within(namespace, self.config_ref)?;
        let is_config =
            found.group == ConfigReference::GROUP && found.kind == ConfigReference::KIND;
        is_config.then_some(ConfigReference {
            version: found.version,
            name: found.name,
        })
    }
}

/// The cluster to which an object belongs: from its spec, where Cluster API requires it, or else from its label.
pub(super) fn cluster_of(spec: Option<String>, metadata: &ObjectMeta) -> Option<String> {
    let given = |name: &String| !name.is_empty() && name.len() <= MAX_NAME_LEN;
    let labelled = || label(metadata, CLUSTER_NAME_LABEL).cloned().filter(given);
    spec.filter(given).or_else(labelled)
}

fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a String> {
    metadata.labels.as_ref()?.get(key)
}

/// Whether the object has Cluster API's pause annotation.
pub(crate) fn is_paused(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(PAUSED_ANNOTATION))
}

fn is_deleting(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests;
