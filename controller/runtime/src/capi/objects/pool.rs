//! `MachinePool`.

use std::borrow::Cow;

use data_encoding::BASE64URL_NOPAD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::names::ProviderId;
use serde::Deserialize;

use super::{
    ConfigReference, Initialization, Kept, MemberLimit, Reference, Watched, cluster_of,
    is_deleting, machine, was_bootstrapped,
};
use crate::shared::visited;

/// The maximum number of pool members to keep, which is the limit in v1beta2.
pub(in crate::capi) const MAX_PROVIDER_IDS: usize = 10_000;

/// The memory for a member in addition to its provider ID: the string's header, and two index entries.
const MEMBER_LEN: usize = 128;

/// The required fields of a `MachinePool`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct MachinePool {
    pub(in crate::capi) uid: String,
    pub(in crate::capi) cluster: String,
    pub(in crate::capi) deleting: bool,
    pub(in crate::capi) has_bootstrap_data: bool,
    pub(in crate::capi) provider_ids: MemberIds,
    /// The limit that truncated `provider_ids`.
    pub(in crate::capi) cut: Option<MemberLimit>,
    /// Whether the pool has at least the number of members that its `spec.replicas` requires.
    is_complete: bool,
    /// The `KubeadmConfig`.
    pub(in crate::capi) config: Option<ConfigReference>,
    pub(in crate::capi) infrastructure: Option<Reference>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct Spec {
    cluster_name: Option<String>,
    replicas: Option<i32>,
    #[serde(rename = "providerIDList")]
    provider_ids: Option<Vec<String>>,
    template: Option<Template>,
}

#[derive(Debug, Clone, Deserialize)]
struct Template {
    spec: Option<machine::Spec>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct Status {
    bootstrap_ready: Option<bool>,
    initialization: Option<Initialization>,
}

impl Watched for MachinePool {
    const KIND: &'static str = "MachinePool";
    const MAY_BE_ABSENT: bool = true;
}

impl Kept for MachinePool {
    type Spec = Spec;
    type Status = Status;

    fn kept(metadata: ObjectMeta, spec: Spec, status: Status) -> Option<Self> {
        let namespace = metadata.namespace.clone()?;
        let template = spec.template.and_then(|template| template.spec);
        let template = template.unwrap_or_default();
        let bootstrap = template.bootstrap.unwrap_or_default();
        let ids = spec.provider_ids.unwrap_or_default();
        let mut ids = ids.iter().filter_map(|id| ProviderId::parse(id).ok());
        let provider_ids: MemberIds = ids.by_ref().take(MAX_PROVIDER_IDS).collect();
        let cut = ids.next().map(|_| MemberLimit::Pool);
        let wanted = spec
            .replicas
            .and_then(|wanted| usize::try_from(wanted).ok());
        let is_complete = wanted.is_some_and(|wanted| provider_ids.0.len() >= wanted);
        let is_bootstrapped =
            was_bootstrapped(status.bootstrap_ready, status.initialization.as_ref());
        Some(Self {
            cluster: cluster_of(spec.cluster_name, &metadata)?,
            deleting: is_deleting(&metadata),
            has_bootstrap_data: bootstrap.has_data() || is_bootstrapped,
            provider_ids,
            cut,
            is_complete,
            config: bootstrap.config(&namespace),
            infrastructure: Reference::within(&namespace, template.infrastructure_ref),
            uid: metadata.uid?,
        })
    }
}

/// The members that a new version of a pool adds and removes.
#[derive(Debug, Default)]
pub(in crate::capi) struct ChangedMembers {
    /// The new members.
    pub(in crate::capi) added: Vec<ProviderId>,
    /// The members that a scale-down removed.
    pub(in crate::capi) removed: Vec<ProviderId>,
}

impl MachinePool {
    /// All members of a new pool. Another pool can have listed them before.
    pub(in crate::capi) fn all_added(&self) -> ChangedMembers {
        ChangedMembers {
            added: self.provider_ids.iter().cloned().collect(),
            removed: Vec::new(),
        }
    }

    /// The members that differ from the previous version of this pool.
    ///
    /// A pool has no deletion time for a member. A member was removed by a scale-down if the pool still has the number
    /// of members that it requires, and lists no new member. An infrastructure provider that returns an incomplete list,
    /// or that rewrites its IDs, does not scale a pool.
    pub(in crate::capi) fn changed_from(&self, before: &Self) -> ChangedMembers {
        if self.provider_ids == before.provider_ids {
            return ChangedMembers::default();
        }
        let added = self.provider_ids.without(&before.provider_ids);
        let is_scaled = added.is_empty() && self.is_complete && self.cut.is_none();
        let removed = is_scaled.then(|| before.provider_ids.without(&self.provider_ids));
        ChangedMembers {
            added,
            removed: removed.unwrap_or_default(),
        }
    }
}

/// The provider IDs of a pool's members, without duplicates, sorted by member name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct MemberIds(Vec<ProviderId>);

impl FromIterator<ProviderId> for MemberIds {
    fn from_iter<T: IntoIterator<Item = ProviderId>>(ids: T) -> Self {
        let mut ids: Vec<ProviderId> = ids.into_iter().collect();
        ids.sort_unstable_by(|a, b| order(a).cmp(&order(b)));
        ids.dedup();
        Self(ids)
    }
}

impl MemberIds {
    pub(in crate::capi) fn iter(&self) -> impl Iterator<Item = &ProviderId> {
        self.0.iter()
    }

    /// The memory that the IDs use.
    pub(in crate::capi) fn memory(&self) -> usize {
        self.0.iter().map(memory_of).sum()
    }

    /// Removes the IDs that do not fit into this memory. IDs in `known` were stored before, and are kept.
    pub(in crate::capi) fn fit(&mut self, room: usize, known: Option<&Self>) {
        let is_known = |id: &ProviderId| known.is_some_and(|known| known.contains(id));
        let stay = self.0.iter().filter(|id| is_known(id));
        let mut used: usize = stay.map(memory_of).sum();
        self.0.retain(|id| {
            if is_known(id) {
                return true;
            }
            let next = used + memory_of(id);
            let fits = next <= room;
            if fits {
                used = next;
            }
            fits
        });
        self.0.shrink_to_fit();
    }

    /// The IDs that `others` does not contain.
    fn without(&self, others: &Self) -> Vec<ProviderId> {
        let missing = self.0.iter().filter(|id| !others.contains(id));
        missing.cloned().collect()
    }

    /// Whether the pool has a member with this ID.
    pub(in crate::capi) fn contains(&self, id: &ProviderId) -> bool {
        let found = self.0.binary_search_by(|one| order(one).cmp(&order(id)));
        found.is_ok()
    }

    /// The IDs of all members with this name.
    pub(in crate::capi) fn named<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = &'a ProviderId> {
        let before = self.0.partition_point(|id| last_segment(id) < Some(name));
        let named = self.0.iter().skip(before);
        visited(named.take_while(move |id| last_segment(id) == Some(name)))
    }
}

fn memory_of(id: &ProviderId) -> usize {
    id.as_str().len() + MEMBER_LEN
}

fn order(id: &ProviderId) -> (Option<&str>, &str) {
    (last_segment(id), id.as_str())
}

/// The name of a machine that has no name in its infrastructure: the last segment of its provider ID.
pub(in crate::capi) fn last_segment(id: &ProviderId) -> Option<&str> {
    let (_, segment) = id.as_str().rsplit_once('/')?;
    Some(segment)
}

/// The maximum length of a label value.
const MAX_LABEL_LEN: usize = 63;

/// Converts a name to a label value. A name that is too long is replaced with its FNV-1a hash (Cluster API,
/// `util/labels/format.MustFormatValue`).
pub(in crate::capi) fn label_value(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_LABEL_LEN {
        return name.into();
    }
    let digest = name.bytes().fold(0x811c_9dc5_u32, |digest, byte| {
        (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("hash_{}_z", BASE64URL_NOPAD.encode(&digest.to_be_bytes())).into()
}
