//! Machine.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::time::SystemTime;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::crd::BOOTSTRAP_TOKEN_ANNOTATION;
use node_attestation_core::crd::conditions::ConditionStatus;
use node_attestation_core::identifiers::{TokenId, dns_form};
use serde::Deserialize;

use super::{
    Bootstrap, CORE_GROUP, ConfigReference, Initialization, Kept, MAX_NAME_LEN, MemberLimit,
    RawReference, Reference, Watched, cluster_of, is_deleting, label, was_bootstrapped,
};

/// The label on every control-plane Machine. Its value is ignored.
const CONTROL_PLANE_LABEL: &str = "cluster.x-k8s.io/control-plane";

/// The label with the name of a Machine's pool, or with a digest of this name if the name is long.
const POOL_LABEL: &str = "cluster.x-k8s.io/pool-name";

/// The condition on a Machine that reports whether its node is attested.
pub const NODE_ATTESTED: &str = "attestation.cluster.x-k8s.io/NodeAttested";

/// The condition [`NODE_ATTESTED`] of a Machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attested {
    /// The status.
    pub status: ConditionStatus,
    /// The time of the last transition.
    pub since: SystemTime,
    /// A digest of the reason and the message.
    pub condition_digest: u64,
}

/// A digest of a reason and a message, used only to detect changes.
pub fn condition_digest(reason: &str, message: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (reason, message).hash(&mut hasher);
    hasher.finish()
}

/// The maximum number of addresses to keep. No infrastructure assigns more addresses to a machine.
const MAX_ADDRESSES: usize = 64;

/// The maximum total length of these addresses, so that thousands of Machines use little memory. 64 IPv6 addresses have
/// 2,496 characters.
const MAX_REPORTED_LEN: usize = 4096;

/// The memory for a reported address, or for a reported name in addition to its bytes: the string's header, and an
/// index entry.
const REPORTED_LEN: usize = 64;

/// The memory for reported addresses and names that each Machine can use without a limit for its namespace. Machines of
/// common infrastructures use less than half of it.
const UNCOUNTED_LEN: usize = 2048;

/// The required fields of a Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each has a different meaning"
)]
pub(in crate::capi) struct Machine {
    pub(in crate::capi) uid: String,
    pub(in crate::capi) cluster: String,
    pub(in crate::capi) deleting: bool,
    pub(in crate::capi) has_bootstrap_data: bool,
    /// Whether the infrastructure has reported all values for a booting machine. The provider ID is reported first, and
    /// the addresses are reported with this state. The field is also false if the addresses or names exceed their
    /// limits, because the machine might have more of them.
    pub(in crate::capi) provisioned: bool,
    pub(in crate::capi) provider_id: Option<ProviderId>,
    /// The `KubeadmConfig`.
    pub(in crate::capi) config: Option<ConfigReference>,
    /// The name of the `InfraMachine`.
    pub(in crate::capi) infra_name: Option<String>,
    /// The `InfraMachine`, if the Machine has no provider ID. The provider ID is then read from the `InfraMachine`.
    pub(in crate::capi) infrastructure: Option<Box<Reference>>,
    pub(in crate::capi) pool: Option<String>,
    pub(in crate::capi) control_plane: bool,
    pub(in crate::capi) node: Option<NodeName>,
    pub(in crate::capi) addresses: Vec<IpAddr>,
    pub(in crate::capi) dns_names: Vec<String>,
    /// The host names that a Node can have as its name.
    pub(in crate::capi) host_names: Vec<NodeName>,
    /// The bootstrap token that an operator has assigned to the Machine.
    pub(in crate::capi) assigned_token: Option<TokenId>,
    /// The condition [`NODE_ATTESTED`], if its status is valid.
    pub(in crate::capi) attested: Option<Attested>,
    /// The limit that caused the reported addresses and names to be omitted.
    pub(in crate::capi) cut: Option<MemberLimit>,
}

impl Machine {
    /// The memory that the reported addresses and names use, above [`UNCOUNTED_LEN`].
    pub(in crate::capi) fn counted_memory(&self) -> usize {
        let names = self.dns_names.iter().map(String::len);
        let hosts = self.host_names.iter().map(|name| name.as_str().len());
        let names: usize = names.chain(hosts).map(|len| len + REPORTED_LEN).sum();
        let addresses = self.addresses.len() * REPORTED_LEN;
        (names + addresses).saturating_sub(UNCOUNTED_LEN)
    }

    /// Omits the reported addresses and names, because of this limit. Keeps other data, such as the provider ID.
    pub(in crate::capi) fn omit_reported(&mut self, limit: MemberLimit) {
        (self.addresses, self.dns_names, self.host_names) = (Vec::new(), Vec::new(), Vec::new());
        // The Machine's own addresses and names might be among the omitted ones.
        self.provisioned = false;
        self.cut = Some(limit);
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct Spec {
    cluster_name: Option<String>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    pub(super) bootstrap: Option<Bootstrap>,
    pub(super) infrastructure_ref: Option<RawReference>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct Status {
    bootstrap_ready: Option<bool>,
    infrastructure_ready: Option<bool>,
    initialization: Option<Initialization>,
    addresses: Option<Vec<Address>>,
    node_ref: Option<NodeRef>,
    conditions: Option<Vec<Condition>>,
    /// The v1beta1 field that contains conditions in the v1beta2 format.
    v1beta2: Option<Newer>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Newer {
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: Option<String>,
    status: Option<String>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    last_transition_time: Option<Time>,
}

impl Status {
    fn attested(&self) -> Option<Attested> {
        let newer = self
            .v1beta2
            .as_ref()
            .and_then(|one| one.conditions.as_ref());
        let mut conditions = self.conditions.iter().chain(newer).flatten();
        let found = conditions.find(|one| one.kind.as_deref() == Some(NODE_ATTESTED))?;
        Some(Attested {
            status: match found.status.as_deref() {
                Some("True") => ConditionStatus::True,
                Some("False") => ConditionStatus::False,
                Some("Unknown") => ConditionStatus::Unknown,
                _ => return None,
            },
            since: found.last_transition_time.as_ref()?.0.into(),
            condition_digest: condition_digest(&found.reason, &found.message),
        })
    }
}

#[derive(Debug, Clone, Deserialize)]
struct NodeRef {
    name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: Option<String>,
    address: Option<String>,
}

impl Watched for Machine {
    const KIND: &'static str = "Machine";
    const MAY_BE_ABSENT: bool = false;
}

impl Kept for Machine {
    type Spec = Spec;
    type Status = Status;

    fn kept(metadata: ObjectMeta, spec: Spec, status: Status) -> Option<Self> {
        let namespace = metadata.namespace.clone()?;
        let bootstrap = spec.bootstrap.unwrap_or_default();
        let attested = status.attested();
        let mut reported = status.addresses.unwrap_or_default();
        let count = reported.len();
        reported.truncate(MAX_ADDRESSES);
        let mut room = MAX_REPORTED_LEN;
        reported.retain(|one| {
            let len = one.address.as_ref().map_or(0, String::len);
            let rest = room.checked_sub(len);
            room = rest.unwrap_or(room);
            rest.is_some()
        });
        let are_all = reported.len() == count;
        let host_names = host_names(&reported);
        let (addresses, dns_names) = split_reported(reported);
        let initialization = status.initialization.as_ref();
        let is_bootstrapped = was_bootstrapped(status.bootstrap_ready, initialization);
        let provisioned = initialization.and_then(|one| one.infrastructure_provisioned);
        let provider_id = spec.provider_id.and_then(|id| ProviderId::parse(&id).ok());
        let infrastructure = Reference::within(&namespace, spec.infrastructure_ref);
        Some(Self {
            cluster: cluster_of(spec.cluster_name, &metadata)?,
            deleting: is_deleting(&metadata),
            has_bootstrap_data: bootstrap.has_data() || is_bootstrapped,
            provisioned: are_all
                && (provisioned == Some(true) || status.infrastructure_ready == Some(true)),
            config: bootstrap.config(&namespace),
            infra_name: infrastructure.as_ref().map(|one| one.name.clone()),
            infrastructure: infrastructure
                .filter(|_| provider_id.is_none())
                .map(Box::new),
            provider_id,
            pool: pool_of(&metadata),
            assigned_token: assigned_token(&metadata),
            control_plane: label(&metadata, CONTROL_PLANE_LABEL).is_some(),
            node: status
                .node_ref
                .and_then(|node| NodeName::parse(&node.name?).ok()),
            addresses,
            dns_names,
            host_names,
            attested,
            cut: None,
            uid: metadata.uid?,
        })
    }
}

fn assigned_token(metadata: &ObjectMeta) -> Option<TokenId> {
    let annotations = metadata.annotations.as_ref()?;
    TokenId::parse(annotations.get(BOOTSTRAP_TOKEN_ANNOTATION)?).ok()
}

/// The name of the pool: from the owner reference or, if there is none, from the label.
fn pool_of(metadata: &ObjectMeta) -> Option<String> {
    let mut owners = metadata.owner_references.iter().flatten();
    let pool = owners.find(|owner| {
        let group = owner.api_version.split('/').next();
        owner.kind == "MachinePool" && group == Some(CORE_GROUP)
    });
    let name = pool.map(|pool| &pool.name);
    let name = name.or_else(|| label(metadata, POOL_LABEL));
    name.filter(|name| !name.is_empty() && name.len() <= MAX_NAME_LEN)
        .cloned()
}

/// The host's internal names. Excludes names for external clients (`ExternalDNS`).
fn host_names(reported: &[Address]) -> Vec<NodeName> {
    let of_host = |one: &&Address| matches!(one.kind.as_deref(), Some("Hostname" | "InternalDNS"));
    let names = reported.iter().filter(of_host).filter_map(|one| {
        let name = dns_form(one.address.as_ref()?);
        let is_name = name.parse::<IpAddr>().is_err();
        is_name.then(|| NodeName::parse(&name).ok())?
    });
    names.collect()
}

/// Splits the list into addresses and names. The reported type is ignored, because a `Hostname` can contain an address
/// or a name.
fn split_reported(reported: Vec<Address>) -> (Vec<IpAddr>, Vec<String>) {
    let (mut addresses, mut names) = (Vec::new(), Vec::new());
    for address in reported.into_iter().filter_map(|one| one.address) {
        if let Ok(address) = address.parse() {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        } else if !address.is_empty() && address.len() <= MAX_NAME_LEN {
            let name = dns_form(&address);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    // Frees unused capacity, because the addresses are stored as long as the Machine exists.
    addresses.shrink_to_fit();
    names.shrink_to_fit();
    (addresses, names)
}
