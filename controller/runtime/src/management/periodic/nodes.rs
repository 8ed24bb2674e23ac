//! The names of a workload cluster's Nodes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ListParams};
use kubelet_attestation::errors::error_chain;
use tokio::time::timeout;

use super::{PART_DEADLINE, cut, late};

/// The Nodes on a page of a list: a few kilobytes each.
const NODES_A_PAGE: u32 = 100;

/// A list of more pages is not read to its end: a server that always has another one would keep the
/// cluster's upkeep for ever. As many Nodes as a cluster of ten times the supported size has.
const MAX_PAGES: usize = 500;

/// One is enough to wait for, and some to name.
pub(super) const MAX_WITHOUT: usize = 1000;

/// The Nodes with such a name: all of them, or `enough` at least.
pub(super) async fn nodes_named(
    client: &Client,
    enough: usize,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeSet<String>, String> {
    let api: Api<Node> = Api::all(client.clone());
    let mut page = ListParams::default().limit(NODES_A_PAGE);
    let mut found = BTreeSet::new();
    for _ in 0..MAX_PAGES {
        let nodes = match timeout(PART_DEADLINE, api.list_metadata(&page)).await {
            Ok(Ok(nodes)) => nodes,
            Ok(Err(error)) => return Err(cut(error_chain(&error))),
            Err(_) => return Err(late()),
        };
        let names = nodes
            .items
            .into_iter()
            .filter_map(|node| node.metadata.name);
        found.extend(names.filter(|name| wanted(name)));
        match nodes.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) if found.len() < enough => page = page.continue_token(&next),
            Some(_) | None => return Ok(found),
        }
    }
    Err(format!("their list has more than {MAX_PAGES} pages"))
}

#[cfg(test)]
mod tests;
