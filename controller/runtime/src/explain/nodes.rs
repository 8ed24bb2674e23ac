//! Predicts the answer to the first request from each existing Node, before a plugin is installed on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use futures::stream::{self, StreamExt as _};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::decide::{Foreseen, foresee};
use node_attestation_core::refusal::Refusal;
use node_attestation_core::time::text;
use serde::Serialize;
use tokio::time::timeout;

use super::{BoxError, Explainer, NOT_CALLED, bounded, expiries};
use crate::clock;
use crate::metrics::DENIED;
use crate::nodes::{KubeNodes, MAX_NODES};

/// The number of Nodes whose predictions run at the same time, so that their calls to a cloud API can be combined.
const AT_ONCE: usize = 64;

/// The deadline for reading the expiry times of certificates. The deadline for all predictions is longer.
const EXPIRIES_WITHIN: Duration = Duration::from_secs(30);

/// The outcome for a Node that has a node identity.
const RECORDED: &str = "recorded";

/// The outcome if all checks that do not need evidence pass.
const ACCEPTED: &str = "accepted";

/// The outcome if all of these checks pass, but a service that was not called has more facts about the machine.
const UNDECIDED: &str = "undecided";

/// The predicted answer to the first request from an existing Node, for one attestation provider.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NodePrediction {
    /// The Cluster.
    pub cluster: Option<String>,
    /// The Node.
    pub node: String,
    /// The attestation provider. `None` if the Node has a node identity or an invalid name.
    pub attestor: Option<String>,
    /// The Node name according to the platform or the machine's objects, if it is known.
    pub node_name: Option<String>,
    /// The Machine, if it was found.
    pub machine: Option<String>,
    /// The provider ID that the machine will claim.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    /// The ID of the instance, if its cloud has separate instance IDs.
    pub instance: Option<String>,
    /// The endorsement key that is registered for the machine, if any.
    pub endorsement_key: Option<String>,
    /// The expiry time of the kubelet's certificate, as RFC 3339. `None` if neither cluster contains the expiry time.
    pub certificate_expiry: Option<String>,
    /// `recorded`, `accepted`, `undecided`, `deferred`, `denied` or `failed`.
    pub outcome: &'static str,
    /// The reason that the request would get. Empty if the request would be accepted.
    pub reason: &'static str,
    /// The cause of the refusal, or the calls that the command omitted.
    pub message: String,
}

impl NodePrediction {
    /// Whether the request would be refused for a reason that does not resolve itself.
    pub(crate) fn is_refused(&self) -> bool {
        [DENIED, "failed"].contains(&self.outcome)
    }

    /// Whether the request would wait.
    pub(crate) fn is_deferred(&self) -> bool {
        self.outcome == "deferred"
    }

    pub(crate) fn new(node: String, outcome: &'static str) -> Self {
        Self {
            cluster: None,
            node,
            attestor: None,
            node_name: None,
            machine: None,
            provider_id: None,
            instance: None,
            endorsement_key: None,
            certificate_expiry: None,
            outcome,
            reason: "",
            message: String::new(),
        }
    }

    /// The prediction for a Node that the plugin cannot name in a request.
    fn invalid(node: &str, error: &dyn std::error::Error) -> Self {
        Self {
            message: bounded(&error_chain(error)),
            ..Self::new(bounded(node), "failed")
        }
    }

    fn of(node: &NodeName, foreseen: Foreseen) -> Self {
        let (outcome, reason, message) = match (&foreseen.refusal, &foreseen.unknown) {
            (Some(Refusal::Deny(denial)), _) => (DENIED, denial.reason(), error_chain(denial)),
            (Some(Refusal::Fail(failure)), _) => ("failed", failure.reason(), error_chain(failure)),
            (Some(Refusal::Retry(deferral)), _) => {
                ("deferred", deferral.reason(), error_chain(deferral))
            }
            (None, Some(unknown)) => (UNDECIDED, NOT_CALLED, error_chain(unknown)),
            (None, None) => (ACCEPTED, "", String::new()),
        };
        let (machine, identity) = (foreseen.machine, foreseen.identity);
        let of_machine = machine.as_ref();
        let named = identity.as_ref().and_then(|one| one.node_name.as_ref());
        let of_objects = of_machine.filter(|_| foreseen.unknown.is_none());
        let named = named.or(of_objects.and_then(|one| one.node_name.as_ref()));
        let provider_id = of_machine.and_then(|one| one.provider_id.as_ref());
        Self {
            attestor: Some(foreseen.provider.to_string()),
            node_name: named.map(ToString::to_string),
            machine: of_machine.map(|one| one.name.clone()),
            provider_id: provider_id.map(ToString::to_string),
            instance: identity.as_ref().and_then(|one| one.instance.clone()),
            endorsement_key: identity
                .as_ref()
                .and_then(|one| one.endorsement_key)
                .map(|key| key.to_string()),
            reason,
            message,
            ..Self::new(node.to_string(), outcome)
        }
    }
}

impl Explainer {
    /// Predicts the answer to the first request from each Node.
    ///
    /// # Errors
    ///
    /// Returns an error if the Nodes or the node identities could not be read.
    pub(crate) async fn nodes(&self) -> Result<Vec<NodePrediction>, BoxError> {
        let Some(workload) = &self.workload else {
            return Err("the workload cluster is unknown".into());
        };
        let records = self.context.ledger.records().all().await?;
        let live = records.iter().filter(|stored| stored.record.is_live());
        let live: BTreeSet<&str> = live.map(|one| one.record.node_name.as_str()).collect();
        let retired = records.iter().filter(|stored| !stored.record.is_live());
        let retired = retired.map(|one| (one.record.node_name.to_string(), one.record.not_after));
        let mut expiries: BTreeMap<String, SystemTime> = retired.collect();
        // Any user who can create requests can make their list too long. In this case, the expiry times are unknown.
        let listed = timeout(EXPIRIES_WITHIN, expiries::expiries(workload.client()));
        expiries.extend(listed.await.ok().and_then(Result::ok).unwrap_or_default());
        let nodes = KubeNodes::new(workload.client().clone());
        let (mut nodes, are_all) = nodes.provider_ids().await?;
        if !are_all {
            return Err(format!("the cluster has more than {MAX_NODES} Nodes").into());
        }
        nodes.sort();
        let now = clock::now();
        let predicted = nodes.into_iter().map(|(node, provider_id)| {
            let is_recorded = live.contains(node.as_str());
            async move {
                if is_recorded {
                    vec![NodePrediction::new(node, RECORDED)]
                } else {
                    Box::pin(self.node(node, provider_id.as_deref(), now)).await
                }
            }
        });
        let mut all: Vec<_> = stream::iter(predicted).buffered(AT_ONCE).concat().await;
        let cluster = self.management.as_ref().map(|(_, key)| key.to_string());
        for one in &mut all {
            one.cluster.clone_from(&cluster);
            let expiry = expiries.get(&one.node).copied();
            one.certificate_expiry = expiry.filter(|_| one.outcome != RECORDED).map(text);
        }
        Ok(all)
    }

    async fn node(
        &self,
        node: String,
        provider_id: Option<&str>,
        now: SystemTime,
    ) -> Vec<NodePrediction> {
        let name = match NodeName::parse(&node) {
            Ok(name) => name,
            Err(error) => return vec![NodePrediction::invalid(&node, &error)],
        };
        let provider_id = provider_id.filter(|id| !id.is_empty());
        let provider_id = match provider_id.map(ProviderId::parse).transpose() {
            Ok(provider_id) => provider_id,
            Err(error) => return vec![NodePrediction::invalid(&node, &error)],
        };
        let foreseen = foresee(&name, provider_id.as_ref(), &self.context, now).await;
        let predicted = foreseen.into_iter();
        predicted
            .map(|one| NodePrediction::of(&name, one))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::names::Provider;
    use node_attestation_core::testing::{cluster, now};

    use super::*;
    use futures::executor::block_on;

    fn predicted(node: &str, provider_id: &str) -> NodePrediction {
        let node = NodeName::parse(node).unwrap();
        let provider_id = ProviderId::parse(provider_id).unwrap();
        let foreseen = block_on(foresee(&node, Some(&provider_id), &cluster(), now()));
        let mut foreseen = foreseen.into_iter();
        let of_null = foreseen.find(|one| one.provider == Provider::NULL);
        NodePrediction::of(&node, of_null.unwrap())
    }

    #[test]
    fn a_prediction_names_the_machine_and_the_reason_of_its_refusal() {
        let denied = predicted("n1", "metal:///rack/m1");

        assert_eq!(
            (denied.outcome, denied.reason),
            ("denied", "RequesterUidMissing")
        );
        assert_eq!(denied.machine.as_deref(), Some("m1"));
        assert_eq!(denied.node_name.as_deref(), Some("n1"));
        assert_eq!(denied.provider_id.as_deref(), Some("metal:///rack/m1"));
        assert!(denied.is_refused() && !denied.is_deferred());
        let waiting = predicted("n1", "metal:///rack/m9");
        assert_eq!(
            (waiting.outcome, waiting.reason),
            ("deferred", "MachineNotFound")
        );
        assert_eq!(waiting.machine, None);
        assert!(waiting.is_deferred() && !waiting.is_refused());
    }
}
