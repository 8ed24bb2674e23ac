//! The Nodes of a cluster, in memory.

use std::collections::HashMap;
use std::time::SystemTime;

use kubelet_attestation::names::NodeName;

use crate::nodes::{Node, Nodes};
use crate::refusal::Unavailable;
use crate::unshared::Unshared;

/// Nodes in memory.
#[derive(Debug, Default)]
pub struct MemoryNodes {
    nodes: Unshared<HashMap<NodeName, Node>>,
    time: Unshared<Option<SystemTime>>,
}

impl MemoryNodes {
    /// Adds or replaces a Node.
    pub fn put(&self, name: NodeName, node: Node) {
        let mut nodes = self.nodes.lock();
        nodes.insert(name, node);
    }

    /// Deletes a Node.
    pub fn remove(&self, name: &NodeName) {
        let mut nodes = self.nodes.lock();
        nodes.remove(name);
    }

    /// Sets the API server's time, which is unknown before this call.
    pub fn show_time(&self, time: SystemTime) {
        *self.time.lock() = Some(time);
    }

    fn of(&self, name: &NodeName) -> Option<Node> {
        self.nodes.lock().get(name).cloned()
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

    fn now(&self, now: SystemTime) -> SystemTime {
        self.time.lock().unwrap_or(now)
    }
}
