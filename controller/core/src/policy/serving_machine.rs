//! Checks that the names of a serving certificate belong to the machine.

use kubelet_attestation::names::NodeName;

use crate::identifiers::ServingName;
use crate::inventory::{Machine, MachineState};
use crate::refusal::{Deferral, Denial, Refusal};
use crate::serving::ServingPolicy;

/// Checks that the name is the node's own name, or is reported for its machine. Either the infrastructure reports it,
/// or another source in the sorted list `reported`: the machine's platform, or the node itself.
pub(crate) fn is_reported(
    name: &ServingName,
    node_name: &NodeName,
    machine: &Machine,
    reported: &[ServingName],
) -> Result<(), Denial> {
    let by_infrastructure = match name {
        ServingName::Dns(name) => node_name.as_str() == name || machine.dns_names.contains(name),
        ServingName::Ip(address) => machine.addresses.contains(address),
    };
    if by_infrastructure || reported.binary_search(name).is_ok() {
        Ok(())
    } else {
        Err(Denial::ServingNameNotReported(
            name.clone(),
            machine.name.clone(),
        ))
    }
}

/// Returns the refusal for a name that no source reports for the machine. A machine gets its addresses at the end of
/// its provisioning, so the request waits until the machine is provisioned.
pub(crate) fn not_reported(denial: Denial, machine: &Machine) -> Refusal {
    if machine.provisioning {
        Deferral::MachineNotProvisioned(machine.name.clone()).into()
    } else {
        denial.into()
    }
}

/// Whether one of the names is an address that could be a Service address, because the Service ranges are unknown.
pub(crate) fn may_be_services(names: &[ServingName], policy: &ServingPolicy) -> bool {
    !policy.service_ranges.are_known() && names.iter().any(is_address)
}

/// Checks that the machine's platform reports each of the addresses. An infrastructure provider can relay addresses
/// from inside the machine, including Service addresses (`kube-ipvs0`). A platform does not relay addresses from inside
/// the machine.
pub(crate) fn is_the_platforms(
    names: &[ServingName],
    by_platform: Option<&[ServingName]>,
) -> Result<(), Deferral> {
    let reported = by_platform.unwrap_or_default();
    let mut addresses = names.iter().filter(|name| is_address(name));
    if addresses.all(|address| reported.contains(address)) {
        Ok(())
    } else {
        Err(Deferral::ServiceRangesUnknown)
    }
}

fn is_address(name: &ServingName) -> bool {
    matches!(name, ServingName::Ip(_))
}

/// Checks that only `machine` has the name.
pub(crate) fn is_nobody_elses(
    name: &ServingName,
    machine: &Machine,
    have_it: &[Machine],
) -> Result<(), Refusal> {
    let Some(other) = have_it.iter().find(|other| other.name != machine.name) else {
        return Ok(());
    };
    let (name, machine) = (name.clone(), other.name.clone());
    match other.state {
        MachineState::Deleting => Err(Deferral::ServingNameNotFree(name, machine).into()),
        MachineState::Pending | MachineState::Ready | MachineState::Unread => {
            Err(Denial::ServingNameOfAnotherMachine(name, machine).into())
        }
    }
}
