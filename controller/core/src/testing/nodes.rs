//! A cluster's Nodes in memory.

use std::collections::HashMap;

use kubelet_attestation::names::NodeName;

use crate::nodes::{Node, Nodes};
use crate::refusal::Unavailable;
use crate::unshared::Unshared;

/// Nodes in memory.
#[derive(Debug, Default)]
pub struct MemoryNodes(Unshared<HashMap<NodeName, Node>>);

impl MemoryNodes {
    /// Puts a Node there.
    pub fn put(&self, name: NodeName, node: Node) {
        let mut nodes = self.0.lock();
        nodes.insert(name, node);
    }

    /// Takes a Node away.
    pub fn remove(&self, name: &NodeName) {
        let mut nodes = self.0.lock();
        nodes.remove(name);
    }

    fn of(&self, name: &NodeName) -> Option<Node> {
        self.0.lock().get(name).cloned()
    }
}

#[async_trait::async_trait]
impl Nodes for MemoryNodes {
    async fn state(&self, name: &NodeName) -> Result<Option<Node>, Unavailable> {
        Ok(self.of(name))
    }

    async fn delete(&self, name: &NodeName, uid: &str) -> Result<(), Unavailable> {
        if self.of(name).is_some_and(|node| node.uid == uid) {
            self.remove(name);
        }
        Ok(())
    }
}
