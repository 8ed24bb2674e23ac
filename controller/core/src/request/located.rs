//! A request whose machine is known.

use kubelet_attestation::names::ProviderId;

use super::{ClientRequest, ConformantClientCsr, Requester};
use crate::identifiers::TokenId;
use crate::inventory::{Inventory, Machine, TokenOwner};
use crate::policy::machine;
use crate::refusal::{Deferral, Denial, Refusal, Unavailable};
use crate::verifier::Verifier;

/// A request that claims to come from a machine of this cluster. The request does not contradict the known facts about
/// this machine.
#[derive(Debug)]
pub struct LocatedCsr {
    csr: ConformantClientCsr,
    machine: Machine,
}

impl ConformantClientCsr {
    /// Finds the machine. With evidence, the machine is found by its provider ID, which the evidence must confirm.
    /// Without evidence, or if no Machine has this provider ID, the machine is found by the bootstrap token. A node
    /// that has no evidence, but a certificate from another signer, claims its machine by the provider ID. The node
    /// name must then belong to that machine.
    pub async fn locate(self, inventory: &dyn Inventory) -> Result<LocatedCsr, Refusal> {
        let machine = match (&self.request().requester, &self.request().evidence) {
            (Requester::First { token }, Some(_)) => {
                let claimed = inventory.by_provider_id(&self.request().provider_id).await;
                match claimed.map_err(unavailable)? {
                    Some(machine) => {
                        machine::is_read(&machine)?;
                        // This order avoids looking up the token, which can require reading the bootstrap
                        // configurations of all machines.
                        let owner = match machine.token_id {
                            Some(_) => None,
                            None => inventory.by_token(token).await.map_err(unavailable)?,
                        };
                        machine::owns_token(&machine, token, owner.as_ref())?;
                        machine
                    }
                    // The infrastructure machine can have a provider ID before its Machine has one. It is also
                    // possible that the Machine gets its provider ID only after the Node exists.
                    None => self.of_token(token, inventory).await?,
                }
            }
            (Requester::First { token }, None) => self.of_token(token, inventory).await?,
            (Requester::Renewal { .. }, Some(_)) | (Requester::Unmarked, _) => {
                existing_machine(&self.request().provider_id, inventory).await?
            }
            (Requester::Renewal { .. }, None) => {
                return Err(Denial::UnattestedRenewal.into());
            }
        };
        if let Requester::First { .. } = self.request().requester {
            machine::may_join(&machine)?;
        }
        Ok(LocatedCsr { csr: self, machine })
    }

    /// Returns the machine that owns the token. If a pool owns the token, returns the claimed machine in this pool.
    async fn of_token(
        &self,
        token: &TokenId,
        inventory: &dyn Inventory,
    ) -> Result<Machine, Refusal> {
        let owner = inventory.by_token(token).await.map_err(unavailable)?;
        let Some(owner) = owner else {
            return Err(self.without_owner(inventory).await.into());
        };
        match owner {
            TokenOwner::Machine(mut machine) => {
                let claimed = &self.request().provider_id;
                let holder = if machine.unnamed {
                    let holder = inventory.by_provider_id(claimed).await;
                    holder.map_err(unavailable)?
                } else {
                    None
                };
                machine::may_have_provider_id(&machine, claimed, holder.as_ref())?;
                // Cluster API's Docker provider sets a machine's provider ID after its Node exists. The node identity
                // stores the claimed provider ID, and is retired if the machine gets a different provider ID.
                machine.provider_id.get_or_insert_with(|| claimed.clone());
                Ok(*machine)
            }
            pool @ TokenOwner::Pool { .. } => {
                let machine = found(inventory.by_provider_id(&self.request().provider_id).await)?;
                machine::is_read(&machine)?;
                machine::owns_token(&machine, token, Some(&pool))?;
                Ok(machine)
            }
        }
    }
}

impl ConformantClientCsr {
    /// Returns the reason why a request waits if its token has no owner. If the bootstrap configuration of the claimed
    /// machine cannot be read, the token could belong to this machine. In this case, the request must not fail after a
    /// time limit.
    async fn without_owner(&self, inventory: &dyn Inventory) -> Deferral {
        // With evidence, the caller has already looked up the claimed machine.
        if self.request().evidence.is_some() {
            return Deferral::MachineNotFound;
        }
        let claimed = inventory.by_provider_id(&self.request().provider_id).await;
        let is_known = found(claimed).and_then(|machine| machine::is_read(&machine));
        is_known.err().unwrap_or(Deferral::MachineNotFound)
    }
}

impl LocatedCsr {
    /// The requested certificate.
    pub fn request(&self) -> &ClientRequest {
        self.csr.request()
    }

    /// The machine, from the inventory.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn verifier(&self) -> &dyn Verifier {
        self.csr.verifier()
    }
}

/// Finds the machine for a node that already has a certificate.
pub(crate) async fn existing_machine(
    provider_id: &ProviderId,
    inventory: &dyn Inventory,
) -> Result<Machine, Refusal> {
    let machine = found(inventory.by_provider_id(provider_id).await)?;
    machine::may_go_on(&machine)?;
    Ok(machine)
}

fn found<T>(found: Result<Option<T>, Unavailable>) -> Result<T, Deferral> {
    found.map_err(unavailable)?.ok_or(Deferral::MachineNotFound)
}

fn unavailable(source: Unavailable) -> Deferral {
    Deferral::InventoryUnavailable(source)
}
