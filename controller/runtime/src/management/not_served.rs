//! Why a Cluster is not served, for commands that read its objects once.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::crd::conditions::{self, ConditionStatus, READY};
use node_attestation_core::verifier::Verifiers;

use super::Settings;
use super::conditions::not_ready::NotReady;
use super::desired_state::{Inputs, Parsed, Sources, service};
use super::kept_authentications::KeptAuthentication;
use super::single_object::Observed;
use crate::capi::Cluster;

/// The reason why the controller does not serve the Cluster: from its objects or, if they have no fault, from the
/// condition that the controller wrote. `None` if the Cluster is Ready. `ca` is `None` if it was not read.
///
/// Some reasons depend on the options of the controller, or on other Clusters. They are only in the condition.
pub(crate) fn not_served(
    authentication: &KubeletAuthentication,
    cluster: &Cluster,
    ca: Option<&Secret>,
    verifiers: &dyn Fn(&KubeletAuthentication, &str) -> Verifiers,
) -> Option<String> {
    let kept = Arc::new(KeptAuthentication::new(authentication.clone()));
    let sources = Sources {
        cluster: Observed::Present(cluster.clone()),
        ca: ca.map_or(Observed::Unknown, |ca| {
            Observed::Present(Arc::new(ca.clone()))
        }),
        ..Sources::default()
    };
    let inputs = Inputs {
        authentication: &kept,
        sources: &sources,
        settings: &Settings::default(),
    };
    match service(inputs, None, &mut Parsed::default(), verifiers) {
        Err(why) if !depends_on_controller(&why) => Some(words(why.reason(), &why.to_string())),
        Err(_) | Ok(_) => reported(authentication),
    }
}

/// The reason in the condition `Ready`, if it is `False`.
pub(crate) fn reported(authentication: &KubeletAuthentication) -> Option<String> {
    let conditions = &authentication.status.as_ref()?.conditions;
    let ready = conditions::find(conditions, READY)?;
    let is_false = ready.status == ConditionStatus::False.to_string();
    is_false.then(|| words(&ready.reason, &ready.message))
}

fn words(reason: &str, message: &str) -> String {
    format!("{reason}: {message}")
}

/// Whether the reason can be wrong without the options of the controller, its other Clusters and its tasks.
fn depends_on_controller(why: &NotReady) -> bool {
    match why {
        NotReady::SharedCa(_)
        | NotReady::NoAttestor { .. }
        | NotReady::CaKeyNotFound(_)
        | NotReady::TooManyClusters(_)
        | NotReady::Broken => true,
        NotReady::ClusterNotFound(_)
        | NotReady::ClusterUnreadable { .. }
        | NotReady::ClusterPaused
        | NotReady::Paused
        | NotReady::Misnamed(_)
        | NotReady::KubeconfigNotFound(_)
        | NotReady::KubeconfigRefused { .. }
        | NotReady::KubeconfigUnreadable { .. }
        | NotReady::CaNotFound(_)
        | NotReady::CaRefused { .. }
        | NotReady::CaUnreadable { .. }
        | NotReady::Audience(_)
        | NotReady::Settings(_)
        | NotReady::ServingAddressRange(_) => false,
    }
}

#[cfg(test)]
mod tests;
