//! The Nodes that renew their certificates without evidence.

use std::collections::BTreeSet;

use kubelet_attestation::names::NodeName;

/// The maximum number of exempt control-plane nodes. A control plane usually has only a few nodes. The names are in an
/// admission policy, and a tenant can create any number of control-plane Machines.
const MAX_CONTROL_PLANE: usize = 500;

/// The entries of `exemptNodes`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExemptNodes {
    listed: BTreeSet<NodeName>,
    control_plane: bool,
}

/// The reason for the exemption of a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exemption {
    /// `exemptNodes` contains the name of the Node.
    Listed,
    /// `exemptNodes` contains [`ExemptNodes::CONTROL_PLANE`], and the Node is a control-plane node.
    ControlPlane,
}

impl<T: AsRef<str>> FromIterator<T> for ExemptNodes {
    /// Reads the entries. The schema rejects an invalid name, which no Node can have.
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut exempt = Self::default();
        for entry in entries {
            let entry = entry.as_ref();
            exempt.control_plane |= entry == Self::CONTROL_PLANE;
            exempt.listed.extend(NodeName::parse(entry));
        }
        exempt
    }
}

impl ExemptNodes {
    /// The entry for the control-plane nodes. No Node can have this name, because it has upper-case letters.
    pub const CONTROL_PLANE: &str = "ControlPlane";

    /// Whether no Node can be exempt.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && !self.control_plane
    }

    /// Whether the control-plane nodes are exempt.
    pub fn has_control_plane(&self) -> bool {
        self.control_plane
    }

    /// Returns the reason for the exemption of this Node, which applies as long as the Node has no node identity.
    /// `None` if the Node is not exempt.
    pub fn of(&self, node: &NodeName, is_control_plane: bool) -> Option<Exemption> {
        if self.listed.contains(node) {
            Some(Exemption::Listed)
        } else {
            (self.control_plane && is_control_plane).then_some(Exemption::ControlPlane)
        }
    }

    /// Returns the names of the exempt Nodes, given the control-plane nodes. If the cluster has too many control-plane
    /// nodes, only the first ones are exempt.
    pub fn names(&self, control_plane: BTreeSet<NodeName>) -> BTreeSet<NodeName> {
        let exempt = control_plane.into_iter();
        let exempt = exempt.filter(|node| self.of(node, true).is_some());
        let exempt = exempt.take(MAX_CONTROL_PLANE);
        exempt.chain(self.listed.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL_PLANE: &str = ExemptNodes::CONTROL_PLANE;

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    #[test]
    fn a_node_is_exempt_by_its_name_or_as_a_control_plane_node() {
        use Exemption::{ControlPlane, Listed};
        let cases: [(&[&str], &str, bool, Option<Exemption>); 10] = [
            (&["n1"], "n1", false, Some(Listed)),
            (&["n1"], "n1", true, Some(Listed)),
            (&["n1"], "n2", true, None),
            (&[CONTROL_PLANE], "n1", true, Some(ControlPlane)),
            (&[CONTROL_PLANE], "n1", false, None),
            (&[CONTROL_PLANE, "n1"], "n1", true, Some(Listed)),
            (&[CONTROL_PLANE, "n1"], "n2", true, Some(ControlPlane)),
            (&["controlplane"], "n1", true, None),
            (&["controlplane"], "controlplane", false, Some(Listed)),
            (&[], "n1", true, None),
        ];
        for (entries, node, is_control_plane, expected) in cases {
            let exempt: ExemptNodes = entries.iter().collect();

            let found = exempt.of(&name(node), is_control_plane);

            assert_eq!(found, expected, "{entries:?} {node}");
            assert_eq!(exempt.is_empty(), entries.is_empty(), "{entries:?}");
        }
    }

    #[test]
    fn the_exempt_names_contain_control_plane_nodes_only_with_their_entry() {
        let planes = || BTreeSet::from([name("cp-1"), name("cp-2")]);
        let cases: [(&[&str], &[&str]); 4] = [
            (&["n1"], &["n1"]),
            (&[CONTROL_PLANE], &["cp-1", "cp-2"]),
            (&["n1", "cp-1", CONTROL_PLANE], &["cp-1", "cp-2", "n1"]),
            (&[], &[]),
        ];
        for (entries, expected) in cases {
            let exempt: ExemptNodes = entries.iter().collect();

            let names = exempt.names(planes());

            let names: Vec<_> = names.iter().map(NodeName::as_str).collect();
            assert_eq!(names, expected, "{entries:?}");
        }
    }

    #[test]
    fn the_entry_for_control_plane_nodes_is_not_a_node_name() {
        assert!(NodeName::parse(CONTROL_PLANE).is_err());
    }

    #[test]
    fn a_limited_number_of_control_plane_nodes_is_exempt() {
        let planes = |count: usize| (0..count).map(|number| name(&format!("cp-{number:04}")));
        let exempt: ExemptNodes = [CONTROL_PLANE, "n1"].iter().collect();

        for (count, expected) in [
            (MAX_CONTROL_PLANE, MAX_CONTROL_PLANE),
            (MAX_CONTROL_PLANE + 1, MAX_CONTROL_PLANE),
        ] {
            let names = exempt.names(planes(count).collect());

            assert_eq!(names.len(), expected + 1);
            assert!(names.contains(&name("n1")));
        }
    }
}
