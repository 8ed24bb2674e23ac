//! The reasons on the `Approved` condition.

/// The reason for an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalReason {
    /// The name in the certificate has a node identity, and the requesting machine holds it.
    NodeNameClaimed,
    /// All names and addresses in the serving certificate belong to the requesting machine.
    ServingNamesCorroborated,
    /// A control-plane machine renews kubeadm's certificate. `exemptNodes` contains `ControlPlane`.
    ControlPlaneRenewal,
    /// A Node without the plugin renews its certificate. `exemptNodes` contains its name.
    ExemptRenewal,
}

impl ApprovalReason {
    /// The reason on the `Approved` condition.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NodeNameClaimed => "NodeNameClaimed",
            Self::ServingNamesCorroborated => "ServingNamesCorroborated",
            Self::ControlPlaneRenewal => "ControlPlaneRenewal",
            Self::ExemptRenewal => "ExemptRenewal",
        }
    }

    /// Whether the controller sets conditions with this reason.
    pub fn is_ours(reason: &str) -> bool {
        [
            Self::NodeNameClaimed,
            Self::ServingNamesCorroborated,
            Self::ControlPlaneRenewal,
            Self::ExemptRenewal,
        ]
        .iter()
        .any(|one| one.reason() == reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_condition_is_recognized_by_its_reason() {
        for reason in [
            "NodeNameClaimed",
            "ServingNamesCorroborated",
            "ControlPlaneRenewal",
            "ExemptRenewal",
        ] {
            assert!(ApprovalReason::is_ours(reason), "{reason}");
        }
        for reason in ["AutoApproved", "KubectlApprove", ""] {
            assert!(!ApprovalReason::is_ours(reason), "{reason}");
        }
    }
}
