//! A request for the name that its machine has.

use super::AttestedCsr;
use super::attested::ClaimOrRenewal;
use crate::inventory::{Inventory, Naming};
use crate::ledger::RecordLedger;
use crate::policy::machine;
use crate::refusal::{Deferral, Refusal};
use crate::verifier::Assurance;

/// A request whose node name is one that this identity has, and not one that it chose.
#[derive(Debug, derive_more::Deref)]
pub struct NamedCsr {
    csr: AttestedCsr,
}

impl AttestedCsr {
    /// Compares the name that is asked for with the one that follows from the evidence or,
    /// otherwise, with those that `inventory` has for the machine. A machine that proves itself goes
    /// on with the name of which `ledger` has its record, whatever is reported of it since.
    pub async fn check_node_name(
        self,
        inventory: &dyn Inventory,
        ledger: &RecordLedger,
    ) -> Result<NamedCsr, Refusal> {
        let (machine, asked) = (self.machine(), &self.request().node_name);
        let naming = if let Some(name) = &self.identity().node_name {
            Naming::only(Some(name), asked)
        } else {
            let naming = inventory.naming(machine, asked).await;
            naming.map_err(Deferral::InventoryUnavailable)?
        };
        if let Err(refusal) = machine::is_node(machine, naming, asked)
            && !self.is_recorded(ledger).await?
        {
            return Err(refusal);
        }
        Ok(NamedCsr { csr: self })
    }

    /// Whether the record of the name that is asked for is this machine's, and it proved itself for that.
    async fn is_recorded(&self, ledger: &RecordLedger) -> Result<bool, Deferral> {
        let uid = match self.standing() {
            ClaimOrRenewal::Renewing(_, uid) => Some(*uid),
            ClaimOrRenewal::Claiming(Assurance::Attested(_), _) => None,
            // The provider ID may be no more than what it said.
            ClaimOrRenewal::Claiming(Assurance::None(_), _) => return Ok(false),
        };
        let holder = ledger.holder(&self.request().node_name, uid).await;
        match holder.map(|holder| holder.assurance) {
            Ok(Assurance::Attested(holder)) => {
                let provider_id = &holder.identity().provider_id;
                Ok(*provider_id == self.identity().provider_id)
            }
            Err(Refusal::Retry(deferral)) => Err(deferral),
            Ok(Assurance::None(_)) | Err(Refusal::Deny(_) | Refusal::Fail(_)) => Ok(false),
        }
    }
}
