//! The names that a machine's Node can have.

use kubelet_attestation::names::NodeName;

use crate::identifiers::NodeNames;

/// Whether a machine's Node can have a requested name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Naming {
    /// The Node can have the name.
    Own,
    /// The Node cannot have the name, but can have these names.
    Another(NodeNames),
    /// Another machine has an equal or stronger claim to the name.
    Shared {
        /// The other machine.
        other: String,
    },
    /// Some or all possible names are not known yet.
    Unknown,
}

impl Naming {
    /// The naming of a machine whose Node must have exactly one name.
    pub fn only(own: Option<&NodeName>, asked: &NodeName) -> Self {
        match own {
            None => Self::Unknown,
            Some(own) if own == asked => Self::Own,
            Some(own) => Self::Another(own.clone().into()),
        }
    }
}
