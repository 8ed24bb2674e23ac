//! Checks of the machine.

use kubelet_attestation::ensure;
use kubelet_attestation::names::{NodeName, ProviderId};

use crate::identifiers::{KeyDigest, TokenId};
use crate::inventory::{Machine, MachineState, Naming, TokenOwner};
use crate::refusal::{Deferral, Denial, Refusal, Unavailable};
use crate::verifier::Identity;

/// Checks that the machine is allowed to join the cluster.
pub(crate) fn may_join(machine: &Machine) -> Result<(), Refusal> {
    match machine.state {
        MachineState::Ready => Ok(()),
        MachineState::Pending => Err(not_ready(machine).into()),
        MachineState::Unread => Err(unread(machine).into()),
        MachineState::Deleting => Err(Denial::MachineDeleting(machine.name.clone()).into()),
    }
}

/// Checks that the machine's own token is known, if the machine has one. Otherwise, any token could be treated as a
/// token without an owner.
pub(crate) fn is_read(machine: &Machine) -> Result<(), Deferral> {
    ensure!(machine.state != MachineState::Unread, unread(machine));
    Ok(())
}

/// Checks that the machine is allowed to renew. A machine that is being deleted can drain for days, and its kubelet
/// needs certificates during this time. A renewal does not depend on the bootstrap configuration.
pub(crate) fn may_go_on(machine: &Machine) -> Result<(), Deferral> {
    match machine.state {
        MachineState::Ready | MachineState::Unread | MachineState::Deleting => Ok(()),
        MachineState::Pending => Err(not_ready(machine)),
    }
}

/// Checks that the token belongs to the machine or its pool, is assigned to the machine, or has no owner. `owner` is
/// the owner for which the token was created.
pub(crate) fn owns_token(
    machine: &Machine,
    token: &TokenId,
    owner: Option<&TokenOwner>,
) -> Result<(), Denial> {
    if machine.assigned_token.as_ref() == Some(token) {
        return Ok(());
    }
    let own = machine.token_id.as_ref().is_none_or(|own| own == token);
    let belongs = owner.is_none_or(|owner| is_of(machine, owner));
    if own && belongs {
        Ok(())
    } else {
        Err(Denial::TokenOfAnotherMachine(
            token.clone(),
            machine.name.clone(),
        ))
    }
}

/// Whether the owner is this machine or its pool.
fn is_of(machine: &Machine, owner: &TokenOwner) -> bool {
    match owner {
        TokenOwner::Machine(owner) => owner.name == machine.name,
        TokenOwner::Pool { name, .. } => machine.pool.as_ref() == Some(name),
    }
}

/// Checks that the machine has the provider ID that the request claims. If the infrastructure provider has not set the
/// machine's provider ID yet, the check passes unless another machine (`holder`) has the claimed provider ID.
pub(crate) fn may_have_provider_id(
    machine: &Machine,
    claimed: &ProviderId,
    holder: Option<&Machine>,
) -> Result<(), Refusal> {
    let may_have = match &machine.provider_id {
        Some(provider_id) => provider_id == claimed,
        None if machine.unnamed => holder.is_none_or(|holder| holder.name == machine.name),
        None => return Err(not_ready(machine).into()),
    };
    if may_have {
        Ok(())
    } else {
        Err(Denial::ProviderIdOfAnotherMachine(claimed.clone(), machine.name.clone()).into())
    }
}

/// Checks that the infrastructure provider has set the machine's provider ID. Until then, the claimed provider ID does
/// not belong to any machine. A request that waits too long for the provider ID fails.
pub(crate) fn is_named(machine: &Machine) -> Result<(), Deferral> {
    ensure!(!machine.unnamed, Deferral::MachineNotFound);
    Ok(())
}

/// Checks that the evidence identifies the located machine, which must also be the claimed machine.
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

/// If the object has an annotation with an endorsement key that the controller did not write, checks that the
/// annotation contains the machine's endorsement key.
pub(crate) fn is_annotated(
    annotation: Option<&str>,
    endorsement_key: Option<KeyDigest>,
) -> Result<(), Denial> {
    match (annotation, endorsement_key) {
        (Some(annotation), Some(endorsement_key)) if annotation != endorsement_key.to_string() => {
            Err(Denial::EndorsementKeyAnnotation(endorsement_key))
        }
        (Some(_) | None, Some(_) | None) => Ok(()),
    }
}

/// Checks that the machine can have the requested node name.
pub(crate) fn is_node(machine: &Machine, naming: Naming, asked: &NodeName) -> Result<(), Refusal> {
    match naming {
        Naming::Own => Ok(()),
        Naming::Another(expected) => Err(Denial::NodeNameMismatch(asked.clone(), expected).into()),
        Naming::Shared { other } => Err(Deferral::NodeNameShared {
            node_name: asked.clone(),
            machine: machine.name.clone(),
            other,
        }
        .into()),
        Naming::Unknown => Err(not_ready(machine).into()),
    }
}

fn not_ready(machine: &Machine) -> Deferral {
    Deferral::MachineNotReady(machine.name.clone())
}

fn unread(machine: &Machine) -> Deferral {
    let name = &machine.name;
    let cause = format!("cannot read the bootstrap configuration of machine {name}");
    Deferral::InventoryUnavailable(Unavailable::new(cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cluster::machine;

    #[test]
    fn a_token_is_accepted_only_for_its_machine_or_its_pool() {
        let token = TokenId::parse("mnopqr").unwrap();
        let pool = |name: &str| TokenOwner::Pool {
            name: name.to_owned(),
            object: None,
        };
        let of = |name: &str| TokenOwner::Machine(Box::new(machine(name, name, None)));
        let mut member = machine("m3", "n3", None);
        member.pool = Some("pool-1".to_owned());
        for (owner, is_owned) in [
            (None, true),
            (Some(of("m3")), true),
            (Some(of("m1")), false),
            (Some(pool("pool-1")), true),
            (Some(pool("pool-2")), false),
        ] {
            let expected = if is_owned {
                Ok(())
            } else {
                Err(Denial::TokenOfAnotherMachine(
                    token.clone(),
                    "m3".to_owned(),
                ))
            };
            let owned = owns_token(&member, &token, owner.as_ref());
            assert_eq!(owned, expected, "{owner:?}");
        }
        let alone = machine("m3", "n3", None);
        assert_eq!(
            owns_token(&alone, &token, Some(&pool("pool-1"))),
            Err(Denial::TokenOfAnotherMachine(
                token.clone(),
                "m3".to_owned()
            ))
        );
    }

    #[test]
    fn a_machine_accepts_an_assigned_token_in_addition_to_its_token() {
        let token = |id| TokenId::parse(id).unwrap();
        for own in [None, Some("abcdef")] {
            let mut machine = machine("m3", "n3", own);
            let denied = |machine: &Machine, id| owns_token(machine, &token(id), None).is_err();
            assert_eq!(denied(&machine, "mnopqr"), own.is_some());

            machine.assigned_token = Some(token("mnopqr"));
            assert!(!denied(&machine, "mnopqr"));
            assert!(!denied(&machine, "abcdef"));
            assert_eq!(denied(&machine, "ghijkl"), own.is_some());
        }
    }

    #[test]
    fn a_pending_machine_waits_and_a_deleting_machine_can_renew() {
        let mut m3 = machine("m3", "n3", None);
        for (state, expected) in [
            (MachineState::Ready, Ok(())),
            (MachineState::Unread, Ok(())),
            (MachineState::Deleting, Ok(())),
            (
                MachineState::Pending,
                Err(Deferral::MachineNotReady("m3".to_owned())),
            ),
        ] {
            m3.state = state;
            let goes_on = may_go_on(&m3).map_err(|error| error.to_string());
            assert_eq!(goes_on, expected.map_err(|error| error.to_string()));
        }
    }

    #[test]
    fn evidence_must_match_the_claimed_and_the_located_machine() {
        let id = |name: &str| machine(name, name, None).provider_id.unwrap();
        for (located, claimed, attested, is_accepted) in [
            ("m1", "m1", "m1", true),
            ("m2", "m1", "m1", false),
            ("m1", "m2", "m1", false),
            ("m1", "m1", "m2", false),
        ] {
            let located = machine(located, "n1", None);
            let (claimed, attested) = (id(claimed), id(attested));
            let expected = if is_accepted {
                Ok(())
            } else {
                Err(Denial::AnotherMachine {
                    attested: attested.clone(),
                    claimed: claimed.clone(),
                })
            };
            let checked = is_attested(&located, &claimed, &Identity::of(attested));
            assert_eq!(checked, expected, "{located:?}, {claimed}");
        }
    }

    #[test]
    fn the_annotation_must_name_the_machines_endorsement_key() {
        let [own, other] = [b"own", b"oth"].map(|key| KeyDigest::of(key));
        let denied = Err(Denial::EndorsementKeyAnnotation(own));
        for (annotation, endorsement_key, expected) in [
            (None, Some(own), Ok(())),
            (Some(own.to_string()), Some(own), Ok(())),
            (Some(other.to_string()), Some(own), denied.clone()),
            (Some(String::new()), Some(own), denied),
            (Some(other.to_string()), None, Ok(())),
        ] {
            let checked = is_annotated(annotation.as_deref(), endorsement_key);
            assert_eq!(checked, expected, "{annotation:?}");
        }
    }
}
