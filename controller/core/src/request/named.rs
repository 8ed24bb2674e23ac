//! A request for a node name that belongs to its machine.

use kubelet_attestation::names::NodeName;

use super::attested::ClaimOrRenewal;
use super::{AttestedCsr, ClientRequest};
use crate::inventory::{Inventory, Machine, Naming};
use crate::ledger::RecordLedger;
use crate::policy::machine;
use crate::refusal::{Deferral, Refusal};
use crate::verifier::{Assurance, Identity};

/// A request whose node name was verified for this identity, and was not only chosen by the requester.
#[derive(Debug)]
pub struct NamedCsr {
    csr: AttestedCsr,
}

impl AttestedCsr {
    /// Compares the requested name with the name from the evidence or, if the evidence contains no name, with the names
    /// of the machine in `inventory`. An attested machine keeps the name in its node identity in `ledger`, even if its
    /// reported names have changed since then.
    pub async fn check_node_name(
        self,
        inventory: &dyn Inventory,
        ledger: &RecordLedger,
    ) -> Result<NamedCsr, Refusal> {
        let (machine, asked) = (self.machine(), &self.request().node_name);
        let of_evidence = self.identity().node_name.as_ref();
        let naming = naming(machine, of_evidence, asked, inventory).await?;
        if let Err(refusal) = machine::is_node(machine, naming, asked)
            && !self.is_recorded(ledger).await?
        {
            return Err(refusal);
        }
        Ok(NamedCsr { csr: self })
    }

    /// Whether this machine holds the node identity for the requested name, and was attested when it claimed the name.
    async fn is_recorded(&self, ledger: &RecordLedger) -> Result<bool, Deferral> {
        let uid = match self.standing() {
            ClaimOrRenewal::Renewing(_, uid) => Some(*uid),
            ClaimOrRenewal::Claiming(Assurance::Attested(_), _) => None,
            // Without evidence, the provider ID can be an unverified claim.
            ClaimOrRenewal::Claiming(Assurance::None(_), _) => return Ok(false),
        };
        let provider_id = &self.identity().provider_id;
        let node_name = &self.request().node_name;
        ledger.is_held_by(provider_id, node_name, uid).await
    }
}

/// Whether the machine's Node can have the name `asked`. If the evidence contains a name, only that name is possible.
pub(crate) async fn naming(
    machine: &Machine,
    of_evidence: Option<&NodeName>,
    asked: &NodeName,
    inventory: &dyn Inventory,
) -> Result<Naming, Deferral> {
    if of_evidence.is_some() {
        return Ok(Naming::only(of_evidence, asked));
    }
    let naming = inventory.naming(machine, asked).await;
    naming.map_err(Deferral::InventoryUnavailable)
}

impl NamedCsr {
    /// The requested certificate.
    pub fn request(&self) -> &ClientRequest {
        self.csr.request()
    }

    /// The machine, from the inventory.
    pub fn machine(&self) -> &Machine {
        self.csr.machine()
    }

    /// The identity, either attested or only claimed.
    pub fn identity(&self) -> &Identity {
        self.csr.identity()
    }

    pub(super) fn standing(&self) -> &ClaimOrRenewal {
        self.csr.standing()
    }
}
