//! `MachinePool`.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::names::ProviderId;
use serde::Deserialize;

use super::{
    Initialization, Kept, Reference, Watched, cluster_of, is_deleting, machine, was_bootstrapped,
};

/// A `MachinePool`, as far as it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct MachinePool {
    pub(in crate::capi) uid: String,
    pub(in crate::capi) cluster: String,
    pub(in crate::capi) deleting: bool,
    pub(in crate::capi) has_bootstrap_data: bool,
    pub(in crate::capi) provider_ids: BTreeSet<ProviderId>,
    /// Its `KubeadmConfig`.
    pub(in crate::capi) config: Option<Reference>,
    pub(in crate::capi) infrastructure: Option<Reference>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct Spec {
    cluster_name: Option<String>,
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
        let told = was_bootstrapped(status.bootstrap_ready, status.initialization.as_ref());
        Some(Self {
            cluster: cluster_of(spec.cluster_name, &metadata)?,
            deleting: is_deleting(&metadata),
            has_bootstrap_data: bootstrap.has_data() || told,
            provider_ids: ids
                .iter()
                .filter_map(|id| ProviderId::parse(id).ok())
                .collect(),
            config: bootstrap.config(&namespace),
            infrastructure: Reference::within(&namespace, template.infrastructure_ref),
            uid: metadata.uid?,
        })
    }
}
