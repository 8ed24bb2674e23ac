//! A request for the name that its machine has.

use super::attested::Standing;
use super::{AttestedCsr, ConformantClientCsr};
use crate::inventory::{Inventory, Machine};
use crate::policy::machine;
use crate::refusal::{Deferral, Refusal};
use crate::verifier::Identity;

/// A request whose node name is the one that this identity has, and not one that it chose.
#[derive(Debug)]
pub struct SettledCsr {
    csr: AttestedCsr,
}

impl AttestedCsr {
    /// Compares the name that is asked for with the one that follows from the evidence or,
    /// otherwise, that `inventory` has for the machine.
    pub async fn settle(self, inventory: &dyn Inventory) -> Result<SettledCsr, Refusal> {
        let name = match &self.identity().node_name {
            Some(name) => name.clone(),
            None => inventory
                .node_name(self.machine())
                .await
                .map_err(|source| Deferral::InventoryUnavailable { source })?
                .ok_or_else(|| Deferral::MachineNotReady {
                    machine: self.machine().name.clone(),
                })?,
        };
        machine::is_node(&name, self.request().node_name())?;
        Ok(SettledCsr { csr: self })
    }
}

impl SettledCsr {
    /// What is asked for.
    pub fn request(&self) -> &ConformantClientCsr {
        self.csr.request()
    }

    /// Whose it is.
    pub fn identity(&self) -> &Identity {
        self.csr.identity()
    }

    pub(super) fn machine(&self) -> &Machine {
        self.csr.machine()
    }

    pub(super) fn standing(&self) -> &Standing {
        self.csr.standing()
    }
}
