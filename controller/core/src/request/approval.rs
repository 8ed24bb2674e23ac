//! The approval of requests that kube-controller-manager signs.

use kubelet_attestation::names::{NodeName, ProviderId};

use super::{ApprovalReason, Asked, CorroboratedCsr, ExemptRenewal};
use crate::ledger::GrantReason;
use crate::refusal::{Denial, Refusal};

/// A request that passed every check and that kube-controller-manager must sign. The approval is not written yet.
#[derive(Debug)]
pub struct Approval {
    basis: ApprovalReason,
    node_name: NodeName,
    provider_id: Option<ProviderId>,
    opening: Option<GrantReason>,
}

impl CorroboratedCsr {
    /// Approves the request, so that kube-controller-manager signs it.
    ///
    /// # Errors
    ///
    /// Denies a request to this controller's signers, because kube-controller-manager does not sign it.
    pub fn approve(self) -> Result<Approval, Refusal> {
        if self.request().asked != Asked::BuiltInServing {
            return Err(Denial::SignerPurpose.into());
        }
        Ok(Approval {
            basis: ApprovalReason::ServingNamesCorroborated,
            node_name: self.request().node_name.clone(),
            provider_id: Some(self.identity().provider_id.clone()),
            opening: None,
        })
    }
}

impl ExemptRenewal {
    /// Approves the request, so that kube-controller-manager signs it.
    pub fn approve(self) -> Approval {
        Approval {
            basis: self.basis(),
            node_name: self.node_name().clone(),
            provider_id: self.provider_id().cloned(),
            opening: Some(GrantReason::Renewed),
        }
    }
}

impl Approval {
    /// The reason for the approval.
    pub fn basis(&self) -> ApprovalReason {
        self.basis
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
    pub fn opening(&self) -> Option<&GrantReason> {
        self.opening.as_ref()
    }
}
