//! Resets or revokes all node identities whose Machines have certain labels.

use kubelet_attestation::ensure;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::NodeIdentity;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::clock::now;
use node_attestation_runtime::identities::{Identities, IdentityChange};

use super::{unchanged, with_warning};
use crate::error::BoxError;
use crate::query::{Confirmation, Format};

/// Changes the live node identities in the Cluster whose Machines have these labels. Returns the output, and the
/// failures.
pub(super) async fn change(
    identities: &Identities,
    (cluster, labels): (&ObjectKey, &str),
    change: IdentityChange,
    (confirmation, output): (&Confirmation, Format),
) -> Result<(String, Vec<String>), BoxError> {
    let found = identities.of_machines(cluster, labels).await?;
    let none = || format!("Cluster {cluster} has no node identity of a Machine with {labels}");
    ensure!(!found.is_empty(), none().into());
    let (count, names) = (found.len(), names_of(&found));
    let (verb, effect) = match change {
        IdentityChange::Revoke => (
            "Revoked",
            format!(
                "Revokes {count} nodes: {names}. The workload cluster refuses every write with their certificates, \
                 their Nodes become NotReady, and their machines do not get certificates."
            ),
        ),
        IdentityChange::Reset { .. } => (
            "Reset",
            format!(
                "Resets {count} nodes: {names}. The next valid claim for each name opens a new generation, even with \
                 another key or from another machine."
            ),
        ),
    };
    if !confirmation.ask(&effect)? {
        return Ok((unchanged(output, &found)?, Vec::new()));
    }
    let (mut changed, mut failed, mut event_error) = (Vec::new(), Vec::new(), None);
    for identity in &found {
        match Box::pin(identities.change(identity, change, now())).await {
            Ok(one) => {
                changed.push(one.identity);
                event_error = one.event_error.or(event_error);
            }
            Err(error) => {
                let name = &identity.spec.node_name;
                failed.push(format!("node {name}: {}", error_chain(&error)));
            }
        }
    }
    let text = output.print(&changed, || {
        let (done, names) = (changed.len(), names_of(&changed));
        let text = format!("{verb} {done} of {count} nodes: {names}.");
        with_warning(text, event_error.as_ref())
    });
    Ok((text?, failed))
}

pub(super) fn names_of(identities: &[NodeIdentity]) -> String {
    let names = identities.iter().map(|one| one.spec.node_name.as_str());
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join(", ")
    }
}
