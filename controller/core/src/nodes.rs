//! The Nodes of one workload cluster, as far as they say whether a machine is up.
//!
//! A Node is written by its kubelet, so it proves nothing about who that is: it can keep a claim
//! waiting, and never deny or grant one.

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use kubelet_attestation::names::NodeName;

use crate::refusal::{NotAsked, Unavailable};

/// A kubelet renews its Lease every ten seconds; kube-controller-manager calls a Node down after 50
/// (`nodeMonitorGracePeriod`). Older than this, nobody is at work under the Node's name.
const LEASE_GRACE: Duration = Duration::from_mins(1);

/// Reads and removes Nodes.
///
/// An implementation brings its own deadlines. An error is an outage.
#[async_trait::async_trait]
pub trait Nodes: Debug + Send + Sync {
    /// The Node of this name, now; `None` where there is none.
    async fn state(&self, name: &NodeName) -> Result<Option<Node>, Unavailable>;

    /// Deletes the Node of this name if it still is the one of this UID; one that is gone, or
    /// another by now, is left alone.
    async fn delete(&self, name: &NodeName, uid: &str) -> Result<(), Unavailable>;
}

/// Nodes of which none is deleted, for [explanations](crate::decide::explain).
#[derive(Debug)]
pub struct ReadOnlyNodes<N>(pub N);

#[async_trait::async_trait]
impl<N: Nodes> Nodes for ReadOnlyNodes<N> {
    async fn state(&self, name: &NodeName) -> Result<Option<Node>, Unavailable> {
        self.0.state(name).await
    }

    async fn delete(&self, _name: &NodeName, _uid: &str) -> Result<(), Unavailable> {
        Err(Unavailable::new(NotAsked("an explanation deletes no Node")))
    }
}

/// A Node, as far as it says whether its kubelet is at work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its UID.
    pub uid: String,
    /// Whether its condition `Ready` is true.
    pub ready: bool,
    /// The time of its Lease's last renewal; `None` without a Lease.
    pub lease_renewed: Option<SystemTime>,
    /// Its `spec.providerID`, which its kubelet wrote when it created the Node, or a cloud controller later; `None`
    /// without one.
    pub provider_id: Option<String>,
    /// The time of its creation, by the API server's clock.
    pub created: Option<SystemTime>,
}

impl Node {
    /// Whether its kubelet is not at work: it is not ready, and its Lease and the Node itself are over a minute old. A
    /// kubelet creates its Node first, and its Lease some seconds later.
    pub fn is_down(&self, now: SystemTime) -> bool {
        let since = now.checked_sub(LEASE_GRACE);
        let is_new = self
            .created
            .is_some_and(|created| since.is_none_or(|since| created >= since));
        !self.ready && !is_new && !self.renewed_since(since)
    }

    /// Whether the kubelet renewed its Lease after `time`. Without a Lease it did not.
    pub(crate) fn renewed_since(&self, time: Option<SystemTime>) -> bool {
        // A time before all time is before every renewal.
        self.lease_renewed
            .is_some_and(|renewed| time.is_none_or(|time| renewed >= time))
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
    fn a_node_that_has_no_lease_yet_is_not_down_for_a_minute() {
        for (age, down) in [(0, false), (60, false), (61, true)] {
            let node = Node {
                created: Some(now() - Duration::from_secs(age)),
                ..node(false, None)
            };
            assert_eq!(node.is_down(now()), down, "{age} s");
        }
    }

    #[test]
    fn a_node_is_down_when_it_is_not_ready_with_a_lease_over_a_minute_old() {
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
    fn a_lease_in_the_future_does_not_mean_that_the_node_is_down() {
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
