//! A request whose machine holds the node name.

use std::time::SystemTime;

use super::attested::ClaimOrRenewal;
use super::{ClientRequest, NamedCsr};
use crate::identifiers::KeyDigest;
use crate::ledger::{Claim, Grant, RecordLedger, Renewal, RequestRef};
use crate::refusal::Refusal;
use crate::verifier::Identity;

/// A request whose machine holds the node identity for its node name. This is the last check.
#[derive(Debug)]
pub struct ClaimedCsr {
    csr: NamedCsr,
    grant: Grant,
}

impl NamedCsr {
    /// Claims the node identity for the name, or finds the node identity to renew.
    ///
    /// The node identity stores `reference` as the request that opened it.
    pub async fn claim(
        self,
        ledger: &RecordLedger,
        reference: RequestRef,
        now: SystemTime,
    ) -> Result<ClaimedCsr, Refusal> {
        let request = self.request();
        let not_after = now + request.lifetime;
        let asked = request.created.unwrap_or(now);
        let node_name = request.node_name.clone();
        let grant = match self.standing() {
            ClaimOrRenewal::Claiming(assurance, claimant) => {
                let claim = Claim {
                    node_name,
                    claimant: *claimant,
                    assurance: assurance.clone(),
                    provider: request.provider.clone(),
                    machine_name: Some(self.machine().name.clone()),
                    request: reference,
                    key: KeyDigest::of(&request.spki),
                    asked,
                    not_after,
                };
                Box::pin(ledger.claim(&claim, now)).await?
            }
            ClaimOrRenewal::Renewing(identity, uid) => {
                let renewal = Renewal {
                    node_name,
                    identity: identity.clone(),
                    uid: *uid,
                    asked,
                    not_after,
                    provider: request.provider.clone(),
                    machine_name: Some(self.machine().name.clone()),
                    key: KeyDigest::of(&request.spki),
                    request: reference,
                };
                Box::pin(ledger.renew(&renewal, now)).await?
            }
        };
        Ok(ClaimedCsr { csr: self, grant })
    }
}

impl ClaimedCsr {
    /// The requested certificate.
    pub fn request(&self) -> &ClientRequest {
        self.csr.request()
    }

    /// The identity, either attested or only claimed.
    pub fn identity(&self) -> &Identity {
        self.csr.identity()
    }

    /// The ledger's grant.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }
}
