//! A request whose machine is known.

use super::{ConformantClientCsr, Requester};
use crate::inventory::{Inventory, Machine};
use crate::policy::machine;
use crate::refusal::{Deferral, Denial, Refusal, Unavailable};

/// A request that claims to be a machine of this cluster, and does not contradict what is known of
/// it.
#[derive(Debug)]
pub struct LocatedCsr {
    csr: ConformantClientCsr,
    machine: Machine,
}

impl ConformantClientCsr {
    /// Finds the machine: by the provider ID that the evidence will have to prove, or, where there
    /// is no evidence, by the bootstrap token.
    pub async fn locate(self, inventory: &dyn Inventory) -> Result<LocatedCsr, Refusal> {
        let machine = match (self.requester(), self.evidence()) {
            (Requester::First { token }, Some(_)) => {
                let machine = found(inventory.by_provider_id(self.provider_id()).await)?;
                let owner = inventory.by_token(token).await.map_err(unavailable)?;
                machine::owns_token(&machine, token, owner.as_ref())?;
                machine
            }
            (Requester::First { token }, None) => {
                let machine = found(inventory.by_token(token).await)?;
                machine::has_provider_id(&machine, self.provider_id())?;
                machine
            }
            (Requester::Renewal { .. }, Some(_)) => {
                found(inventory.by_provider_id(self.provider_id()).await)?
            }
            (Requester::Renewal { .. }, None) => return Err(Denial::UnattestedRenewal.into()),
        };
        machine::may_join(&machine)?;
        Ok(LocatedCsr { csr: self, machine })
    }
}

impl LocatedCsr {
    /// What is asked for.
    pub fn request(&self) -> &ConformantClientCsr {
        &self.csr
    }

    /// The machine, as the inventory has it.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}

fn found(machine: Result<Option<Machine>, Unavailable>) -> Result<Machine, Deferral> {
    machine
        .map_err(unavailable)?
        .ok_or(Deferral::MachineNotFound)
}

fn unavailable(source: Unavailable) -> Deferral {
    Deferral::InventoryUnavailable { source }
}
