//! The approval of requests that kube-controller-manager signs.

use kubelet_attestation::names::{NodeName, ProviderId};

use super::{ApprovalReason, CorroboratedCsr, ExemptRenewal, SignerKind};
use crate::ledger::GrantReason;
use crate::refusal::{Denial, Refusal};

/// A request that passed every check and that kube-controller-manager must sign. The approval is not written yet.
#[derive(Debug)]
pub struct Approval {
    reason: ApprovalReason,
    node_name: NodeName,
    provider_id: Option<ProviderId>,
    grant_reason: Option<GrantReason>,
}

impl CorroboratedCsr {
    /// Approves the request, so that kube-controller-manager signs it.
    ///
    /// # Errors
    ///
    /// Denies a request to this controller's signers, because kube-controller-manager does not sign it.
    pub fn approve(self) -> Result<Approval, Refusal> {
        if self.request().signer_kind != SignerKind::BuiltInServing {
            return Err(Denial::SignerPurpose.into());
        }
        Ok(Approval {
            reason: ApprovalReason::ServingNamesCorroborated,
            node_name: self.request().node_name.clone(),
            provider_id: Some(self.identity().provider_id.clone()),
            grant_reason: None,
        })
    }
}

impl ExemptRenewal {
    /// Approves the request, so that kube-controller-manager signs it.
    pub fn approve(self) -> Approval {
        Approval {
            reason: self.approval_reason(),
            node_name: self.node_name().clone(),
            provider_id: self.provider_id().cloned(),
            grant_reason: Some(GrantReason::Renewed),
        }
    }
}

impl Approval {
    /// The reason for the approval.
    pub fn approval_reason(&self) -> ApprovalReason {
        self.reason
    }

    /// The node of the certificate.
    pub fn node_name(&self) -> &NodeName {
        &self.node_name
    }

    /// The provider ID of the node's machine. `None` only for an exempt Node that `exemptNodes` lists by name, and that
    /// has no machine.
    pub fn provider_id(&self) -> Option<&ProviderId> {
        self.provider_id.as_ref()
    }

    /// The reason for the grant of a client certificate. `None` for a serving certificate.
    pub fn grant_reason(&self) -> Option<&GrantReason> {
        self.grant_reason.as_ref()
    }
}
