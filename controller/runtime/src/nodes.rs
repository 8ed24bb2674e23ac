//! Access to the Nodes of a workload cluster through its API server.

use std::time::{Duration, SystemTime};

use futures::future;
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node as KubeNode, NodeAddress};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::{Client, Resource as _};
use kubelet_attestation::errors::shortened;
use kubelet_attestation::names::NodeName;
use node_attestation_core::identifiers::{ServingName, dns_form};
use node_attestation_core::nodes::{Node, NodeWork, NodeWorkResult, Nodes};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::serving::NodeReportedAddresses;
use serde::Deserialize;
use tokio::time::sleep;

use crate::client::{CallError, ServerTime, call};
use crate::watch::{Lenient, each_of, one_of, read_alone};

/// The maximum number of addresses for a Node. A normal Node has only a few addresses.
const MAX_ADDRESSES: usize = 1024;

/// The maximum length of a Node address (RFC 1123).
const MAX_ADDRESS_LEN: usize = 253;

/// The maximum total length of these addresses. It equals the maximum length of a request, which contains the names.
/// The addresses stay in memory while the request is checked, and hundreds of requests can be in progress.
const MAX_ADDRESSES_LEN: usize = 64 * 1024;

/// The maximum length of a UID or a provider ID.
const MAX_TEXT_LEN: usize = 2048;

/// The maximum number of Nodes in a list. Kubernetes supports 5,000 Nodes, and a tenant's API server can return any
/// number of Nodes.
pub(crate) const MAX_NODES: usize = 20_000;

/// The maximum number of a cluster's Nodes that are read or deleted at the same time.
const NODES_AT_ONCE: usize = 8;

/// The deadline for reading or deleting many Nodes. The cluster's rounds, including its revocations, wait until the
/// reads or deletions are complete.
const ALL_WITHIN: Duration = Duration::from_secs(10);

/// A field of a Node is too long. The length is limited because the Node is kept in memory while a request is checked.
#[derive(Debug, thiserror::Error)]
#[error("the Node's {0} is longer than {MAX_TEXT_LEN} bytes")]
struct TooLong(&'static str);

/// The namespace of kubelet Leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The Nodes of one Kubernetes API server.
///
/// The client's user needs permission to get and delete Nodes, and to get Leases in `kube-node-lease`.
#[derive(Debug, Clone)]
pub struct KubeNodes {
    nodes: Api<Lenient<ReadNode, KubeNode>>,
    leases: Api<Lenient<ReadLease, Lease>>,
    time: ServerTime,
}

/// The required fields of a Node. The node itself writes the status, including its timestamps. It also writes the
/// provider ID when it creates the Node.
#[derive(Debug, Clone, Deserialize)]
struct ReadNode {
    spec: Option<ReadSpec>,
    status: Option<ReadStatus>,
}

#[derive(Debug, Clone, Deserialize)]
struct ReadSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct ReadStatus {
    conditions: Option<Vec<ReadCondition>>,
    addresses: Option<Vec<NodeAddress>>,
}

#[derive(Debug, Clone, Deserialize)]
struct ReadCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// The required fields of a node's Lease, which the node itself writes.
#[derive(Debug, Clone, Deserialize)]
struct ReadLease {
    spec: Option<ReadLeaseSpec>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadLeaseSpec {
    renew_time: Option<String>,
}

read_alone! {
    "Node" => ReadNode,
    "Lease of a node" => ReadLease,
}

impl KubeNodes {
    /// Creates access to the Nodes in `client`'s API server.
    pub fn new(client: Client) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client, LEASE_NAMESPACE),
            time: ServerTime::default(),
        }
    }

    /// Sets an operator-configured API server as the time source for the ages of Nodes and Leases.
    #[must_use]
    pub fn with_time(self, time: ServerTime) -> Self {
        Self { time, ..self }
    }

    /// The names of the first [`MAX_NODES`] Nodes, with their provider IDs if they have them, and whether the list is
    /// complete. Long texts are truncated.
    ///
    /// # Errors
    ///
    /// Returns an error if the Nodes could not be listed.
    pub(crate) async fn provider_ids(
        &self,
    ) -> Result<(Vec<(String, Option<String>)>, bool), CallError> {
        let (mut all, mut are_all) = (Vec::new(), true);
        each_of(&self.nodes, ListParams::default(), |node| {
            if all.len() >= MAX_NODES {
                are_all = false;
                return;
            }
            let bounded = |text: String| shortened(&text, MAX_TEXT_LEN).to_owned();
            let provider_id = node.object.ok().and_then(|node| node.spec?.provider_id);
            let name = node.metadata.name.unwrap_or_default();
            all.push((bounded(name), provider_id.map(bounded)));
        })
        .await?;
        Ok((all, are_all))
    }
}

#[async_trait::async_trait]
impl Nodes for KubeNodes {
    async fn state(&self, name: &NodeName) -> Result<Option<Node>, Unavailable> {
        let Some(node) = call(one_of(&self.nodes, name.as_str())).await? else {
            return Ok(None);
        };
        // Only the used fields are kept, because a tenant's API server can return a large object and then never answer
        // the next call.
        let node = used(node)?;
        // The Lease is also read for a ready Node, because kube-controller-manager, which marks a Node as not ready,
        // might be unavailable.
        let lease = call(one_of(&self.leases, name.as_str())).await?;
        let lease = lease.map(|lease| lease.object).transpose();
        let lease = lease.map_err(Unavailable::new)?;
        Ok(Some(Node {
            lease_renewed: lease.and_then(renewed),
            ..node
        }))
    }

    async fn ready(&self, names: Vec<NodeName>) -> Vec<(NodeName, bool)> {
        let reads = stream::iter(names).map(|name| async move {
            let node = call(one_of(&self.nodes, name.as_str())).await.ok()?;
            let node = node.map(used).transpose().ok()?;
            Some((name, node.is_some_and(|node| node.ready)))
        });
        let read = reads.buffer_unordered(NODES_AT_ONCE);
        let read = read.take_until(sleep(ALL_WITHIN));
        read.filter_map(future::ready).collect().await
    }

    async fn work(&self, work: NodeWork<'_>) -> Vec<NodeWorkResult> {
        let done = stream::iter(work).buffer_unordered(NODES_AT_ONCE);
        done.take_until(sleep(ALL_WITHIN)).collect().await
    }

    async fn delete(&self, name: &NodeName, uid: &str) -> Result<(), Unavailable> {
        let only = Preconditions {
            uid: Some(uid.to_owned()),
            ..Preconditions::default()
        };
        let parameters = DeleteParams::default().preconditions(only);
        match call(self.nodes.delete(name.as_str(), &parameters)).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn now(&self, now: SystemTime) -> SystemTime {
        self.time.now_or(now)
    }
}

#[async_trait::async_trait]
impl NodeReportedAddresses for KubeNodes {
    async fn names(&self, node_name: &NodeName) -> Result<Vec<ServingName>, Unavailable> {
        let node = call(one_of(&self.nodes, node_name.as_str())).await?;
        let node = node.map(|node| node.object).transpose();
        let status = node.map_err(Unavailable::new)?.and_then(|node| node.status);
        let addresses = status.and_then(|status| status.addresses);
        let few = addresses.into_iter().flatten().take(MAX_ADDRESSES);
        let few = few.filter(|address| address.address.len() <= MAX_ADDRESS_LEN);
        let mut room = MAX_ADDRESSES_LEN;
        let few = few.take_while(|address| {
            let rest = room.checked_sub(address.address.len());
            room = rest.unwrap_or(0);
            rest.is_some()
        });
        Ok(few.map(serving_name).collect())
    }
}

/// The used fields of a Node, not including the fields from its Lease.
fn used(node: Lenient<ReadNode, KubeNode>) -> Result<Node, Unavailable> {
    let uid = node.meta().uid.clone().unwrap_or_default();
    let created = node.meta().creation_timestamp.as_ref();
    let created = created.map(|time| SystemTime::from(time.0));
    let node = node.object.map_err(Unavailable::new)?;
    let ready = is_ready(&node);
    let provider_id = node.spec.and_then(|spec| spec.provider_id);
    let provider_id = provider_id.filter(|text| !text.is_empty());
    for (field, text) in [("UID", Some(&uid)), ("provider ID", provider_id.as_ref())] {
        if text.is_some_and(|text| text.len() > MAX_TEXT_LEN) {
            return Err(Unavailable::new(TooLong(field)));
        }
    }
    Ok(Node {
        uid,
        ready,
        lease_renewed: None,
        provider_id,
        created,
    })
}

fn serving_name(NodeAddress { address, .. }: NodeAddress) -> ServingName {
    let ip = address.parse().map(ServingName::Ip);
    ip.unwrap_or_else(|_| ServingName::Dns(dns_form(&address)))
}

fn is_ready(node: &ReadNode) -> bool {
    let status = node.status.iter();
    let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.kind == "Ready" && condition.status == "True")
}

/// The renewal time of the Lease. A time that cannot be parsed counts as recent, because a running kubelet wrote it.
fn renewed(lease: ReadLease) -> Option<SystemTime> {
    let time = lease.spec?.renew_time?;
    Some(time.parse().unwrap_or(Timestamp::MAX).into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::FutureExt as _;
    use http_body_util::Full;
    use hyper::Response;
    use hyper::body::Bytes;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::client::ClusterAccess;

    /// Access to an API server that returns this Node.
    fn nodes(node: &Value) -> KubeNodes {
        let text = node.to_string();
        let access = ClusterAccess::in_memory(move |_| {
            let answer = Response::new(Full::new(Bytes::from(text.clone())));
            async move { answer }
        });
        KubeNodes::new(access.client().clone())
    }

    #[tokio::test]
    async fn a_node_with_endless_fields_uses_bounded_memory() {
        let name = NodeName::parse("n").unwrap();
        let (long, longest) = ("x".repeat(MAX_TEXT_LEN + 1), "x".repeat(MAX_TEXT_LEN));
        for (uid, provider_id, error) in [
            (&longest, &longest, None),
            (&long, &longest, Some("UID")),
            (&longest, &long, Some("provider ID")),
        ] {
            let node = json!({"metadata": {"uid": uid}, "spec": {"providerID": provider_id}});
            let error = error.map(|field| TooLong(field).to_string());
            let state = nodes(&node).state(&name).await;
            assert_eq!(state.err().map(|error| error.to_string()), error);
        }

        let address = |text: &str| json!({"type": "Hostname", "address": text});
        let long = "x".repeat(MAX_ADDRESS_LEN + 1);
        let mut addresses = vec![address("y"); MAX_ADDRESSES + 1];
        addresses[0] = address(&long);
        let node = json!({"metadata": {}, "status": {"addresses": addresses}});
        let names = nodes(&node).names(&name).await.unwrap();
        assert_eq!(names.len(), MAX_ADDRESSES - 1);

        let addresses = vec![address(&"x".repeat(MAX_ADDRESS_LEN)); MAX_ADDRESSES];
        let node = json!({"metadata": {}, "status": {"addresses": addresses}});
        let names = nodes(&node).names(&name).await.unwrap();
        assert_eq!(names.len(), MAX_ADDRESSES_LEN / MAX_ADDRESS_LEN);
    }

    #[tokio::test]
    async fn a_node_is_reduced_to_its_used_fields_before_its_lease_is_read() {
        let calls: Arc<AtomicUsize> = Arc::default();
        let counted = calls.clone();
        let node = json!({"metadata": {"uid": "x".repeat(MAX_TEXT_LEN + 1)}}).to_string();
        let access = ClusterAccess::in_memory(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            let answer = Response::new(Full::new(Bytes::from(node.clone())));
            async move { answer }
        });

        let name = NodeName::parse("n").unwrap();
        let state = KubeNodes::new(access.client().clone()).state(&name).await;

        let error = state.unwrap_err();
        let words = "the Node's UID is longer than ";
        assert!(error.to_string().starts_with(words), "{error}");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_reads_of_nodes_end_together_within_seconds() {
        let most: Arc<AtomicUsize> = Arc::default();
        let (open, seen) = (Arc::<AtomicUsize>::default(), most.clone());
        let access = ClusterAccess::in_memory(move |request| {
            let (open, seen) = (open.clone(), seen.clone());
            let number = request.uri().path().rsplit('n').next();
            let number: usize = number.unwrap().parse().unwrap();
            async move {
                if number >= 20 {
                    let now = open.fetch_add(1, Ordering::Relaxed) + 1;
                    seen.fetch_max(now, Ordering::Relaxed);
                    future::pending::<()>().await;
                }
                let conditions = json!([{"type": "Ready", "status": "True"}]);
                let node = match number {
                    0 => json!({"metadata": {"uid": "x".repeat(MAX_TEXT_LEN + 1)}}),
                    1 => json!({"metadata": {"uid": "u"}}),
                    _ => json!({"metadata": {"uid": "u"}, "status": {"conditions": conditions}}),
                };
                Response::new(Full::new(Bytes::from(node.to_string())))
            }
        });
        let names = (0..100).map(|number| NodeName::parse(&format!("n{number}")).unwrap());
        let start = Instant::now();

        let mut read = KubeNodes::new(access.client().clone())
            .ready(names.collect())
            .await;

        assert_eq!(start.elapsed().as_secs(), ALL_WITHIN.as_secs());
        let most = most.load(Ordering::Relaxed);
        assert!((2..=NODES_AT_ONCE).contains(&most), "{most}");
        read.sort();
        let not_ready = read.iter().filter(|(_, is_ready)| !is_ready);
        let not_ready: Vec<&str> = not_ready.map(|(name, _)| name.as_str()).collect();
        assert_eq!((read.len(), not_ready), (19, vec!["n1"]));
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_work_on_nodes_ends_together_within_seconds() {
        let access = ClusterAccess::in_memory(|_| async { Response::new(Full::default()) });
        let begun = AtomicUsize::default();
        let begun_by = &begun;
        let work = (0..100).map(move |number| {
            let work = async move {
                begun_by.fetch_add(1, Ordering::Relaxed);
                if number >= 20 {
                    future::pending::<()>().await;
                }
                let name = NodeName::parse(&format!("n{number}")).unwrap();
                (name, Ok(true))
            };
            work.boxed()
        });
        let start = Instant::now();

        let done = KubeNodes::new(access.client().clone())
            .work(Box::new(work))
            .await;

        assert_eq!(start.elapsed().as_secs(), ALL_WITHIN.as_secs());
        assert_eq!(done.len(), 20);
        assert_eq!(begun.load(Ordering::Relaxed), 20 + NODES_AT_ONCE);
    }

    #[tokio::test]
    async fn a_list_keeps_a_limited_number_of_nodes_with_short_texts() {
        let long = "x".repeat(MAX_TEXT_LEN + 1);
        let node = json!({"metadata": {"name": long}, "spec": {"providerID": long}});
        let page = |rest: Value, count: usize| {
            let mut items = vec![json!({"metadata": {"name": "n"}}); count];
            if let Some(first) = items.first_mut() {
                first.clone_from(&node);
            }
            let list = json!({"metadata": {"continue": rest}, "items": items});
            Bytes::from(list.to_string())
        };
        for (more, are_all) in [(0, true), (1, false)] {
            let [first, last] = [page(json!("1"), 500), page(Value::Null, more)];
            let asked: Arc<AtomicUsize> = Arc::default();
            let access = ClusterAccess::in_memory(move |_| {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                let is_last = number >= MAX_NODES / 500;
                let page = if is_last { last.clone() } else { first.clone() };
                async move { Response::new(Full::new(page)) }
            });

            let nodes = KubeNodes::new(access.client().clone());
            let (nodes, all) = nodes.provider_ids().await.unwrap();

            assert_eq!((nodes.len(), all), (MAX_NODES, are_all));
            let (name, provider_id) = &nodes[0];
            assert_eq!(name.len(), MAX_TEXT_LEN);
            assert_eq!(provider_id.as_deref(), Some(name.as_str()));
        }
    }
}
