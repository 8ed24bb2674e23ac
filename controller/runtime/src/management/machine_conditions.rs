//! Writes the conditions of one cluster's Machines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::cluster_line;
use node_attestation_core::ledger::{Record, Records, Stored};
use node_attestation_core::pace::Pace;
use node_attestation_core::refusal::Unavailable;
use tokio::time::{Instant, timeout_at};

use crate::capi::{CapiInventory, ObjectKey, condition_digest};
use crate::client::in_time;
use crate::log_lines::ClusterLines;
use crate::logs::Failures;
use crate::machine_conditions::{
    DEADLINE, MachineCondition, Outcome, Outcomes, is_refusal, uid_of, write,
};
use crate::turns::FairRate;

/// The time during which a cluster can start writes in its turn. The next update of the revocation list waits until the
/// turn ends.
const TURN: Duration = Duration::from_secs(2);

/// The pause after a failed write, because a permission is missing or the API server is unavailable.
const PAUSE: Duration = Duration::from_mins(1);

/// The minimum interval between two written refusals for one machine.
const BETWEEN_REFUSALS: Duration = Duration::from_mins(1);

/// The time for which a condition is not written again, even if the Machine does not have it. An older or newer version
/// of Cluster API might not have the field for the condition.
const REPEAT: Duration = Duration::from_mins(10);

/// The conditions of the Machines of one cluster.
#[derive(derive_more::Debug)]
pub(super) struct MachineConditions {
    #[debug(skip)]
    management: Client,
    /// The shared write rate for all clusters.
    rate: Arc<FairRate>,
    cluster: ObjectKey,
    lines: ClusterLines,
    outcomes: Arc<Outcomes>,
    written: Written,
    not_before: Instant,
    failures: Failures,
}

/// The writes within the last [`REPEAT`], keyed by the UID of the Machine.
///
/// The shared write rate for all clusters also limits the number of entries.
#[derive(Debug, Default)]
struct Written(BTreeMap<String, Write>);

#[derive(Debug, Clone, Copy)]
struct Write {
    at: Instant,
    condition_digest: u64,
    refusal: bool,
}

impl Written {
    /// Whether this condition can be written at `now`.
    fn allows(
        &self,
        uid: &str,
        (outcome, condition): (&Outcome, &MachineCondition),
        now: Instant,
    ) -> bool {
        let Some(last) = self.0.get(uid) else {
            return true;
        };
        let age = now.duration_since(last.at);
        let is_same =
            last.condition_digest == condition_digest(condition.reason, &condition.message);
        let refused_again = last.refusal && is_refusal(outcome);
        !(is_same && age < REPEAT || refused_again && age < BETWEEN_REFUSALS)
    }

    fn add(
        &mut self,
        uid: &str,
        (outcome, condition): (&Outcome, &MachineCondition),
        now: Instant,
    ) {
        let last = Write {
            at: now,
            condition_digest: condition_digest(condition.reason, &condition.message),
            refusal: is_refusal(outcome),
        };
        self.0.insert(uid.to_owned(), last);
    }

    fn forget_old(&mut self, now: Instant) {
        self.0
            .retain(|_, last| now.duration_since(last.at) < REPEAT);
    }
}

impl MachineConditions {
    pub(super) fn new(management: Client, rate: Arc<FairRate>, cluster: ObjectKey) -> Self {
        Self {
            management,
            rate,
            lines: ClusterLines::of(&cluster),
            cluster,
            outcomes: Arc::default(),
            written: Written::default(),
            not_before: Instant::now(),
            failures: Failures::default(),
        }
    }

    /// The log-line budget of the cluster.
    pub(super) fn lines(&self) -> &ClusterLines {
        &self.lines
    }

    /// The outcomes that wait to be written.
    pub(super) fn outcomes(&self) -> Arc<Outcomes> {
        self.outcomes.clone()
    }

    /// Adds the outcomes that the records show but the conditions do not: decisions before a restart, and operators'
    /// revocations.
    pub(super) async fn compare(&self, inventory: &CapiInventory, records: &[Arc<Stored>]) {
        let mut pace = Pace::default();
        let mut named: BTreeMap<&str, &Record> = BTreeMap::new();
        for stored in records {
            let name = stored.record.holder.machine_name.as_deref();
            if let Some(name) = name.filter(|_| stored.record.is_live()) {
                named.insert(name, &stored.record);
            }
            pace.step().await;
        }
        let differing = inventory
            .chosen_machines(|machine| Outcome::of_record(named.get(machine.name)?, machine));
        for (machine, outcome) in differing.await.unwrap_or_default() {
            self.outcomes.add_former(&machine, outcome);
            pace.step().await;
        }
    }

    /// Writes the conditions that are due, within the time of a turn and the shared rate. The remaining conditions
    /// wait.
    pub(super) async fn write(
        &mut self,
        inventory: &CapiInventory,
        records: &dyn Records,
        now: SystemTime,
    ) {
        let begun = Instant::now();
        if begun < self.not_before {
            return;
        }
        self.written.forget_old(begun);
        let mut waiting = self.outcomes.take_all().into_iter();
        let mut left = None;
        for (machine, outcome) in waiting.by_ref() {
            let next = inventory.by_condition(&machine, |known| outcome.condition(known, now));
            let Some(condition) = next else { continue };
            let uid = uid_of(&machine).unwrap_or_default();
            if !self.written.allows(uid, (&outcome, &condition), begun)
                || !is_of_requester(&outcome, &machine, records).await
            {
                continue;
            }
            if !self.in_turn(begun).await {
                left = Some((machine, outcome));
                break;
            }
            if let Err(error) = self.write_one(inventory, &machine, &condition).await {
                self.not_before = Instant::now() + PAUSE;
                self.log(machine.name.as_deref().unwrap_or_default(), &error);
                left = Some((machine, outcome));
                break;
            }
            self.failures.end();
            self.written.add(uid, (&outcome, &condition), begun);
        }
        for (machine, outcome) in left.into_iter().chain(waiting) {
            self.outcomes.add_former(&machine, outcome);
        }
    }

    /// Waits for this cluster's turn among the writes for all clusters. Returns `false` if the cluster does not get a
    /// turn in time, starting at `begun`.
    async fn in_turn(&self, begun: Instant) -> bool {
        let turn = timeout_at(begun + TURN, self.rate.take(&self.cluster));
        begun.elapsed() < TURN && turn.await.is_ok()
    }

    async fn write_one(
        &self,
        inventory: &CapiInventory,
        machine: &ObjectReference,
        condition: &MachineCondition,
    ) -> Result<(), Unavailable> {
        let written = inventory.call_about_machine(|resource| async move {
            write(&self.management, &resource, machine, condition).await
        });
        match in_time(DEADLINE, written).await {
            Err(error) if error.is_not_found() || error.is_conflict() => {
                // The Machine was deleted, or another Machine has the same name.
                Ok(())
            }
            written => written.map_err(Unavailable::from),
        }
    }

    fn log(&mut self, machine: &str, error: &Unavailable) {
        let error = error_chain(error);
        if self.failures.is_first() {
            cluster_line!(
                &self.lines,
                WARN,
                machine,
                error,
                "cannot write the condition of the Machine; further failures are logged with -v"
            );
        } else {
            tracing::debug!(machine, error, "cannot write the condition of the Machine");
        }
    }
}

/// If a node sent the request, whether the machine belongs to this node. A node can claim another node's machine.
async fn is_of_requester(
    outcome: &Outcome,
    machine: &ObjectReference,
    records: &dyn Records,
) -> bool {
    let Outcome::Refused {
        node: Some(node), ..
    } = outcome
    else {
        return true;
    };
    let Ok(Some(stored)) = records.known(node).await else {
        return false;
    };
    stored.record.is_live()
        && stored.record.holder.machine_name.is_some()
        && stored.record.holder.machine_name == machine.name
}

#[cfg(test)]
mod tests {
    use futures::future::{join, join_all};
    use node_attestation_core::crd::conditions::ConditionStatus;

    use super::*;
    use crate::capi::{Objects, Selection};
    use crate::machine_conditions::RATE;
    use crate::management::served_kind::ServedKind;
    use crate::metrics::Metrics;

    const GRANTED: Outcome = Outcome::Granted { evidence: true };

    fn condition(message: &str) -> MachineCondition {
        MachineCondition {
            status: ConditionStatus::Unknown,
            reason: "MachineNotFound",
            message: message.to_owned(),
            since: SystemTime::UNIX_EPOCH,
        }
    }

    fn refusal() -> Outcome {
        Outcome::Refused {
            reason: "MachineNotFound",
            message: String::new(),
            node: None,
            denied: false,
        }
    }

    #[test]
    fn only_refusals_of_a_machine_are_a_minute_apart() {
        let now = Instant::now();
        let mut written = Written::default();
        written.add("refused", (&refusal(), &condition("first")), now);
        written.add("granted", (&GRANTED, &condition("first")), now);
        let next = condition("second");

        let allows = |uid: &str, outcome: &Outcome, seconds: u64| {
            let now = now + Duration::from_secs(seconds);
            written.allows(uid, (outcome, &next), now)
        };
        assert!(!allows("refused", &refusal(), 59));
        assert!(allows("refused", &refusal(), 60));
        assert!(allows("refused", &GRANTED, 0));
        assert!(allows("granted", &refusal(), 0));
        assert!(allows("another", &refusal(), 0));
    }

    #[test]
    fn a_condition_missing_on_the_machine_is_rewritten_after_10_minutes() {
        let now = Instant::now();
        let mut written = Written::default();
        written.add("1", (&GRANTED, &condition("first")), now);

        let allows = |message: &str, seconds: u64| {
            let now = now + Duration::from_secs(seconds);
            written.allows("1", (&GRANTED, &condition(message)), now)
        };
        assert!(!allows("first", 599));
        assert!(allows("first", 600));
        assert!(allows("second", 0));
    }

    #[test]
    fn a_condition_write_is_remembered_for_ten_minutes() {
        let now = Instant::now();
        let mut written = Written::default();
        let first = condition("first");
        written.add("1", (&GRANTED, &first), now);
        let later = now + Duration::from_secs(1);
        written.add("2", (&GRANTED, &first), later);

        written.forget_old(now + REPEAT);

        assert_eq!(written.0.into_keys().collect::<Vec<_>>(), ["2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn conditions_of_many_clusters_delay_other_namespaces_by_one_write() {
        let kind = ServedKind::new("cluster.x-k8s.io", "Machine", "machines");
        let (access, rate) = (kind.access(), Arc::new(FairRate::new(RATE)));
        let conditions = |namespace: &str, name: &str| {
            let cluster = ObjectKey::new(namespace, name);
            MachineConditions::new(access.client().clone(), rate.clone(), cluster)
        };
        let flood = (0..1000).map(|number| conditions("tenant-a", &number.to_string()));
        let flood: Vec<_> = flood.collect();
        let victim = conditions("tenant-b", "prod-1");
        let begun = Instant::now();
        let flood = join_all(flood.iter().map(|one| one.in_turn(begun)));
        let victim = async {
            tokio::task::yield_now().await;
            assert!(victim.in_turn(begun).await);
            begun.elapsed()
        };

        let (_, waited) = join(flood, victim).await;

        assert!(waited <= 2 * RATE.every, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_waits_until_the_machine_kind_is_served_in_another_version() {
        let kind = ServedKind::new("cluster.x-k8s.io", "Machine", "machines");
        let access = kind.access();
        let (client, key) = (access.client().clone(), ObjectKey::new("a", "prod-1"));
        let (objects, _) = Objects::new(client.clone(), Selection::default(), &Metrics::default());
        let inventory = CapiInventory::new(objects, key.clone());
        let conditions = MachineConditions::new(client, Arc::new(FairRate::new(RATE)), key);
        let machine = ObjectReference {
            namespace: Some("a".to_owned()),
            name: Some("m1".to_owned()),
            uid: Some("1".to_owned()),
            ..ObjectReference::default()
        };
        let first = condition("first");
        let write = async || {
            let written = conditions.write_one(&inventory, &machine, &first).await;
            written.map_err(|error| error_chain(&error))
        };
        kind.serve(&["v1beta1"]);
        assert_eq!(write().await, Ok(()));
        assert_eq!(kind.patches(), ["v1beta1/namespaces/a/machines/m1/status"]);

        // The API server no longer serves the version that the controller has discovered. The Machine can still exist.
        kind.serve(&["v1beta2"]);
        let unserved = write().await.unwrap_err();
        assert!(unserved.contains("does not serve the kind"), "{unserved}");
        assert_eq!(write().await, Ok(()));
        assert_eq!(kind.patches(), ["v1beta2/namespaces/a/machines/m1/status"]);

        // A deleted Machine does not have a condition.
        kind.remove_objects();
        assert_eq!(write().await, Ok(()));
        assert_eq!(kind.patches(), [""; 0]);
    }
}
