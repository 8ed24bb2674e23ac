//! A request for the name that its machine has.

use super::attested::Standing;
use super::{AttestedCsr, ConformantClientCsr};
use crate::inventory::{Inventory, Machine, Naming};
use crate::policy::machine;
use crate::refusal::{Deferral, Refusal};
use crate::verifier::Identity;

/// A request whose node name is one that this identity has, and not one that it chose.
#[derive(Debug)]
pub struct SettledCsr {
    csr: AttestedCsr,
}

impl AttestedCsr {
    /// Compares the name that is asked for with the one that follows from the evidence or,
    /// otherwise, with those that `inventory` has for the machine.
    pub async fn settle(self, inventory: &dyn Inventory) -> Result<SettledCsr, Refusal> {
        let (machine, asked) = (self.machine(), self.request().node_name());
        let naming = match &self.identity().node_name {
            Some(name) => Naming::only(Some(name), asked),
            None => inventory
                .naming(machine, asked)
                .await
                .map_err(|source| Deferral::InventoryUnavailable { source })?,
        };
        machine::is_node(machine, naming, asked)?;
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
