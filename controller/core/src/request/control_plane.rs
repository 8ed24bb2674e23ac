//! A control-plane machine that renews the certificate that kubeadm issued to it.

use kubelet_attestation::names::{NodeName, ProviderId};

use super::{Asked, ParsedCsr};
use crate::inventory::{Inventory, Machine};
use crate::ledger::RecordLedger;
use crate::policy::{extensions, machine, requester, subject, usages};
use crate::refusal::{Deferral, Denial, Refusal};

/// A request without evidence to the built-in client signer, from an existing control-plane machine for itself.
///
/// It is an exception to [`Denial::UnattestedBuiltInRequest`], only with
/// [`BuiltInRenewal::ControlPlane`](crate::crd::BuiltInRenewal::ControlPlane).
#[derive(Debug)]
pub struct ControlPlaneRenewal {
    node_name: NodeName,
    provider_id: ProviderId,
    machine: Machine,
}

impl ParsedCsr {
    /// Checks that the request is exactly the renewal of a kubelet without the plugin, and that the node is a
    /// control-plane node without a node identity. A node with a node identity renews with evidence.
    pub async fn renew_control_plane(
        self,
        inventory: &dyn Inventory,
        ledger: &RecordLedger,
    ) -> Result<ControlPlaneRenewal, Refusal> {
        let raw = self.raw();
        if raw.asked != Asked::BuiltInClient {
            return Err(Denial::SignerPurpose.into());
        }
        let node_name = subject::node_name(self.csr())?;
        usages::exact(&raw.usages)?;
        if self.claimed_provider().is_some() {
            return Err(Denial::AttestationUnexpected.into());
        }
        extensions::none(self.csr())?;
        requester::is_node(&raw.username, &raw.groups, &node_name)?;
        if raw.uid.as_deref().is_some_and(|uid| !uid.is_empty()) {
            return Err(unattested(
                "the requester's certificate is not from kubeadm",
            ));
        }

        let machines = inventory.by_name(node_name.as_str()).await;
        let machines = machines.map_err(Deferral::InventoryUnavailable)?;
        // The name of such a machine's Node can be in its bootstrap configuration.
        let are_known = machines.iter().try_for_each(machine::is_read);
        let mut machines = machines
            .into_iter()
            .filter(|machine| machine.is_of_node(&node_name));
        let machine = match (machines.next(), machines.next()) {
            (Some(machine), None) if machine.control_plane => machine,
            _ => {
                are_known?;
                return Err(unattested(
                    "the node does not belong to a control-plane machine",
                ));
            }
        };
        machine::may_go_on(&machine)?;
        let provider_id = machine.provider_id.clone();
        let provider_id =
            provider_id.ok_or_else(|| Deferral::MachineNotReady(machine.name.clone()))?;
        if ledger.stored_holder(&node_name).await?.is_some() {
            return Err(unattested(
                "the node has a node identity, and must renew with evidence",
            ));
        }
        Ok(ControlPlaneRenewal {
            node_name,
            provider_id,
            machine,
        })
    }
}

fn unattested(detail: &'static str) -> Refusal {
    Denial::UnattestedBuiltInRequest(detail).into()
}

impl ControlPlaneRenewal {
    /// The requesting node.
    pub fn node_name(&self) -> &NodeName {
        &self.node_name
    }

    /// The provider ID of its machine.
    pub fn provider_id(&self) -> &ProviderId {
        &self.provider_id
    }

    /// The machine, from the inventory.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}
