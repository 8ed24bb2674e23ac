//! The names of a workload cluster's Nodes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ListParams};
use kubelet_attestation::names::NodeName;

use super::{MAX_NAMED, part};
use crate::watch::{MetadataOf, metadata_page_of};

/// The page size for lists of Nodes, which have a few kilobytes each.
const NODES_A_PAGE: u32 = 100;

/// The page limit: ten times the Nodes of the largest supported cluster. A server that always returns another page
/// would otherwise block the periodic work indefinitely.
const MAX_PAGES: usize = 500;

/// The maximum length of a Node name (RFC 1123). The API server rejects longer names.
const MAX_NAME_LEN: usize = 253;

/// The maximum number of exempt Nodes in a message.
const MAX_EXEMPT_NAMED: usize = 16;

/// The number of Nodes without a record after which the list ends. One such Node is enough for the decision, and a
/// message contains only a few.
pub(super) const MAX_WITHOUT: usize = 1000;

/// The names of Nodes that `wanted` accepts: at most [`MAX_WITHOUT`] and, if `retired` is set, all names in it.
pub(super) async fn nodes_named(
    client: &Client,
    retired: Option<&BTreeSet<&str>>,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeSet<String>, String> {
    let api: Api<MetadataOf<Node>> = Api::all(client.clone());
    let mut page = ListParams::default().limit(NODES_A_PAGE);
    let mut found = BTreeSet::new();
    let is_retired = |name: &str| retired.is_some_and(|retired| retired.contains(name));
    for _ in 0..MAX_PAGES {
        let nodes = part(metadata_page_of(&api, &page)).await?;
        let names = nodes
            .items
            .into_iter()
            .filter_map(|node| node.metadata.name)
            .filter(|name| name.len() <= MAX_NAME_LEN);
        for name in names.filter(|name| wanted(name)) {
            // A tenant's API server can return any number of names, and can take hours for the list.
            if found.len() < MAX_WITHOUT || is_retired(&name) {
                found.insert(name);
            }
        }
        match nodes.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) if retired.is_some() || found.len() < MAX_WITHOUT => {
                page = page.continue_token(&next);
            }
            Some(_) | None => return Ok(found),
        }
    }
    Err(format!("their list has more than {MAX_PAGES} pages"))
}

/// The message about Nodes without a record. `None` if attestation is enforced, and there are none.
pub(super) fn without_identity(
    without: Result<BTreeSet<String>, String>,
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
        "which they get when they join with the plugin"
    };
    Some(format!(
        "{at_least}{count} Nodes have no node identity, {effect}: {}",
        named.join(", ")
    ))
}

/// The message about exempt Nodes. `None` if there are none.
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
