//! An exempt Node that renews its certificate with the built-in client signer.

use kubelet_attestation::names::{NodeName, ProviderId};

use super::{ApprovalReason, ParsedCsr, SignerKind};
use crate::crd::{ExemptNodes, Exemption};
use crate::inventory::{Inventory, Machine};
use crate::ledger::RecordLedger;
use crate::policy::{extensions, machine, requester, subject, usages};
use crate::refusal::{Deferral, Denial, Refusal};

/// A request without evidence to the built-in client signer, which an exempt Node sent for itself.
///
/// This request is the exception to [`Denial::UnattestedBuiltInRequest`].
#[derive(Debug)]
pub struct ExemptRenewal {
    node_name: NodeName,
    provider_id: Option<ProviderId>,
    machine: Option<Machine>,
    approval_reason: ApprovalReason,
}

impl ParsedCsr {
    /// Checks that a kubelet without the plugin would send exactly this request for a renewal, that the node is
    /// `exempt` and has no node identity, and that its machine is not revoked. A node with a node identity must renew
    /// with evidence.
    pub async fn renew_exempt(
        self,
        inventory: &dyn Inventory,
        ledger: &RecordLedger,
        exempt: &ExemptNodes,
    ) -> Result<ExemptRenewal, Refusal> {
        let raw = self.raw();
        if raw.signer_kind != SignerKind::BuiltInClient {
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
        let OfNode {
            machine,
            is_only,
            are_known,
        } = OfNode::among(machines, &node_name);
        let is_control_plane = is_only && machine.as_ref().is_some_and(|one| one.control_plane);
        let approval_reason = match exempt.of(&node_name, is_control_plane) {
            // A Node of this kind might not have a Machine.
            Some(Exemption::Listed) => ApprovalReason::ExemptRenewal,
            Some(Exemption::ControlPlane) => {
                if let Some(machine) = &machine {
                    machine::may_go_on(machine)?;
                    if machine.provider_id.is_none() {
                        return Err(Deferral::MachineNotReady(machine.name.clone()).into());
                    }
                }
                ApprovalReason::ControlPlaneRenewal
            }
            None if exempt.has_control_plane() => {
                are_known?;
                return Err(unattested(
                    "the node is not exempt, and does not belong to a control-plane machine",
                ));
            }
            None => {
                return Err(unattested(
                    "exemptNodes contains neither the node nor ControlPlane",
                ));
            }
        };
        if ledger.stored_holder(&node_name).await?.is_some() {
            return Err(unattested(
                "the node has a node identity, and must renew with evidence",
            ));
        }
        let provider_id = machine.as_ref().and_then(|one| one.provider_id.clone());
        // The record with the revocation might be lost. Otherwise, the machine could renew an earlier certificate,
        // which contains no UID.
        if let Some(provider_id) = &provider_id {
            ledger.is_not_revoked(provider_id, &node_name)?;
        }
        Ok(ExemptRenewal {
            node_name,
            provider_id,
            machine,
            approval_reason,
        })
    }
}

/// The machine of a Node. The request keeps only this value while it waits for the ledger, because a tenant can make
/// the list of machines with the Node's name long.
struct OfNode {
    machine: Option<Machine>,
    is_only: bool,
    /// Whether all machines with the name could be read. The Node name of these machines can come from their bootstrap
    /// configurations, which must therefore be readable.
    are_known: Result<(), Deferral>,
}

impl OfNode {
    fn among(machines: Vec<Machine>, node_name: &NodeName) -> Self {
        let are_known = machines.iter().try_for_each(machine::is_read);
        let mut of_node = machines
            .into_iter()
            .filter(|machine| machine.is_of_node(node_name));
        Self {
            machine: of_node.next(),
            is_only: of_node.next().is_none(),
            are_known,
        }
    }
}

fn unattested(detail: &'static str) -> Refusal {
    Denial::UnattestedBuiltInRequest(detail).into()
}

impl ExemptRenewal {
    /// The requesting node.
    pub fn node_name(&self) -> &NodeName {
        &self.node_name
    }

    /// The provider ID of the node's machine. `None` only for a Node that `exemptNodes` lists by name.
    pub fn provider_id(&self) -> Option<&ProviderId> {
        self.provider_id.as_ref()
    }

    /// The reason for the approval, which depends on the reason for the exemption.
    pub fn approval_reason(&self) -> ApprovalReason {
        self.approval_reason
    }

    /// The machine, from the inventory. `None` only for a Node that `exemptNodes` lists by name.
    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }
}
