//! The names of a workload cluster's Nodes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ListParams};
use kubelet_attestation::names::NodeName;
use node_attestation_core::ledger::AllRecords;
use node_attestation_core::pace::Pace;

use super::{MAX_NAMED, PartError, part};
use crate::capi::CapiInventory;
use crate::watch::{MetadataOf, metadata_page_of};

/// The page size for lists of Nodes. Each Node is a few kilobytes long.
const NODES_A_PAGE: u32 = 100;

/// The maximum number of pages, which is enough for 10 times the number of Nodes in the largest cluster that Kubernetes
/// supports. Without this limit, a server that always returns another page would block the periodic work indefinitely.
const MAX_PAGES: usize = 500;

/// The maximum length of a Node name (RFC 1123). The API server rejects longer names.
const MAX_NAME_LEN: usize = 253;

/// The maximum number of exempt Nodes in a message.
const MAX_EXEMPT_NAMED: usize = 16;

/// The number of Nodes without a record after which listing stops. One such Node is sufficient for the decision, and a
/// message contains only a few Nodes.
pub(super) const MAX_WITHOUT: usize = 1000;

/// The Nodes on a page that have no live record and are not exempt. The value is whether the Node has a retired record.
pub(super) type Unaccounted = BTreeMap<String, bool>;

/// The names of the Nodes that `unaccounted` selects on each page: at most [`MAX_WITHOUT`] names and, if `with_retired`
/// is set, all names that have a retired record.
pub(super) async fn nodes_named<F>(
    client: &Client,
    with_retired: bool,
    unaccounted: impl Fn(Vec<String>) -> F,
) -> Result<BTreeSet<String>, PartError>
where
    F: Future<Output = Result<Unaccounted, PartError>>,
{
    let api: Api<MetadataOf<Node>> = Api::all(client.clone());
    let mut page = ListParams::default().limit(NODES_A_PAGE);
    let mut found = BTreeSet::new();
    for _ in 0..MAX_PAGES {
        let nodes = part(metadata_page_of(&api, &page)).await?;
        let names = nodes.items.into_iter();
        let names = names.filter_map(|node| node.metadata.name);
        let names = names.filter(|name| name.len() <= MAX_NAME_LEN).collect();
        for (name, is_retired) in unaccounted(names).await? {
            // A tenant's API server can return any number of names, and the list can take hours.
            if found.len() < MAX_WITHOUT || with_retired && is_retired {
                found.insert(name);
            }
        }
        match nodes.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) if with_retired || found.len() < MAX_WITHOUT => {
                page = page.continue_token(&next);
            }
            Some(_) | None => return Ok(found),
        }
    }
    Err(PartError::TooManyPages(MAX_PAGES))
}

/// The message about Nodes without a record. `None` if attestation is enforced and there are no such Nodes.
pub(super) fn without_identity(
    without: Result<BTreeSet<String>, PartError>,
    is_enforced: bool,
) -> Option<String> {
    let nodes = match without {
        Ok(nodes) => nodes,
        Err(error) => {
            return Some(format!(
                "cannot list the Nodes without a node identity: {error}"
            ));
        }
    };
    let count = nodes.len();
    if count == 0 {
        let text = "attestation is not enforced (autoApproveBindings: Report)";
        return (!is_enforced).then(|| text.to_owned());
    }
    let named: Vec<&str> = nodes.iter().take(MAX_NAMED).map(String::as_str).collect();
    let at_least = if count < MAX_WITHOUT { "" } else { "at least " };
    let effect = if is_enforced {
        "and cannot renew their certificates"
    } else {
        "which is created when a Node's machine joins with the plugin"
    };
    Some(format!(
        "{at_least}{count} Nodes have no node identity, {effect}: {}",
        named.join(", ")
    ))
}

/// The Nodes without a live record that the controller can determine without calling the workload cluster.
#[derive(Debug)]
pub(super) struct Unrecorded {
    /// The exempt Nodes. A Node that has a record renews with evidence, and is not exempt.
    pub(super) exempt: BTreeSet<NodeName>,
    /// The other Nodes that Cluster API has found for Machines. While attestation is enforced, they cannot renew.
    pub(super) of_machines: BTreeSet<String>,
}

impl Unrecorded {
    /// The Nodes that have no record in `records`. If the records are unknown, the result contains all exempt Nodes.
    pub(super) async fn of(
        exempt: &BTreeSet<NodeName>,
        inventory: &CapiInventory,
        records: Option<&AllRecords>,
    ) -> Self {
        let (mut exempt, mut of_machines) = (exempt.clone(), BTreeSet::new());
        if let Some(records) = records {
            let nodes = inventory.chosen_machines(|machine| machine.node.cloned());
            let nodes = nodes.await.unwrap_or_default();
            let nodes = nodes.into_iter().map(|(_, node)| node);
            of_machines.extend(nodes.filter(|node| !exempt.contains(node)));
            let mut pace = Pace::default();
            for stored in &**records {
                if stored.record.is_live() {
                    exempt.remove(&stored.record.node_name);
                    of_machines.remove(&stored.record.node_name);
                }
                pace.step().await;
            }
        }
        let of_machines = of_machines.iter().map(ToString::to_string).collect();
        Self {
            exempt,
            of_machines,
        }
    }
}

/// The message about exempt Nodes. `None` if there are no exempt Nodes.
pub(super) fn exempt_nodes(exempt: &BTreeSet<NodeName>) -> Option<String> {
    let count = exempt.len();
    let named = exempt.iter().take(MAX_EXEMPT_NAMED);
    let named: Vec<&str> = named.map(NodeName::as_str).collect();
    let text = || {
        format!(
            "{count} exempt Nodes can renew without evidence: {}",
            named.join(", ")
        )
    };
    (count > 0).then(text)
}

#[cfg(test)]
mod tests;
