//! The Secrets of a Cluster: its CA, and the kubeconfig of its API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::{AutoApproveBindings, KubeletAuthenticationSpec};

use super::Finding;
use crate::capi::{ClusterCa, ObjectKey, TenantKubeconfig};
use crate::client::{CallError, ClusterAccess, EgressPolicy, call};
use crate::clock;
use crate::keyless_signing::KeylessSigning;

/// A CA that ends sooner cuts every certificate short.
const SOON: Duration = Duration::from_hours(30 * 24);

pub(super) async fn read(
    management: &ClusterAccess,
    key: &ObjectKey,
    suffix: &str,
) -> Result<Option<Secret>, CallError> {
    let api: Api<Secret> = Api::namespaced(management.client().clone(), &key.namespace);
    call(api.get_opt(&format!("{}-{suffix}", key.name))).await
}

/// The CA, and what was found of it.
pub(super) fn ca(
    key: &ObjectKey,
    read: &Result<Option<Secret>, CallError>,
    spec: &KubeletAuthenticationSpec,
    signing: KeylessSigning,
) -> (Finding, Option<ClusterCa>) {
    let name = format!("{}-ca", key.name);
    let secret = match read {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            let cure = "Cluster API creates it; an external control plane's has to be put there";
            return (
                Finding::fail(format!("there is no Secret {name}"), cure),
                None,
            );
        }
        Err(error) => return (Finding::failed(error, &format!("get secret {name}")), None),
    };
    let ca = match ClusterCa::from_secret(secret) {
        Ok(ca) => ca,
        Err(error) => {
            let what = format!("Secret {name} is refused: {}", error_chain(&error));
            let cure = "the cluster's CA in tls.crt, and its key, or none, in tls.key";
            return (Finding::fail(what, cure), None);
        }
    };
    let now = clock::now();
    let end = Timestamp::try_from(ca.not_after());
    let end = end.map_or_else(|_| "an unknown time".to_owned(), |end| format!("{end:.0}"));
    let finding = if let Some(error) = ca.out_of_time(now) {
        let cure = "replace the CA; requests wait until then";
        Finding::fail(format!("{error}: it ends at {end}"), cure)
    } else if ca.signer().is_none()
        && signing != KeylessSigning::External
        && spec.auto_approve_bindings != AutoApproveBindings::Remove
    {
        let cure = "start the controller with --signer-endpoint if another program has the key; otherwise set \
                    autoApproveBindings: Remove, with which requests are only approved";
        let what = format!("Secret {name} has no key, and autoApproveBindings is not Remove");
        if signing == KeylessSigning::Unknown {
            let what = format!("{what}; whether an external signer has the key is not known");
            Finding::warn(what, cure)
        } else {
            Finding::fail(what, cure)
        }
    } else if ca.not_after() < now + SOON {
        let what = format!("the CA ends at {end}, and no certificate outlives it");
        Finding::warn(what, "replace the CA")
    } else if ca.signer().is_some() {
        Finding::pass(format!(
            "valid until {end}, and the key is the certificate's"
        ))
    } else {
        let who = match signing {
            KeylessSigning::External => "the controller's external signer signs",
            KeylessSigning::ApproveOnly => "kube-controller-manager signs",
            KeylessSigning::Unknown => {
                "kube-controller-manager signs, or the controller's external signer"
            }
        };
        Finding::pass(format!("valid until {end}, without a key: {who}"))
    };
    (finding, Some(ca))
}

/// The workload cluster's API server, by Cluster API's kubeconfig.
pub(super) async fn kubeconfig(
    management: &ClusterAccess,
    key: &ObjectKey,
    reach: EgressPolicy,
) -> Result<ClusterAccess, Finding> {
    let name = format!("{}-kubeconfig", key.name);
    let secret = match read(management, key, "kubeconfig").await {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            let what = format!("there is no Secret {name}");
            return Err(Finding::fail(
                what,
                "Cluster API creates it with the control plane",
            ));
        }
        Err(error) => return Err(Finding::failed(&error, &format!("get secret {name}"))),
    };
    let text = secret.data.as_ref().and_then(|data| data.get("value"));
    let text = text.map(|bytes| bytes.0.as_slice()).unwrap_or_default();
    let parsed = TenantKubeconfig::parse(text, reach);
    parsed.and_then(|parsed| parsed.access()).map_err(|error| {
        let what = format!("Secret {name} is refused: {}", error_chain(&error));
        Finding::fail(what, "the controller refuses it, too: put the field right")
    })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::capi::ca_secret_without_key;

    /// The check of a CA without its key.
    fn found(bindings: AutoApproveBindings, signing: KeylessSigning) -> Finding {
        let mut spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        spec.auto_approve_bindings = bindings;
        let key = ObjectKey::new("tenant-a", "prod-1");
        ca(&key, &Ok(Some(ca_secret_without_key())), &spec, signing).0
    }

    #[test]
    fn a_ca_without_a_key_passes_where_an_external_signer_has_it() {
        for bindings in [AutoApproveBindings::Report, AutoApproveBindings::Remove] {
            let finding = found(bindings, KeylessSigning::External);

            assert_eq!(finding.state, State::Pass, "{finding:?}");
            let words = "without a key: the controller's external signer signs";
            assert!(finding.what.ends_with(words), "{finding:?}");
        }
    }

    #[test]
    fn a_ca_without_a_key_and_without_an_external_signer_does_not_pass_and_has_both_cures() {
        for (signing, state) in [
            (KeylessSigning::ApproveOnly, State::Fail),
            (KeylessSigning::Unknown, State::Warn),
        ] {
            let finding = found(AutoApproveBindings::Report, signing);

            assert_eq!(finding.state, state, "{finding:?}");
            assert!(finding.cure.contains("--signer-endpoint"), "{finding:?}");
            assert!(finding.cure.contains("autoApproveBindings: Remove"));
        }
    }

    #[test]
    fn kube_controller_manager_signs_where_requests_are_only_approved() {
        for (signing, words) in [
            (KeylessSigning::ApproveOnly, "kube-controller-manager signs"),
            (
                KeylessSigning::Unknown,
                "kube-controller-manager signs, or the controller's external signer",
            ),
        ] {
            let finding = found(AutoApproveBindings::Remove, signing);

            assert_eq!(finding.state, State::Pass, "{finding:?}");
            assert!(finding.what.ends_with(words), "{finding:?}");
        }
    }
}
