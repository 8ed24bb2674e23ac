//! The records of a cluster without a management cluster: the check that the cluster can store them, and their sweep.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use kube::api::{Api, ListParams};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::{ALLOW_RETIREMENT_ANNOTATION, CLUSTER_NAME_LABEL, NodeIdentity};
use node_attestation_core::ledger::RecordLedger;
use node_attestation_core::log_lines::Unlimited;
use tokio::time::sleep;

use super::EXAMINE_RETRY;
use crate::client::{CallError, ServerTime, call};
use crate::clock::{elapsed, jittered, now};
use crate::logs::Failures;
use crate::preflight::{self, record_rights};
use crate::records::WORKLOAD_NAMESPACE;
use crate::watch::{MetadataOf, metadata_page_of, reviewed};

/// The interval between two sweeps.
const ROUND: Duration = Duration::from_mins(1);

/// The number of sweeps between two lookups of the Nodes of all retired records. A sweep deletes the Node of a record
/// only for 10 minutes after the retirement. The previous process might have stopped during this time, and a Node that
/// was Ready can be down later.
const SWEEPS_BETWEEN_LOOKUPS: usize = 30;

/// The cluster cannot store the records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the workload cluster cannot store node identities in namespace {WORKLOAD_NAMESPACE}: {obstacle}"
)]
pub struct RecordsRefused {
    obstacle: String,
    cure: String,
}

impl RecordsRefused {
    /// The action that corrects the cause.
    pub fn cure(&self) -> &str {
        &self.cure
    }
}

/// The reason why the workload cluster cannot store the records of this cluster. `None` if it can store them.
pub(crate) async fn refusal(
    client: &Client,
    cluster: &str,
) -> Result<Option<RecordsRefused>, CallError> {
    let missing = match call(preflight::missing(
        client,
        record_rights(WORKLOAD_NAMESPACE),
    ))
    .await
    {
        // The API server does not serve access reviews. The list below fails if the permission for it is missing.
        Err(error) if error.is_not_found() => Vec::new(),
        missing => missing?,
    };
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
        let obstacle = format!("permissions are missing: {}", missing.join(", "));
        let cure = command(client).await;
        return Ok(Some(RecordsRefused { obstacle, cure }));
    }
    // If the existing records have another cluster name, the controller would treat every node name as free.
    let others = format!("{CLUSTER_NAME_LABEL},{CLUSTER_NAME_LABEL}!={cluster}");
    let others = ListParams::default().labels(&others).limit(1);
    let api: Api<MetadataOf<NodeIdentity>> = Api::namespaced(client.clone(), WORKLOAD_NAMESPACE);
    let others = match call(metadata_page_of(&api, &others)).await {
        Err(error) if error.is_not_found() => {
            let obstacle = "their definition is missing".to_owned();
            let cure = command(client).await;
            return Ok(Some(RecordsRefused { obstacle, cure }));
        }
        others => others?.items,
    };
    let other = others
        .first()
        .and_then(|other| other.metadata.labels.as_ref()?.get(CLUSTER_NAME_LABEL));
    Ok(other.map(|other| RecordsRefused {
        obstacle: format!("it contains node identities of cluster {other}"),
        cure: format!(
            "set spec.clusterName in the --settings file to {other}. If that cluster no longer exists, delete its node \
             identities"
        ),
    }))
}

/// The command that defines the records, and grants the permissions for them to the current user.
async fn command(client: &Client) -> String {
    let user = user(client).await;
    format!(
        "as an administrator of the cluster, run: node-attestation-controller render workload-identities --controller \
         user:{user} | kubectl apply -f -"
    )
}

/// The name of the current user, for a command in a shell.
async fn user(client: &Client) -> String {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = SelfSubjectReview::default();
    let answer = call(reviewed(&reviews, &review)).await;
    let user = answer.ok().and_then(|review| review.status?.user_info);
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.:@".contains(letter);
    user.and_then(|user| user.username)
        .filter(|name| !name.is_empty() && name.chars().all(is_plain))
        .unwrap_or_else(|| "NAME".to_owned())
}

/// Waits until the API server answers, and checks that the workload cluster can store the records of this cluster.
pub(super) async fn check(client: &Client, cluster: &str) -> Result<(), RecordsRefused> {
    const MESSAGE: &str =
        "cannot check whether the workload cluster stores node identities; the controller retries";
    let mut is_logged = false;
    loop {
        let error = match refusal(client, cluster).await {
            Ok(refusal) => return refusal.map_or(Ok(()), Err),
            Err(error) => error_chain(&error),
        };
        if is_logged {
            tracing::debug!(error, "{MESSAGE}");
        } else {
            tracing::warn!(error, "{MESSAGE}");
        }
        is_logged = true;
        sleep(EXAMINE_RETRY).await;
    }
}

/// Sweeps the records once per minute. Never returns.
pub(super) async fn sweep(ledger: Arc<RecordLedger>, time: ServerTime) {
    let mut failures = Failures::default();
    let mut held_back = None;
    let mut listed = BTreeSet::new();
    let mut left = 0_usize;
    loop {
        sleep(jittered(ROUND)).await;
        if left == 0 {
            listed.extend(retired(&ledger).await);
        }
        let times = (time.now_or(now()), time.earlier(now()));
        let swept = match Box::pin(ledger.sweep(times, elapsed(), &listed)).await {
            Ok(swept) => swept,
            Err(error) => {
                let error = error_chain(&error);
                tracing::debug!(
                    error,
                    "cannot sweep the node identities; the next sweep retries"
                );
                continue;
            }
        };
        left = left.checked_sub(1).unwrap_or(SWEEPS_BETWEEN_LOOKUPS);
        // The next sweep retries the Nodes that this sweep could not read or delete.
        listed = swept.not_removed;
        failures.of_sweep(&Unlimited, swept.failed.as_ref());
        if let Some(count) = swept.held_back
            && swept.held_back != held_back
        {
            tracing::warn!(
                count,
                annotation = ALLOW_RETIREMENT_ANNOTATION,
                "many machines are missing in the inventory, so the controller keeps their node identities; to retire \
                 them, set this annotation in the settings file to their number, and restart the controller"
            );
        }
        held_back = swept.held_back;
    }
}

/// The node names of all retired records. Empty if the records are unavailable.
async fn retired(ledger: &RecordLedger) -> BTreeSet<String> {
    let Ok(all) = ledger.records().all().await else {
        return BTreeSet::new();
    };
    let retired = all.iter().filter(|stored| !stored.record.is_live());
    let names = retired.map(|stored| stored.record.node_name.to_string());
    names.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::{Request, Response};
    use kube::client::Body;
    use kubelet_attestation::names::NodeName;
    use node_attestation_core::identifiers::RecordUid;
    use node_attestation_core::inventory::StaticInventory;
    use node_attestation_core::ledger::{
        Absences, AllRecords, MemoryRecords, Record, Tombstone, TombstoneReason,
    };
    use node_attestation_core::nodes::{Node, Nodes};
    use node_attestation_core::refusal::Unavailable;
    use node_attestation_core::scope::Enforcement;
    use node_attestation_core::testing::nodes::MemoryNodes;
    use node_attestation_core::testing::records::{claim, name, policy, provider_id};
    use serde_json::{Value, json};
    use tokio::task::JoinSet;
    use tracing::Level;

    use super::*;
    use crate::client::ClusterAccess;
    use crate::testing::ThreadLog;

    const RECORDS: &str =
        "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/kube-system/nodeidentities";

    /// The reason why the controller refuses the records of `prod-1`. If `allowed` is set, the user `user` has all
    /// permissions.
    async fn refused(
        user: &'static str,
        allowed: bool,
        list: (u16, Value),
    ) -> Option<RecordsRefused> {
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let path = request.uri().path();
            let (code, answer) = if path.ends_with("/selfsubjectaccessreviews") {
                let status = json!({"allowed": allowed});
                (201, json!({"metadata": {}, "spec": {}, "status": status}))
            } else if path.ends_with("/selfsubjectreviews") {
                let status = json!({"userInfo": {"username": user}});
                (201, json!({"metadata": {}, "status": status}))
            } else {
                assert_eq!(path, RECORDS);
                list.clone()
            };
            async move {
                let answer = Full::new(Bytes::from(answer.to_string()));
                Response::builder().status(code).body(answer).unwrap()
            }
        });
        refusal(access.client(), "prod-1").await.unwrap()
    }

    fn of_cluster(cluster: &str) -> Value {
        let labels = json!({CLUSTER_NAME_LABEL: cluster});
        json!({"metadata": {}, "items": [{"metadata": {"name": "a.n1", "labels": labels}}]})
    }

    #[tokio::test]
    async fn missing_rights_or_definitions_are_refused_with_a_command() {
        let none = (200, json!({"metadata": {}, "items": []}));
        let absent = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "the server could not find the requested resource", "reason": "NotFound",
            "code": 404,
        });
        assert_eq!(refused("jane", true, none.clone()).await, None);

        for (user, allowed, list, words, subject) in [
            (
                "jane",
                false,
                none.clone(),
                "permissions are missing: get nodeidentities.attestation.cluster.x-k8s.io in namespace kube-system, ",
                "user:jane",
            ),
            (
                "system:serviceaccount:a:b",
                true,
                (404, absent),
                "their definition is missing",
                "user:system:serviceaccount:a:b",
            ),
            (
                "jane; ls",
                false,
                none,
                "permissions are missing",
                "user:NAME",
            ),
        ] {
            let refused = refused(user, allowed, list).await.unwrap();

            let text = refused.to_string();
            assert!(text.contains(words), "{text}");
            let command = format!(
                "run: node-attestation-controller render workload-identities --controller {subject} | kubectl apply -f -"
            );
            assert!(refused.cure().ends_with(&command), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn records_of_a_cluster_with_another_name_are_refused() {
        let refused = refused("jane", true, (200, of_cluster("prod-2"))).await;

        let refused = refused.unwrap();
        let words = "contains node identities of cluster prod-2";
        assert!(refused.to_string().ends_with(words), "{refused}");
        let words = "set spec.clusterName in the --settings file to prod-2.";
        assert!(refused.cure().starts_with(words), "{refused:?}");
    }

    /// The records after several sweeps, if this number of machines have a record, and no machine is in the inventory.
    async fn swept(machines: u8) -> AllRecords {
        let ledger = RecordLedger::in_memory(Arc::new(StaticInventory::default()), policy());
        let ledger = Arc::new(ledger.with_absences(Absences::new(Duration::ZERO)));
        for number in 0..machines {
            let (machine, node) = (format!("m{number}"), format!("n{number}"));
            let mut claim = claim(&machine, &node, number, 0);
            claim.not_after = now() + HOUR;
            let record = Record::first(&claim, RecordUid::new([number; 16]), None, now());
            ledger.records().create(&record).await.unwrap();
        }
        let sweeping = tokio::spawn(sweep(ledger.clone(), ServerTime::default()));
        sleep(5 * ROUND).await;
        sweeping.abort();
        ledger.records().all().await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_record_of_a_machine_that_left_the_inventory_is_retired() {
        let all = swept(1).await;

        let [one] = &all[..] else { panic!("{all:?}") };
        let tombstone = one.record.tombstone.as_ref().unwrap();
        assert_eq!(tombstone.reason, TombstoneReason::MachineGone);
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_inventory_retires_no_records_and_causes_one_warning() {
        let log = ThreadLog::start(Level::WARN);

        let all = swept(6).await;

        assert_eq!(all.len(), 6);
        assert!(all.iter().all(|one| one.record.is_live()), "{all:?}");
        let words = ["many machines are missing in the inventory", "count=6"];
        assert_eq!(log.count(&words), 1, "{}", log.text());
    }

    const HOUR: Duration = Duration::from_hours(1);

    /// Nodes whose first deletions fail.
    #[derive(Debug, Default)]
    struct FailingNodes {
        nodes: MemoryNodes,
        failures: AtomicUsize,
    }

    #[async_trait::async_trait]
    impl Nodes for FailingNodes {
        async fn state(&self, name: &NodeName) -> Result<Option<Node>, Unavailable> {
            self.nodes.state(name).await
        }

        async fn delete(&self, name: &NodeName, uid: &str) -> Result<(), Unavailable> {
            let order = Ordering::Relaxed;
            let failures = &self.failures;
            let failed = failures.try_update(order, order, |left| left.checked_sub(1));
            match failed {
                Ok(_) => Err(Unavailable::new("a webhook does not respond")),
                Err(_) => self.nodes.delete(name, uid).await,
            }
        }
    }

    impl FailingNodes {
        /// Sets whether the Node `n0` of machine `m0` is Ready.
        fn set(&self, ready: bool) {
            let node = Node {
                uid: "of-m0".to_owned(),
                ready,
                lease_renewed: None,
                provider_id: Some(provider_id("m0").as_str().to_owned()),
                created: Some(now() - 3 * HOUR),
            };
            self.nodes.put(name("n0"), node);
        }

        async fn has_node(&self) -> bool {
            self.nodes.state(&name("n0")).await.unwrap().is_some()
        }
    }

    /// Starts the sweep with the record of machine `m0`, which was retired an hour ago, before this process started.
    async fn sweeping(nodes: &Arc<FailingNodes>, is_enforced: bool) -> JoinSet<()> {
        let enforcement = Enforcement::default();
        enforcement.set(is_enforced);
        let ledger = RecordLedger::new(
            Arc::new(MemoryRecords::default()),
            Arc::new(StaticInventory::default()),
            nodes.clone(),
            policy(),
            enforcement,
        );
        let (claim, uid) = (claim("m0", "n0", 1, 0), RecordUid::new([1; 16]));
        let tombstone = Tombstone {
            since: now() - HOUR,
            reason: TombstoneReason::MachineGone,
            until: now() + HOUR,
        };
        let record = Record {
            tombstone: Some(tombstone),
            ..Record::first(&claim, uid, None, now() - 2 * HOUR)
        };
        ledger.records().create(&record).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(sweep(Arc::new(ledger), ServerTime::default()));
        tasks
    }

    #[tokio::test(start_paused = true)]
    async fn the_node_of_a_record_that_a_previous_process_retired_is_deleted() {
        let nodes: Arc<FailingNodes> = Arc::default();
        nodes.set(false);

        let _sweeping = sweeping(&nodes, true).await;
        sleep(5 * ROUND).await;

        assert!(!nodes.has_node().await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_sweep_retries_the_deletion_of_a_node() {
        let nodes: Arc<FailingNodes> = Arc::default();
        nodes.set(false);
        nodes.failures.store(2, Ordering::Relaxed);

        let _sweeping = sweeping(&nodes, true).await;
        sleep(5 * ROUND).await;

        assert_eq!(nodes.failures.load(Ordering::Relaxed), 0);
        assert!(!nodes.has_node().await);
    }

    #[tokio::test(start_paused = true)]
    async fn without_enforcement_a_ready_node_is_deleted_only_after_it_is_down() {
        let nodes: Arc<FailingNodes> = Arc::default();
        nodes.set(true);

        let _sweeping = sweeping(&nodes, false).await;
        sleep(100 * ROUND).await;
        assert!(nodes.has_node().await);

        nodes.set(false);
        sleep(40 * ROUND).await;
        assert!(!nodes.has_node().await);
    }
}
