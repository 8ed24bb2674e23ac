//! The check of a Cluster's existing Nodes, before an operator installs a plugin on them.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{FutureExt as _, join_all};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::verifier::Verifiers;
use tokio::time::timeout;

use super::{Checked, Finding, State, some};
use crate::capi::ObjectKey;
use crate::client::{ClusterAccess, EgressPolicy};
use crate::explain::{Explainer, NodePrediction};
use crate::turns::{FairTurns, TurnLimits};

/// The name of the check.
const NAME: &str = "predictions";

/// The check that precedes all other checks of a workload cluster.
const KUBECONFIG: &str = "kubeconfig";

/// The deadline for all Nodes in one Cluster, because a Cluster can have thousands of Nodes.
const DEADLINE: Duration = Duration::from_mins(2);

/// The limit on Clusters whose predictions run at the same time. The Clusters take turns by namespace, because a tenant
/// can create any number of Clusters whose API servers do not respond.
const AT_ONCE: TurnLimits = TurnLimits {
    all: 8,
    of_cluster: 1,
};

/// The predictions for a Cluster. `None` if the workload cluster cannot be reached.
type Found = Result<Option<Vec<NodePrediction>>, String>;

/// Predicts the answer to the first request from each existing Node in the checked Clusters, and adds a check to each
/// Cluster. `verifiers` call a service only if the operator permits it.
pub async fn predict(
    management: &ClusterAccess,
    checks: &mut Vec<Checked>,
    egress: EgressPolicy,
    verifiers: impl Fn(&KubeletAuthentication, &str) -> Verifiers,
) -> Vec<NodePrediction> {
    let mut all = Vec::new();
    let predict = async |key: &ObjectKey| nodes(management, key, egress, &verifiers).await;
    for (key, found) in each(managed(checks), predict).await {
        let finding = match found {
            Ok(None) => Finding::skip("cannot call the workload cluster"),
            Ok(Some(predictions)) => {
                let finding = finding(&predictions);
                all.extend(predictions);
                finding
            }
            Err(error) => Finding::fail(error, "fix the problem that the message describes"),
        };
        let cluster = Some(key.to_string());
        let last = checks.iter().rposition(|one| one.cluster == cluster);
        let place = last.map_or(checks.len(), |last| last + 1);
        checks.insert(place, finding.checked(Some(&key), NAME));
    }
    all
}

/// Calls `predict` for each Cluster whose workload cluster can be called, within the deadline for a Cluster.
async fn each(
    clusters: Vec<(ObjectKey, State)>,
    predict: impl AsyncFn(&ObjectKey) -> Found,
) -> Vec<(ObjectKey, Found)> {
    let (turns, predict) = (FairTurns::new(AT_ONCE), &predict);
    let found = clusters.into_iter().map(|(key, state)| {
        // All lines are created before the first turn starts, so that one namespace cannot get all turns.
        let line = turns.line(&key);
        let found = async move {
            if state != State::Pass {
                return (key, Ok(None));
            }
            let _turn = line.turn().await;
            let found = timeout(DEADLINE, Box::pin(predict(&key))).await;
            let late = |_| Err(format!("no response within {} s", DEADLINE.as_secs()));
            (key, found.unwrap_or_else(late))
        };
        found.boxed_local()
    });
    join_all(found).await
}

/// The Clusters that have a `KubeletAuthentication`, each with the result of its check `kubeconfig`.
fn managed(checks: &[Checked]) -> Vec<(ObjectKey, State)> {
    let of_kubeconfig = checks.iter().filter(|one| one.name == KUBECONFIG);
    let key = |one: &Checked| one.cluster.as_deref()?.parse::<ObjectKey>().ok();
    of_kubeconfig
        .filter_map(|one| Some((key(one)?, one.state)))
        .collect()
}

async fn nodes(
    management: &ClusterAccess,
    key: &ObjectKey,
    egress: EgressPolicy,
    verifiers: impl Fn(&KubeletAuthentication, &str) -> Verifiers,
) -> Result<Option<Vec<NodePrediction>>, String> {
    let explainer = Explainer::of_cluster(management, key, None, egress, verifiers);
    let explainer = Box::pin(explainer).await;
    let explainer = explainer.map_err(|error| error_chain(&error))?;
    let nodes = Box::pin(explainer.nodes()).await;
    nodes.map(Some).map_err(|error| error_chain(&*error))
}

/// The finding about the Nodes. A Node has a prediction for each attestation provider, and only the best prediction
/// counts.
fn finding(predictions: &[NodePrediction]) -> Finding {
    const CURE: &str = "look up the reason of each Node in the list of predictions";
    let mut nodes: BTreeMap<&str, State> = BTreeMap::new();
    for one in predictions {
        let state = if one.is_refused() {
            State::Fail
        } else if one.is_deferred() {
            State::Warn
        } else {
            State::Pass
        };
        let best = nodes.entry(&one.node).or_insert(state);
        if state == State::Pass || *best == State::Fail {
            *best = state;
        }
    }
    let named = |wanted: State| -> Vec<String> {
        let nodes = nodes.iter().filter(|(_, state)| **state == wanted);
        nodes.map(|(name, _)| (*name).to_owned()).collect()
    };
    let (denied, waiting) = (named(State::Fail), named(State::Warn));
    let mut parts = vec![format!("{} Nodes", nodes.len())];
    if !denied.is_empty() {
        parts.push(format!(
            "the requests from these Nodes would be denied: {}",
            some(&denied)
        ));
    }
    if !waiting.is_empty() {
        parts.push(format!(
            "the requests from these Nodes would wait: {}",
            some(&waiting)
        ));
    }
    if !denied.is_empty() {
        Finding::fail(parts.join("; "), CURE)
    } else if !waiting.is_empty() {
        Finding::warn(parts.join("; "), CURE)
    } else {
        parts.push("no request would fail the checks that do not require evidence".to_owned());
        Finding::pass(parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::Instant;

    use super::*;

    fn prediction(node: &str, outcome: &'static str) -> NodePrediction {
        NodePrediction::new(node.to_owned(), outcome)
    }

    #[test]
    fn a_node_that_would_be_denied_fails_the_check_of_predictions() {
        let accepted = ["recorded", "accepted", "undecided"];
        let accepted = accepted.map(|outcome| prediction(outcome, outcome));
        let found = |more: &[NodePrediction]| finding(&[accepted.as_slice(), more].concat());

        let passed = found(&[]);
        assert_eq!(passed.state, State::Pass, "{passed:?}");
        assert!(passed.what.starts_with("3 Nodes; no request"), "{passed:?}");
        let waits = found(&[prediction("n1", "deferred")]);
        assert_eq!(waits.state, State::Warn, "{waits:?}");
        assert_eq!(
            waits.what,
            "4 Nodes; the requests from these Nodes would wait: n1"
        );
        for outcome in ["denied", "failed"] {
            let denied = found(&[prediction("n2", outcome), prediction("n1", "deferred")]);
            assert_eq!(denied.state, State::Fail, "{denied:?}");
            assert!(denied.what.contains("would be denied: n2; "), "{denied:?}");
            assert!(denied.what.ends_with("would wait: n1"), "{denied:?}");
        }
    }

    #[test]
    fn the_best_attestor_counts_for_a_node_with_two_predictions() {
        for (outcomes, state) in [
            (["denied", "accepted"], State::Pass),
            (["accepted", "denied"], State::Pass),
            (["denied", "deferred"], State::Warn),
            (["deferred", "denied"], State::Warn),
            (["denied", "denied"], State::Fail),
        ] {
            let found = finding(&outcomes.map(|outcome| prediction("n1", outcome)));
            assert_eq!(found.state, state, "{outcomes:?}");
        }
    }

    #[test]
    fn only_clusters_with_settings_have_predictions() {
        let key = ObjectKey::new("tenant-a", "prod-1");
        let of = |name| Finding::pass("").checked(Some(&key), name);

        assert!(managed(&[of("authentication")]).is_empty());
        let managed = managed(&[of("authentication"), of(KUBECONFIG)]);
        assert_eq!(managed, [(key.clone(), State::Pass)]);
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_clusters_of_a_namespace_do_not_delay_predictions_of_others() {
        let hanging = (0..40).map(|number| ObjectKey::new("tenant-a", number.to_string()));
        let skipped = ObjectKey::new("tenant-b", "prod-0");
        let other = ObjectKey::new("tenant-b", "prod-1");
        let clusters = hanging.chain([other.clone()]).map(|key| (key, State::Pass));
        let clusters = clusters.chain([(skipped.clone(), State::Fail)]);
        let begin = Instant::now();
        let predict = async |key: &ObjectKey| {
            if key.namespace == "tenant-a" {
                pending::<()>().await;
            }
            assert_eq!(begin.elapsed(), Duration::ZERO);
            Ok(Some(Vec::new()))
        };

        let mut found = each(clusters.collect(), predict).await;

        assert_eq!(found.pop(), Some((skipped, Ok(None))));
        assert_eq!(found.pop(), Some((other, Ok(Some(Vec::new())))));
        assert_eq!(found.len(), 40);
        let late = Err("no response within 120 s".to_owned());
        assert!(found.into_iter().all(|(_, found)| found == late));
    }
}
