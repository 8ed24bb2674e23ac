//! The possible names of a machine's Node.

use kubelet_attestation::names::NodeName;

use crate::identifiers::NodeNames;

/// Whether a requested name is possible for a machine's Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Naming {
    /// The name is possible.
    Own,
    /// The name is not possible. These names are possible.
    Another(NodeNames),
    /// Another machine has a claim to the name that is equal or stronger.
    Shared {
        /// The name of the other machine.
        other: String,
    },
    /// At least one possible name is not known yet.
    Unknown,
}

impl Naming {
    /// Returns the naming for a machine whose Node must have exactly the name `own`.
    pub fn only(own: Option<&NodeName>, asked: &NodeName) -> Self {
        match own {
            None => Self::Unknown,
            Some(own) if own == asked => Self::Own,
            Some(own) => Self::Another(own.clone().into()),
        }
    }
}
