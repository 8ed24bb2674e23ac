//! The reason why a Cluster is not served, for commands that read its objects once.

use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::Secret;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::crd::conditions::{self, ConditionStatus, READY, reason};
use node_attestation_core::verifier::Verifiers;

use super::Settings;
use super::conditions::not_ready::NotReady;
use super::conditions::out_of_time;
use super::configuration::CheckedSpec;
use super::desired_state::{Inputs, Parsed, Sources, service};
use super::kept_authentications::KeptAuthentication;
use super::single_object::Observed;
use crate::capi::{Cluster, ClusterCa, ca_secret_name};

/// The reasons about the CA in the Secret.
const OF_CA: [&str; 4] = [
    reason::CA_NOT_FOUND,
    reason::CA_INVALID,
    reason::CA_KEY_MISMATCH,
    reason::CA_EXPIRED,
];

/// The Secret with the CA of a Cluster.
#[derive(Clone, Copy)]
pub(crate) enum CaSecret<'a> {
    /// The Secret was not read.
    Unread,
    /// The Secret does not exist.
    Absent,
    /// The Secret.
    Present(&'a Secret),
}

impl<'a> CaSecret<'a> {
    /// The result of reading the Secret.
    pub(crate) fn of<E>(read: &'a Result<Option<Secret>, E>) -> Self {
        match read {
            Ok(Some(secret)) => Self::Present(secret),
            Ok(None) => Self::Absent,
            Err(_) => Self::Unread,
        }
    }
}

/// The state of a CA.
enum CaState {
    Unknown,
    Faulty(String),
    /// The CA is valid, and the Secret has its key.
    Valid,
}

/// The reason why the controller does not serve the Cluster: from its objects or, if they show no problem, from the
/// condition that the controller wrote. `None` if the Cluster is Ready. `cluster` is `None` if the Cluster does not
/// exist.
///
/// Some reasons depend on the options of the controller, or on other Clusters. Only the condition contains these
/// reasons. The kubeconfig is not checked, because a command can use a different kubeconfig.
pub(crate) fn not_served(
    authentication: &KubeletAuthentication,
    cluster: Option<&Cluster>,
    ca: CaSecret<'_>,
    verifiers: &dyn Fn(&KubeletAuthentication, &str) -> Verifiers,
    now: SystemTime,
) -> Option<String> {
    let kept = Arc::new(KeptAuthentication::new(authentication.clone()));
    let sources = Sources {
        cluster: cluster.cloned().into(),
        ca: match ca {
            CaSecret::Unread => Observed::Unknown,
            CaSecret::Absent => Observed::Absent,
            CaSecret::Present(secret) => Observed::Present(Arc::new(secret.clone())),
        },
        ..Sources::default()
    };
    let inputs = Inputs {
        authentication: &kept,
        sources: &sources,
        settings: &Settings::default(),
    };
    match service(inputs, None, &mut Parsed::default(), verifiers) {
        Err(why) if !depends_on_controller(&why) => return Some(words_of(&why)),
        // The kubeconfig is unknown, so neither the CA nor the settings were checked.
        Err(_) | Ok(_) => {}
    }
    let spec = &authentication.spec;
    let in_condition = match state_of(ca, &spec.cluster_name, now) {
        CaState::Faulty(why) => return Some(why),
        CaState::Unknown => reported(authentication),
        // The controller has not read the current CA yet.
        CaState::Valid => reported(authentication).filter(|why| !is_of_ca(why)),
    };
    match CheckedSpec::of(spec) {
        Err(invalid) => Some(words_of(&NotReady::Spec(invalid))),
        Ok(_) => in_condition,
    }
}

/// The state of the CA in this Secret. `cluster` is the name of the Cluster.
fn state_of(ca: CaSecret<'_>, cluster: &str, now: SystemTime) -> CaState {
    let name = ca_secret_name(cluster);
    let why = match ca {
        CaSecret::Unread => return CaState::Unknown,
        CaSecret::Absent => NotReady::CaNotFound(name),
        CaSecret::Present(secret) => match ClusterCa::from_secret(secret) {
            Err(source) => NotReady::CaRefused { name, source },
            Ok(ca) => {
                return match ca.out_of_time(now) {
                    Some(why) => CaState::Faulty(words(reason::CA_EXPIRED, &out_of_time(why))),
                    // An external signer can refuse the CA.
                    None if ca.signer().is_none() => CaState::Unknown,
                    None => CaState::Valid,
                };
            }
        },
    };
    CaState::Faulty(words_of(&why))
}

/// Whether the reason is about the CA in the Secret.
fn is_of_ca(why: &str) -> bool {
    let reason = why.split_once(':').map(|(reason, _)| reason);
    reason.is_some_and(|reason| OF_CA.contains(&reason))
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

fn words_of(why: &NotReady) -> String {
    words(why.reason(), &why.to_string())
}

/// Whether the reason can be wrong if the controller's options, other Clusters and tasks are unknown.
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
        | NotReady::Spec(_) => false,
    }
}

#[cfg(test)]
mod tests;
