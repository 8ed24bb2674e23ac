//! The Nodes of the Machines of one Cluster.

use std::collections::BTreeSet;

use kubelet_attestation::names::NodeName;
use node_attestation_core::refusal::Unavailable;

use super::super::objects::Machine;
use super::CapiInventory;
use super::view::View;

impl CapiInventory {
    /// The names of the control-plane Nodes. `None` while the inventory is unavailable. A `KubeadmConfig` that cannot
    /// be decoded hides only the Node of its Machine.
    pub async fn control_plane_nodes(&self) -> Option<BTreeSet<NodeName>> {
        let of = |view: View<'_>, name: &str, machine: &Machine| {
            machine.control_plane.then(|| view.node(name, machine))?
        };
        let (names, _) = self.find_each(of).await.ok()?;
        Some(names.into_iter().collect())
    }

    /// The Nodes of those Machines for which `is_without` is true for every possible Node name.
    ///
    /// The possible names are the name of the Node that Cluster API has found for the Machine and, for a control-plane
    /// Machine, also the expected Node name.
    ///
    /// # Errors
    ///
    /// Returns an error while the inventory is unavailable. Also returns an error if the result depends on a
    /// `KubeadmConfig` that cannot be decoded: it belongs to a control-plane Machine for which Cluster API has not found
    /// a Node, or has found a Node for which `is_without` is true.
    pub async fn nodes_without(
        &self,
        is_without: impl Fn(&str) -> bool,
    ) -> Result<BTreeSet<String>, Unavailable> {
        let of = |view: View<'_>, name: &str, machine: &Machine| {
            let is_named = |node: &NodeName| is_without(node.as_str());
            let found = machine.node.as_ref();
            // For this result, the `KubeadmConfig` is not needed.
            found.is_none_or(is_named).then_some(())?;
            let expected = machine.control_plane.then(|| view.node(name, machine));
            let expected = expected.flatten();
            let expected = expected.as_ref();
            let first = found.or(expected)?;
            let are_all = expected.is_none_or(is_named);
            are_all.then(|| first.as_str().to_owned())
        };
        let (nodes, undecoded) = self.find_each(of).await?;
        undecoded.map_or_else(|| Ok(nodes.into_iter().collect()), Err)
    }
}
