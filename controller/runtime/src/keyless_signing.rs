//! The signer for a Cluster whose CA Secret has no key, according to the status that the controller wrote.
//!
//! The status is used because no object contains the controller's flags.

use kubelet_attestation::names::BUILT_IN_CLIENT_SIGNER;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::crd::conditions::{self, READY, reason};

/// The message of the condition `Ready` if the controller has an external signer, but the Secret contains the CA key.
pub(crate) const SIGNER_UNUSED: &str =
    "the controller signs with the tls.key of the Secret, instead of its external signer";

/// Whether the controller signs with a key that is not in a Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeylessSigning {
    /// The controller signs: its external signer has the key.
    External,
    /// The controller does not sign: it has no external signer.
    Absent,
    /// The controller has an external signer, and signs with the key in the Secret.
    Unused,
    /// The status does not show the signer.
    Unknown,
}

impl KeylessSigning {
    /// Determines the signer from the status.
    pub(crate) fn of(authentication: &KubeletAuthentication) -> Self {
        let Some(status) = &authentication.status else {
            return Self::Unknown;
        };
        let Some(ready) = conditions::find(&status.conditions, READY) else {
            return Self::Unknown;
        };
        if ready.reason == reason::CA_KEY_NOT_FOUND {
            return Self::Absent;
        }
        // If the Cluster is not served, the status might contain an outdated signer.
        if ready.status != "True" {
            return Self::Unknown;
        }
        if ready.message == SIGNER_UNUSED {
            return Self::Unused;
        }
        match status.kubelet_client_certificate_signer.as_deref() {
            // In earlier versions, kube-controller-manager signed.
            Some(BUILT_IN_CLIENT_SIGNER) | None => Self::Unknown,
            Some(_) => Self::External,
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
        with_message(signer, ready, reason, "")
    }

    fn with_message(
        signer: Option<&str>,
        ready: &str,
        reason: &str,
        message: &str,
    ) -> KeylessSigning {
        let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        let mut authentication = KubeletAuthentication::new("prod-1", spec);
        let status = json!({
            "kubeletClientCertificateSigner": signer,
            "conditions": [{
                "type": READY, "status": ready, "reason": reason, "message": message,
                "lastTransitionTime": "2027-01-01T00:00:00Z",
            }],
        });
        authentication.status = Some(serde_json::from_value(status).unwrap());
        KeylessSigning::of(&authentication)
    }

    #[test]
    fn an_external_signer_signs_for_a_served_cluster_without_a_key() {
        let own = of(Some(OWN), "True", reason::READY);
        assert_eq!(own, KeylessSigning::External);
        let earlier = of(Some(BUILT_IN_CLIENT_SIGNER), "True", reason::READY);
        assert_eq!(earlier, KeylessSigning::Unknown);
    }

    #[test]
    fn the_message_of_a_ready_cluster_shows_an_unused_external_signer() {
        let of = |ready| with_message(Some(OWN), ready, reason::READY, SIGNER_UNUSED);
        assert_eq!(of("True"), KeylessSigning::Unused);
        assert_eq!(of("False"), KeylessSigning::Unknown);
    }

    #[test]
    fn a_missing_ca_key_reason_means_no_external_signer() {
        for signer in [None, Some(OWN), Some(BUILT_IN_CLIENT_SIGNER)] {
            let refused = of(signer, "False", reason::CA_KEY_NOT_FOUND);
            assert_eq!(refused, KeylessSigning::Absent);
        }
    }

    #[test]
    fn an_outdated_signer_status_leaves_keyless_signing_unknown() {
        for ready in ["False", "Unknown"] {
            let paused = of(Some(OWN), ready, reason::PAUSED);
            assert_eq!(paused, KeylessSigning::Unknown);
        }
        let none = of(None, "True", reason::READY);
        assert_eq!(none, KeylessSigning::Unknown);
    }
}
