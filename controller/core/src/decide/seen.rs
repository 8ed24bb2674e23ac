//! The observations of the checks, for explanations.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use super::Decision;
use crate::inventory::{Machine, MachineState};
use crate::ledger::Grant;
use crate::request::{AttestedCsr, ClientRequest, NamedCsr, ParsedCsr, Requester, ServingRequest};
use crate::serving::ServingPolicy;
use crate::time::text;

pub(super) fn request(request: &CertificateSigningRequest) -> String {
    let spec = &request.spec;
    let user = spec.username.as_deref().unwrap_or_default();
    format!("a request from {user} to {}", spec.signer_name)
}

pub(super) fn parsed(csr: &ParsedCsr) -> String {
    let signed = "a request signed with its own key";
    match csr.provider().filter(|_| csr.is_attested()) {
        Some(provider) => format!("{signed}, with {provider} evidence"),
        None => format!("{signed}, without evidence"),
    }
}

pub(super) fn client(request: &ClientRequest) -> String {
    let by = match &request.requester {
        Requester::First { token } => format!("with bootstrap token {token}"),
        Requester::Renewal { uid } => format!("with certificate {uid}"),
        Requester::Unmarked => "with a certificate without a node identity".to_owned(),
    };
    let ClientRequest {
        node_name,
        provider_id,
        lifetime,
        ..
    } = request;
    let lifetime = hours(*lifetime);
    format!("node {node_name} on machine {provider_id}, {by}, for {lifetime}")
}

pub(super) fn serving(request: &ServingRequest, policy: &ServingPolicy) -> String {
    let (node, names) = (&request.node_name, listed(&request.names));
    match policy.address_ranges.as_slice() {
        [] => format!("node {node}, for {names}"),
        ranges => format!(
            "node {node}, for {names}; addresses are limited to {}",
            listed(ranges)
        ),
    }
}

fn listed(all: &[impl ToString]) -> String {
    let texts = all.iter().map(ToString::to_string);
    texts.collect::<Vec<_>>().join(", ")
}

pub(super) fn machine(machine: &Machine) -> String {
    let state = match machine.state {
        MachineState::Pending => "has no bootstrap data yet",
        MachineState::Ready => "can join",
        MachineState::Unread => "has a bootstrap configuration that cannot be read",
        MachineState::Deleting => "is being deleted",
    };
    let name = &machine.name;
    match machine.node.as_ref().or(machine.node_name.as_ref()) {
        Some(node) => format!("machine {name} {state}; its Node is {node}"),
        None => format!("machine {name} {state}"),
    }
}

pub(super) fn attested(csr: &AttestedCsr) -> String {
    let identity = csr.identity();
    if csr.request().evidence.is_none() {
        return format!("no evidence identifies {}", identity.provider_id);
    }
    let provider_id = &identity.provider_id;
    match &identity.endorsement_key {
        Some(key) => format!("the evidence identifies {provider_id}, endorsement key {key}"),
        None => format!("the evidence identifies {provider_id}"),
    }
}

pub(super) fn named(csr: &NamedCsr) -> String {
    let (node, machine) = (&csr.request().node_name, &csr.machine().name);
    format!("machine {machine} is allowed to use node name {node}")
}

pub(super) fn claimed(grant: &Grant) -> String {
    format!("generation {}: {}", grant.uid.generation, grant.reason)
}

pub(super) fn signed(decision: &Decision) -> String {
    match decision {
        Decision::Issue(certificate) => {
            format!("a certificate until {}", text(certificate.not_after))
        }
        Decision::Approve(_) => "kube-controller-manager signs the approved request".to_owned(),
        Decision::Ignore(_) | Decision::Deny(_) | Decision::Fail(_) | Decision::Retry(_) => {
            String::new()
        }
    }
}

/// Formats a duration as hours and minutes.
fn hours(duration: Duration) -> String {
    let minutes = duration.as_secs() / 60;
    match (minutes / 60, minutes % 60) {
        (hours, 0) => format!("{hours}h"),
        (0, minutes) => format!("{minutes}m"),
        (hours, minutes) => format!("{hours}h{minutes}m"),
    }
}
