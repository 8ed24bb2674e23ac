//! `InfraMachine`, of whatever provider: the contract's fields.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::names::ProviderId;
use serde::Deserialize;

use super::Kept;

/// An `InfraMachine`, as far as it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct InfraMachine {
    pub(in crate::capi) provider_id: Option<ProviderId>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(in crate::capi) struct Spec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(in crate::capi) struct Status {}

impl Kept for InfraMachine {
    type Spec = Spec;
    type Status = Status;

    fn kept(_metadata: ObjectMeta, spec: Spec, _status: Status) -> Option<Self> {
        Some(Self {
            provider_id: spec.provider_id.and_then(|id| ProviderId::parse(&id).ok()),
        })
    }
}
