//! The signer of a Cluster whose CA Secret has no key, as the status written by the controller tells.
//!
//! The flags of the controller are not in any object; what it does by them is.

use kubelet_attestation::names::BUILT_IN_CLIENT_SIGNER;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::crd::conditions::{self, READY, reason};

/// Whether the controller signs with a key that is in no Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeylessSigning {
    /// It signs: its external signer has the key.
    External,
    /// It has no external signer.
    ApproveOnly,
    /// The status does not tell: the Cluster is not served.
    Unknown,
}

impl KeylessSigning {
    /// By the status.
    pub(crate) fn of(authentication: &KubeletAuthentication) -> Self {
        let Some(status) = &authentication.status else {
            return Self::Unknown;
        };
        let Some(ready) = conditions::find(&status.conditions, READY) else {
            return Self::Unknown;
        };
        if ready.reason == reason::APPROVE_ONLY_NOT_ALLOWED {
            return Self::ApproveOnly;
        }
        // Of a Cluster that is not served, the signer is that of former times.
        if ready.status != "True" {
            return Self::Unknown;
        }
        match status.kubelet_client_certificate_signer.as_deref() {
            Some(BUILT_IN_CLIENT_SIGNER) => Self::ApproveOnly,
            Some(_) => Self::External,
            None => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use node_attestation_core::crd::KubeletAuthenticationSpec;
    use serde_json::json;

    use super::*;

    const OWN: &str = "aws.kubelet-attestation.io/kubelet-client";

    fn of(signer: Option<&str>, ready: &str, reason: &str) -> KeylessSigning {
        let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        let mut authentication = KubeletAuthentication::new("prod-1", spec);
        let status = json!({
            "kubeletClientCertificateSigner": signer,
            "conditions": [{
                "type": READY, "status": ready, "reason": reason, "message": "",
                "lastTransitionTime": "2027-01-01T00:00:00Z",
            }],
        });
        authentication.status = Some(serde_json::from_value(status).unwrap());
        KeylessSigning::of(&authentication)
    }

    #[test]
    fn the_signer_that_kubelets_ask_tells_whether_the_controller_signs() {
        let own = of(Some(OWN), "True", reason::READY);
        assert_eq!(own, KeylessSigning::External);
        let built_in = of(Some(BUILT_IN_CLIENT_SIGNER), "True", reason::READY);
        assert_eq!(built_in, KeylessSigning::ApproveOnly);
    }

    #[test]
    fn the_signer_of_former_times_tells_nothing() {
        for ready in ["False", "Unknown"] {
            let paused = of(Some(OWN), ready, reason::PAUSED);
            assert_eq!(paused, KeylessSigning::Unknown);
        }
        let refused = of(Some(OWN), "False", reason::APPROVE_ONLY_NOT_ALLOWED);
        assert_eq!(refused, KeylessSigning::ApproveOnly);
        let none = of(None, "True", reason::READY);
        assert_eq!(none, KeylessSigning::Unknown);
    }
}
