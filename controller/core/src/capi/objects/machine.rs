//! Machine.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::names::{NodeName, ProviderId};
use serde::Deserialize;

use super::{
    Bootstrap, CORE_GROUP, Initialization, Kept, RawReference, Reference, Watched, cluster_of,
    is_deleting, was_bootstrapped,
};

/// On every Machine of a control plane; its value does not matter.
const CONTROL_PLANE_LABEL: &str = "cluster.x-k8s.io/control-plane";

/// The pool that a Machine is a member of, or a digest of its name where that is long.
const POOL_LABEL: &str = "cluster.x-k8s.io/pool-name";

/// More than any infrastructure gives one machine.
const MAX_ADDRESSES: usize = 64;

/// A Machine, as far as it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct Machine {
    pub(in crate::capi) uid: String,
    pub(in crate::capi) cluster: String,
    pub(in crate::capi) deleting: bool,
    pub(in crate::capi) has_bootstrap_data: bool,
    pub(in crate::capi) provider_id: Option<ProviderId>,
    pub(in crate::capi) config: Option<Reference>,
    pub(in crate::capi) infrastructure: Option<Reference>,
    pub(in crate::capi) pool: Option<String>,
    pub(in crate::capi) control_plane: bool,
    pub(in crate::capi) node: Option<NodeName>,
    pub(in crate::capi) addresses: Vec<IpAddr>,
    pub(in crate::capi) dns_names: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct Spec {
    cluster_name: Option<String>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    bootstrap: Option<Bootstrap>,
    infrastructure_ref: Option<RawReference>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct Status {
    bootstrap_ready: Option<bool>,
    initialization: Option<Initialization>,
    addresses: Option<Vec<Address>>,
    node_ref: Option<NodeRef>,
}

#[derive(Debug, Clone, Deserialize)]
struct NodeRef {
    name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Address {
    address: Option<String>,
}

impl Watched for Machine {
    const GROUP: &'static str = CORE_GROUP;
    const KIND: &'static str = "Machine";
    const MAY_BE_ABSENT: bool = false;
}

impl Kept for Machine {
    type Spec = Spec;
    type Status = Status;

    fn kept(metadata: ObjectMeta, spec: Spec, status: Status) -> Option<Self> {
        let namespace = metadata.namespace.clone()?;
        let bootstrap = spec.bootstrap.unwrap_or_default();
        let (addresses, dns_names) = told_apart(status.addresses.unwrap_or_default());
        let told = was_bootstrapped(status.bootstrap_ready, status.initialization.as_ref());
        Some(Self {
            cluster: cluster_of(spec.cluster_name, &metadata)?,
            deleting: is_deleting(&metadata),
            has_bootstrap_data: bootstrap.has_data() || told,
            provider_id: spec.provider_id.and_then(|id| ProviderId::parse(&id).ok()),
            config: bootstrap
                .config_ref
                .and_then(|reference| reference.within(&namespace)),
            infrastructure: spec
                .infrastructure_ref
                .and_then(|reference| reference.within(&namespace)),
            pool: pool_of(&metadata),
            control_plane: label(&metadata, CONTROL_PLANE_LABEL).is_some(),
            node: status
                .node_ref
                .and_then(|node| NodeName::parse(&node.name?).ok()),
            addresses,
            dns_names,
            uid: metadata.uid?,
        })
    }
}

/// The pool, by its name where it owns the Machine, as it does; else as the label has it.
fn pool_of(metadata: &ObjectMeta) -> Option<String> {
    let owners = metadata.owner_references.iter().flatten();
    let pool = owners
        .filter(|owner| owner.kind == "MachinePool")
        .find(|owner| owner.api_version.split('/').next() == Some(CORE_GROUP));
    pool.map(|pool| pool.name.clone())
        .or_else(|| label(metadata, POOL_LABEL).cloned())
        .filter(|name| !name.is_empty())
}

fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a String> {
    metadata.labels.as_ref()?.get(key)
}

/// Addresses and names: a type tells no more than the text, for a `Hostname` may be either.
fn told_apart(reported: Vec<Address>) -> (Vec<IpAddr>, Vec<String>) {
    let (mut addresses, mut names) = (Vec::new(), Vec::new());
    let reported = reported.into_iter().filter_map(|one| one.address);
    for address in reported.take(MAX_ADDRESSES) {
        if let Ok(address) = address.parse() {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        } else if !address.is_empty() {
            let name = address.to_ascii_lowercase();
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    (addresses, names)
}
