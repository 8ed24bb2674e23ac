//! The names that a machine's Node may have.

use kubelet_attestation::names::NodeName;

use crate::identifiers::NodeNames;

/// Whether a machine's Node may have a certain name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Naming {
    /// It may.
    Own,
    /// It may not, but these.
    Another(NodeNames),
    /// Another machine has as good a right to it, or a better one.
    Shared {
        /// The other machine.
        other: String,
    },
    /// The names are not known yet, or not all of them.
    Unknown,
}

impl Naming {
    /// The naming of a machine whose Node must have this name.
    pub fn only(own: Option<&NodeName>, asked: &NodeName) -> Self {
        match own {
            None => Self::Unknown,
            Some(own) if own == asked => Self::Own,
            Some(own) => Self::Another(own.clone().into()),
        }
    }
}
