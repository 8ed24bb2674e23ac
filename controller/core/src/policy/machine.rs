//! What is known of the machine.

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::inventory::{Machine, MachineState, TokenId};
use crate::refusal::{Deferral, Denial, Refusal};
use crate::verifier::Identity;

/// Checks that the machine can be the one that asks.
pub(crate) fn may_join(machine: &Machine) -> Result<(), Refusal> {
    match machine.state {
        MachineState::Ready => Ok(()),
        MachineState::Pending => Err(not_ready(machine).into()),
        MachineState::Deleting => Err(Denial::MachineDeleting {
            machine: machine.name.clone(),
        }
        .into()),
    }
}

/// Checks that the token is the machine's own, or one that no machine has for itself. `owner` is
/// the token's machine.
pub(crate) fn owns_token(
    machine: &Machine,
    token: &TokenId,
    owner: Option<&Machine>,
) -> Result<(), Denial> {
    let own = machine.token_id.as_ref().is_none_or(|own| own == token);
    let others = owner.is_some_and(|owner| owner.name != machine.name);
    if own && !others {
        Ok(())
    } else {
        Err(Denial::TokenOfAnotherMachine {
            token: token.clone(),
            machine: machine.name.clone(),
        })
    }
}

/// Checks that the machine has the provider ID that the request claims.
pub(crate) fn has_provider_id(machine: &Machine, claimed: &ProviderId) -> Result<(), Refusal> {
    match &machine.provider_id {
        Some(provider_id) if provider_id == claimed => Ok(()),
        Some(_) => Err(Denial::ProviderIdOfAnotherMachine {
            claimed: claimed.clone(),
            machine: machine.name.clone(),
        }
        .into()),
        None => Err(not_ready(machine).into()),
    }
}

/// Checks that the evidence is about the machine that was located, which is the one claimed.
pub(crate) fn is_attested(
    machine: &Machine,
    claimed: &ProviderId,
    identity: &Identity,
) -> Result<(), Denial> {
    let attested = &identity.provider_id;
    if attested == claimed && machine.provider_id.as_ref() == Some(attested) {
        Ok(())
    } else {
        Err(Denial::AnotherMachine {
            attested: attested.clone(),
            claimed: claimed.clone(),
        })
    }
}

/// Checks that the name asked for is the machine's.
pub(crate) fn is_node(settled: &NodeName, asked: &NodeName) -> Result<(), Denial> {
    if settled == asked {
        Ok(())
    } else {
        Err(Denial::NodeNameMismatch {
            asked: asked.clone(),
            settled: settled.clone(),
        })
    }
}

fn not_ready(machine: &Machine) -> Deferral {
    Deferral::MachineNotReady {
        machine: machine.name.clone(),
    }
}
