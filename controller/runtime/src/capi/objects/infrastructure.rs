//! `InfraMachine` and `InfraMachinePool` of any infrastructure provider, reduced to the fields in the contract.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::names::ProviderId;
use serde::Deserialize;

use super::{Kept, Nothing};

/// The required fields of an `InfraMachine`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct InfraMachine {
    pub(in crate::capi) provider_id: Option<ProviderId>,
    /// Whether the provider ID is missing. An invalid provider ID does not count as missing.
    pub(in crate::capi) unnamed: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(in crate::capi) struct Spec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

impl Kept for InfraMachine {
    type Spec = Spec;
    type Status = Nothing;

    fn kept(_: ObjectMeta, spec: Spec, _: Nothing) -> Option<Self> {
        let reported = spec.provider_id.filter(|id| !id.is_empty());
        Some(Self {
            unnamed: reported.is_none(),
            provider_id: reported.and_then(|id| ProviderId::parse(&id).ok()),
        })
    }
}

/// The required fields of an `InfraMachinePool`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct InfraMachinePool {
    /// Whether the provider creates a Machine for each member.
    pub(in crate::capi) has_machines: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct PoolStatus {
    infrastructure_machine_kind: Option<String>,
}

impl Kept for InfraMachinePool {
    type Spec = Nothing;
    type Status = PoolStatus;

    fn kept(_: ObjectMeta, _: Nothing, status: PoolStatus) -> Option<Self> {
        let kind = status.infrastructure_machine_kind;
        Some(Self {
            has_machines: kind.is_some_and(|kind| !kind.is_empty()),
        })
    }
}
