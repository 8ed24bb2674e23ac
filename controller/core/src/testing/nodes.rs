//! A cluster's Nodes in memory.

use std::collections::HashMap;

use futures::future::{FutureExt as _, ready};
use kubelet_attestation::names::NodeName;
use parking_lot::Mutex;

use crate::nodes::{Node, NodeState, Nodes};
use crate::refusal::Answer;

/// Nodes in memory.
#[derive(Debug, Default)]
pub struct MemoryNodes(Mutex<HashMap<NodeName, Node>>);

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

    fn of(&self, name: &NodeName) -> NodeState {
        let nodes = self.0.lock();
        nodes
            .get(name)
            .cloned()
            .map_or(NodeState::Absent, NodeState::Present)
    }
}

impl Nodes for MemoryNodes {
    fn state<'a>(&'a self, name: &'a NodeName) -> Answer<'a, NodeState> {
        ready(Ok(self.of(name))).boxed()
    }

    fn delete<'a>(&'a self, name: &'a NodeName, uid: &'a str) -> Answer<'a, ()> {
        if self.of(name).uid() == Some(uid) {
            self.remove(name);
        }
        ready(Ok(())).boxed()
    }
}
