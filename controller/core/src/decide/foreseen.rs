//! The prediction for an existing Node, before the Node sends its first request.

use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use super::Context;
use crate::identifiers::KeyDigest;
use crate::inventory::Machine;
use crate::ledger::{Claim, Claimant, RequestRef};
use crate::policy::machine;
use crate::refusal::{Deferral, Refusal, Unavailable};
use crate::request::{existing_machine, has_provider_id, naming};
use crate::verifier::{Assurance, AttestedIdentity, Foresight, Identity};

/// The predicted answer to the first request from an existing Node that sends its kubelet certificate and evidence for
/// one provider.
#[derive(Debug)]
#[non_exhaustive]
pub struct Foreseen {
    /// The attestation provider of the evidence.
    pub provider: Provider,
    /// The machine in the inventory, if it was found.
    pub machine: Option<Machine>,
    /// The part of the machine's identity that is known. `None` if a check before the verification refuses the request.
    pub identity: Option<Identity>,
    /// The outage of a service that has more facts about the machine, such as its name, or the reason why the service
    /// was not called.
    pub unknown: Option<Unavailable>,
    /// The predicted refusal. `None` if the machine passes all checks that do not need evidence.
    pub refusal: Option<Refusal>,
}

/// Predicts the answers to the first request from this Node, one for each authorized provider. The prediction assumes
/// that the machine keeps its Node name, and adopts its Node with evidence and its kubelet certificate. `claimed` is
/// the provider ID of the Node. Without it, the inventory finds the machine by the Node name.
///
/// The steps are the functions of the chain in [`crate::request`]. As in [`explain`](super::explain), the claim writes
/// through the ledger in `context`. Therefore use [`Rehearsal`](crate::ledger::Rehearsal) for its records, and
/// [`ReadOnlyNodes`](crate::nodes::ReadOnlyNodes) for its Nodes.
pub async fn foresee(
    node_name: &NodeName,
    claimed: Option<&ProviderId>,
    context: &Context,
    now: SystemTime,
) -> Vec<Foreseen> {
    let mut all = Vec::new();
    for provider in context.verifiers.providers() {
        let mut foreseen = Foreseen {
            provider,
            machine: None,
            identity: None,
            unknown: None,
            refusal: None,
        };
        let checked = Box::pin(foreseen.check(node_name, claimed, context, now)).await;
        foreseen.refusal = checked.err();
        all.push(foreseen);
    }
    all
}

impl Foreseen {
    async fn check(
        &mut self,
        node_name: &NodeName,
        claimed: Option<&ProviderId>,
        context: &Context,
        now: SystemTime,
    ) -> Result<(), Refusal> {
        let inventory = context.inventory.as_ref();
        context.verifiers.is_available(&self.provider)?;
        let Some(verifier) = context.verifiers.of(&self.provider) else {
            return Ok(());
        };
        let provider_id = match claimed {
            Some(claimed) => claimed.clone(),
            None => provider_id_of(node_name, context).await?,
        };
        let machine = existing_machine(&provider_id, inventory).await?;
        self.machine = Some(machine.clone());
        let has_evidence = !verifier.versions().is_empty();
        if has_evidence {
            has_provider_id(&machine, verifier.as_ref())?;
        }
        let Foresight {
            identity,
            unknown,
            first_claim_only,
        } = verifier.foresee(&machine, &provider_id, now).await?;
        self.identity = Some(identity.clone());
        self.unknown = unknown;
        machine::is_attested(&machine, &provider_id, &identity)?;
        // If a service was not called, that service could report a name that changes the decision.
        if self.unknown.is_none() {
            let of_evidence = identity.node_name.as_ref();
            let naming = naming(&machine, of_evidence, node_name, inventory).await?;
            machine::is_node(&machine, naming, node_name)?;
        }
        let claim = Claim {
            node_name: node_name.clone(),
            claimant: Claimant::Node,
            assurance: if has_evidence {
                let attested = AttestedIdentity::vouched(identity);
                Assurance::Attested(match first_claim_only {
                    Some(denial) => attested.unless_known(denial),
                    None => attested,
                })
            } else {
                Assurance::None(identity)
            },
            provider: self.provider.clone(),
            machine_name: Some(machine.name.clone()),
            request: RequestRef {
                name: String::new(),
                uid: String::new(),
            },
            // This digest is a placeholder: no machine has a key with this digest.
            key: KeyDigest::of(node_name.as_str().as_bytes()),
            asked: now,
            not_after: now + context.longest_lifetime,
        };
        Box::pin(context.ledger.claim(&claim, now)).await?;
        Ok(())
    }
}

/// Returns the provider ID of the machine whose Node has this name.
async fn provider_id_of(node_name: &NodeName, context: &Context) -> Result<ProviderId, Deferral> {
    let machines = context.inventory.by_name(node_name.as_str()).await;
    let machines = machines.map_err(Deferral::InventoryUnavailable)?;
    let mut of_node = machines
        .into_iter()
        .filter(|machine| machine.is_of_node(node_name));
    let machine = of_node.next().ok_or(Deferral::MachineNotFound)?;
    let not_ready = Deferral::MachineNotReady(machine.name);
    machine.provider_id.ok_or(not_ready)
}
