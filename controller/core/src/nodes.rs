//! The Nodes of one workload cluster, reduced to the fields that show whether a machine is running.
//!
//! A kubelet writes its own Node, so a Node is not evidence of the machine's identity. A Node can delay a claim, but
//! never causes a denial or a grant.

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use kubelet_attestation::names::NodeName;

use crate::refusal::{NotCalled, Unavailable};
use crate::time::age;

/// The maximum age of a live kubelet's Lease. A kubelet renews its Lease every 10 seconds. kube-controller-manager
/// marks a Node as not ready after 50 seconds (`nodeMonitorGracePeriod`).
const LEASE_GRACE: Duration = Duration::from_mins(1);

/// The name of a Node, and whether the work on it changed the Node.
pub type NodeWorkResult = (NodeName, Result<bool, Unavailable>);

/// Work on several Nodes. The iterator creates the future for a Node only when the work on this Node starts.
pub type NodeWork<'a> = Box<dyn Iterator<Item = BoxFuture<'a, NodeWorkResult>> + Send + 'a>;

/// Reads and deletes Nodes.
///
/// An implementation enforces its own deadlines. An error means an outage.
#[async_trait::async_trait]
pub trait Nodes: Debug + Send + Sync {
    /// Reads the current Node with this name. `None` if the Node does not exist.
    async fn state(&self, name: &NodeName) -> Result<Option<Node>, Unavailable>;

    /// Whether each of these Nodes is Ready, in any order. A missing Node is not Ready. The result omits Nodes that
    /// could not be read.
    ///
    /// An implementation that calls an API server uses one deadline for all Nodes together.
    async fn ready(&self, names: Vec<NodeName>) -> Vec<(NodeName, bool)> {
        let mut read = Vec::with_capacity(names.len());
        for name in names {
            let node = self.state(&name).await;
            if let Ok(node) = node {
                read.push((name, node.is_some_and(|node| node.ready)));
            }
        }
        read
    }

    /// Does this work. The work on the Nodes begins in the given order, and the results can have any order.
    ///
    /// An implementation that calls an API server works on several Nodes at the same time, with one deadline for all
    /// Nodes together. The result omits Nodes whose work is not complete at the deadline.
    async fn work(&self, work: NodeWork<'_>) -> Vec<NodeWorkResult> {
        let mut done = Vec::new();
        for one in work {
            done.push(one.await);
        }
        done
    }

    /// Deletes the Node with this name if it has this UID. Has no effect if the Node no longer exists or has a
    /// different UID.
    async fn delete(&self, name: &NodeName, uid: &str) -> Result<(), Unavailable>;

    /// The time with which the ages of Nodes and Leases are computed. The time comes from an API server, because an
    /// operator can change this machine's clock. If no API server has reported its time yet, the result is `now`.
    fn now(&self, now: SystemTime) -> SystemTime {
        now
    }
}

/// Read-only access to Nodes, for [explanations](crate::decide::explain). The deletion of a Node fails.
#[derive(Debug)]
pub struct ReadOnlyNodes<N>(pub N);

#[async_trait::async_trait]
impl<N: Nodes> Nodes for ReadOnlyNodes<N> {
    async fn state(&self, name: &NodeName) -> Result<Option<Node>, Unavailable> {
        self.0.state(name).await
    }

    async fn delete(&self, _name: &NodeName, _uid: &str) -> Result<(), Unavailable> {
        Err(Unavailable::new(NotCalled(
            "an explanation does not delete Nodes",
        )))
    }

    fn now(&self, now: SystemTime) -> SystemTime {
        self.0.now(now)
    }
}

/// A Node, reduced to the fields that show whether its kubelet is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The UID.
    pub uid: String,
    /// Whether the condition `Ready` of the Node is true.
    pub ready: bool,
    /// The time of the last renewal of its Lease. `None` without a Lease.
    pub lease_renewed: Option<SystemTime>,
    /// The Node's `spec.providerID`. The kubelet sets this field when it creates the Node, or a cloud controller sets
    /// it later.
    pub provider_id: Option<String>,
    /// The creation time, from the API server's clock.
    pub created: Option<SystemTime>,
}

impl Node {
    /// Whether the kubelet is not running: the Node is not ready, and both the Node and the last renewal of its Lease
    /// are more than one minute old. The age of the Node matters because a kubelet creates its Lease a few seconds
    /// after its Node.
    pub fn is_down(&self, now: SystemTime) -> bool {
        // A time in the future counts as recent, because clocks differ.
        let is_recent = |time: SystemTime| age(time, now).is_none_or(|age| age <= LEASE_GRACE);
        !self.ready
            && !self.created.is_some_and(is_recent)
            && !self.lease_renewed.is_some_and(is_recent)
    }

    /// Whether the kubelet renewed its Lease at or after `time`. `false` without a Lease.
    pub(crate) fn renewed_since(&self, time: SystemTime) -> bool {
        self.lease_renewed.is_some_and(|renewed| renewed >= time)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_hours(500_000)
    }

    fn node(ready: bool, lease_age: Option<u64>) -> Node {
        Node {
            uid: "a".to_owned(),
            ready,
            lease_renewed: lease_age.map(|age| now() - Duration::from_secs(age)),
            provider_id: None,
            created: Some(now() - Duration::from_hours(1)),
        }
    }

    #[test]
    fn a_new_node_without_a_lease_is_not_down_for_one_minute() {
        for (age, down) in [(0, false), (60, false), (61, true)] {
            let node = Node {
                created: Some(now() - Duration::from_secs(age)),
                ..node(false, None)
            };
            assert_eq!(node.is_down(now()), down, "{age} s");
        }
    }

    #[test]
    fn a_node_that_is_not_ready_with_an_old_lease_is_down() {
        for (node, down) in [
            (node(true, Some(0)), false),
            (node(true, Some(3600)), false),
            (node(true, None), false),
            (node(false, Some(60)), false),
            (node(false, Some(61)), true),
            (node(false, None), true),
        ] {
            assert_eq!(node.is_down(now()), down, "{node:?}");
        }
    }

    #[test]
    fn a_node_with_a_lease_time_in_the_future_is_not_down() {
        let node = Node {
            uid: "a".to_owned(),
            ready: false,
            lease_renewed: Some(now() + Duration::from_hours(1)),
            provider_id: None,
            created: None,
        };

        assert!(!node.is_down(now()));
    }
}
