//! The names that a machine's Node may have.

use std::fmt;

use kubelet_attestation::names::NodeName;

/// The limit of names in a message, of the dozens that a machine may be reported to have.
const MAX_LISTED: usize = 4;

/// Whether a machine's Node may have a certain name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
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

/// Some names, of which the first few are written out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNames(Vec<NodeName>);

impl From<NodeName> for NodeNames {
    fn from(name: NodeName) -> Self {
        Self(vec![name])
    }
}

impl FromIterator<NodeName> for NodeNames {
    /// In this order, each once.
    fn from_iter<T: IntoIterator<Item = NodeName>>(names: T) -> Self {
        let mut all = Vec::new();
        for name in names {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        Self(all)
    }
}

impl fmt::Display for NodeNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().take(MAX_LISTED).enumerate() {
            let separator = if index == 0 { "" } else { " or " };
            write!(f, "{separator}{name}")?;
        }
        match self.0.len().saturating_sub(MAX_LISTED) {
            0 => Ok(()),
            more => write!(f, " or one of {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_names_are_written_out_each_once_and_the_others_counted() {
        let names = |names: &[&str]| {
            let names = names.iter().map(|name| NodeName::parse(name).unwrap());
            names.collect::<NodeNames>().to_string()
        };

        assert_eq!(names(&["a"]), "a");
        assert_eq!(names(&["a", "b", "a"]), "a or b");
        let many = ["a", "b", "c", "d", "e", "f"];
        assert_eq!(names(&many), "a or b or c or d or one of 2 more");
    }
}
