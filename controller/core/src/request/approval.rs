//! The approval of what kube-controller-manager is to sign.

use kubelet_attestation::names::{NodeName, ProviderId};

use super::{Asked, ControlPlaneRenewal, CorroboratedCsr};
use crate::ledger::GrantReason;
use crate::refusal::{Denial, Refusal};

/// The ground of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalReason {
    /// The name in the certificate has a record in the ledger, and it is the requesting machine's.
    NodeNameClaimed,
    /// Every name and address of the serving certificate is the requesting machine's.
    ServingNamesCorroborated,
    /// A control-plane machine renews kubeadm's certificate, as the operator allows.
    ControlPlaneRenewal,
}

impl ApprovalReason {
    /// The reason on the `Approved` condition.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NodeNameClaimed => "NodeNameClaimed",
            Self::ServingNamesCorroborated => "ServingNamesCorroborated",
            Self::ControlPlaneRenewal => "ControlPlaneRenewal",
        }
    }

    /// Whether a condition with this reason is one of ours.
    pub(super) fn is_ours(reason: &str) -> bool {
        [
            Self::NodeNameClaimed,
            Self::ServingNamesCorroborated,
            Self::ControlPlaneRenewal,
        ]
        .iter()
        .any(|basis| basis.reason() == reason)
    }
}

/// A request that passed every check, for kube-controller-manager to sign; not written yet.
#[derive(Debug)]
pub struct Approval {
    basis: ApprovalReason,
    node_name: NodeName,
    provider_id: ProviderId,
    opening: Option<GrantReason>,
}

impl CorroboratedCsr {
    /// Leaves the signing to kube-controller-manager.
    ///
    /// # Errors
    ///
    /// A request to a signer of ours denies: nobody else signs those.
    pub fn approve(self) -> Result<Approval, Refusal> {
        if self.request().asked != Asked::BuiltInServing {
            return Err(Denial::SignerPurpose.into());
        }
        Ok(Approval {
            basis: ApprovalReason::ServingNamesCorroborated,
            node_name: self.request().node_name.clone(),
            provider_id: self.identity().provider_id.clone(),
            opening: None,
        })
    }
}

impl ControlPlaneRenewal {
    /// Leaves the signing to kube-controller-manager.
    pub fn approve(self) -> Approval {
        Approval {
            basis: ApprovalReason::ControlPlaneRenewal,
            node_name: self.node_name().clone(),
            provider_id: self.provider_id().clone(),
            opening: Some(GrantReason::Renewed),
        }
    }
}

impl Approval {
    /// The ground.
    pub fn basis(&self) -> ApprovalReason {
        self.basis
    }

    /// The node that the certificate is to name.
    pub fn node_name(&self) -> &NodeName {
        &self.node_name
    }

    /// Its machine.
    pub fn provider_id(&self) -> &ProviderId {
        &self.provider_id
    }

    /// The reason of the grant of a client certificate; `None` for a serving certificate.
    pub fn opening(&self) -> Option<&GrantReason> {
        self.opening.as_ref()
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
        ] {
            assert!(ApprovalReason::is_ours(reason), "{reason}");
        }
        for reason in ["AutoApproved", "KubectlApprove", ""] {
            assert!(!ApprovalReason::is_ours(reason), "{reason}");
        }
    }
}
