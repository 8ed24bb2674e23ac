//! Periodic work for one cluster, which does not depend on requests from its nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures::future::FutureExt as _;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::NodeName;
use node_attestation_core::crd::{AutoApproveBindings, IdentityCounts, KubeletAuthenticationSpec};
use node_attestation_core::decide::Context;
use node_attestation_core::ledger::{AllRecords, MISSING_MACHINE_TIMEOUT, PresentTime};
use node_attestation_core::pace::{self, Pace};
use tokio::time::{Instant, timeout};

mod created_again;
mod enforcement;
mod inspection;
mod nodes;
mod owners;
mod parts;
mod revocation_list;
mod templates;
mod tokens;
mod unknown;

use inspection::{Counted, Inspection, count, refusal};
use nodes::{Unaccounted, Unrecorded, exempt_nodes, nodes_named, without_identity};
pub(super) use parts::PartError;
use parts::{PART_DEADLINE, cut, part, part_within};
pub(super) use revocation_list::OfCluster;
use revocation_list::{RevocationList, RevocationListError};
pub(super) use tokens::TokenRelease;

use super::cluster_status::{ApiReachability, AutoApprove, Health, ServiceAddressState};
use super::machine_conditions::MachineConditions;
use super::spec_mapping::{ServiceRangesOfCluster, unauthorized_of_records};
use super::sweep_events::SweepEvents;
use super::{SYNC_PERIOD, Settings};
use crate::capi::{CapiInventory, Cluster};
use crate::client::{ClusterAccess, Decoding, ServerTime};
use crate::clock::{elapsed, now};
use crate::hardening::exempt_overlaps::ExemptOverlaps;
use crate::hardening::tokens::Tokens;
use crate::hardening::{admission, other_approvers, service_ranges};
use crate::logs::Failures;
use crate::preflight::{self, required_rights};
use crate::records::KubeRecords;
use crate::worker::UnreadableRequests;

/// The deadline for a report that does not affect decisions. The revocations in the same round wait for the report.
const REPORT_WITHIN: Duration = Duration::from_secs(10);

/// The maximum number of Nodes in a message.
const MAX_NAMED: usize = 5;

/// The periodic work for one cluster.
#[derive(Debug)]
pub(super) struct PeriodicTasks {
    access: ClusterAccess,
    spec: KubeletAuthenticationSpec,
    context: Context,
    inventory: CapiInventory,
    /// The records, and the UID of the Cluster that owns them.
    owned: Option<(Arc<KubeRecords>, String)>,
    /// The API version of the Cluster in the owner references of its records, if all records have the same version.
    owned_in: Option<String>,
    /// The Service ranges of the Cluster.
    service_ranges: ServiceRangesOfCluster,
    sweep_events: SweepEvents,
    sweep_failures: Failures,
    machine_conditions: MachineConditions,
    pub(super) sync_period: Duration,
    admission: admission::AdmissionSettings,
    /// Whether the last inspection applied the admission policy.
    is_policy_applied: bool,
    inspection: Option<Inspection>,
    /// The names of listed Nodes that have no record, and that garbage collection has not handled yet.
    listed: BTreeSet<String>,
    /// The time of the last check in which all permissions were granted.
    rights: Option<Instant>,
    /// Whether, since the last inspection, the request watch has failed or recovered, or kubeadm's bindings have been
    /// created again. The watches set this flag.
    pub(super) urgent: Arc<AtomicBool>,
    pub(super) unreadable_requests: UnreadableRequests,
    tokens: Tokens,
    overlaps: ExemptOverlaps,
    revoked: RevocationList,
    /// The time on the management cluster's API server.
    server_time: ServerTime,
}

impl PeriodicTasks {
    pub(super) fn new(
        access: ClusterAccess,
        spec: KubeletAuthenticationSpec,
        context: Context,
        inventory: CapiInventory,
        sweep_events: SweepEvents,
        machine_conditions: MachineConditions,
        settings: &Settings,
    ) -> Self {
        let grace = settings.missing_machine_timeout;
        let tokens = Tokens::new(grace.unwrap_or(MISSING_MACHINE_TIMEOUT));
        let tokens = tokens.of_namespace(machine_conditions.lines().namespace());
        Self {
            access,
            spec,
            inventory,
            owned: None,
            owned_in: None,
            service_ranges: ServiceRangesOfCluster::default(),
            sweep_events,
            sweep_failures: Failures::default(),
            machine_conditions,
            sync_period: settings.sync_period.unwrap_or(SYNC_PERIOD),
            admission: admission::AdmissionSettings {
                attestors: context.verifiers.providers().into_iter().collect(),
                exempt: context.exempt_nodes.names(BTreeSet::new()),
                enforced: false,
            },
            is_policy_applied: false,
            inspection: None,
            listed: BTreeSet::new(),
            rights: None,
            urgent: Arc::default(),
            unreadable_requests: UnreadableRequests::default(),
            tokens,
            overlaps: ExemptOverlaps::default(),
            revoked: RevocationList::default(),
            server_time: ServerTime::default(),
            context,
        }
    }

    /// Sets the Cluster, which becomes the owner of its records. Also enables comparing the workload cluster with the
    /// first workload cluster of the `KubeletAuthentication`.
    pub(super) fn of_cluster(self, cluster: &Cluster, known: OfCluster) -> Self {
        Self {
            owned: Some((known.records.clone(), known.uid.clone())),
            service_ranges: ServiceRangesOfCluster::of(cluster),
            overlaps: known.overlaps.clone().of_cluster(&known.uid),
            revoked: RevocationList::of_cluster(known),
            ..self
        }
    }

    /// Sets the time source of the management cluster. Entries are removed only if they have also expired according to
    /// this source.
    pub(super) fn with_server_time(self, server_time: ServerTime) -> Self {
        Self {
            server_time,
            ..self
        }
    }

    /// The time that determines which entries have expired. If a clock that is ahead determined this time, revocations
    /// would be removed permanently.
    fn ended_by(&self) -> SystemTime {
        self.server_time.earlier(now())
    }

    /// Runs one round. It makes no calls if there was no change and no inspection is due. No certificate is granted
    /// before the first round.
    pub(super) async fn round(&mut self) -> Health {
        if !self.context.ledger.revocations().is_read() {
            let tried = self.revoke().boxed().await;
            self.revoked.log(tried, self.machine_conditions.lines());
        }
        let watch_changed = self.urgent.swap(false, Ordering::Relaxed);
        if watch_changed || self.is_inspection_due().await {
            let counted = self.counted().await;
            let found = self.inspect(counted.as_ref()).boxed().await;
            if !found.failed.is_empty() {
                // A permission might have been revoked.
                self.rights = None;
            }
            self.inspection = Some(Inspection {
                at: Instant::now(),
                found,
                counted,
                watch_changed,
            });
        }
        let found = self.inspection.as_ref().map(|last| last.found.clone());
        let mut health = found.unwrap_or_default();
        if !matches!(health.answers, ApiReachability::Yes(_)) {
            return health;
        }
        health.failed.extend(self.server_time.ahead(now()));
        health.failed.extend(self.unknown());
        self.own_records(&mut health).boxed().await;
        let revoked = self.revoke().boxed().await;
        health.note("revocation", revoked);
        let times = (self.server_time.now_or(now()), self.ended_by());
        let ledger = &self.context.ledger;
        let swept = ledger.sweep(times, elapsed(), &self.listed).boxed();
        let swept = swept.await.map_err(|error| cut(error_chain(&error)));
        if let Some(swept) = health.note("the node identities", swept) {
            self.sweep_failures
                .of_sweep(self.machine_conditions.lines(), swept.failed.as_ref());
            self.listed = swept.not_removed;
            health.identities = Some(IdentityCounts {
                live: count(swept.live),
                tombstones: count(swept.tombstones),
            });
            health.earliest_expiry = swept.earliest_expiry;
            health.overdue = swept.overdue;
            health.held_back = swept.held_back;
            self.sweep_events.write(swept.done, now()).boxed().await;
        }
        self.keep_tokens(&mut health).boxed().await;
        if let Ok(records) = self.records().await {
            let compared = self.machine_conditions.compare(&self.inventory, &records);
            compared.boxed().await;
            health.unauthorized = Some(unauthorized_of_records(&self.spec, &records).await);
        }
        self.tell_machines().boxed().await;
        health
    }

    /// Writes the Machine conditions that are due.
    pub(super) async fn tell_machines(&mut self) {
        let records = self.context.ledger.records().as_ref();
        self.machine_conditions
            .write(&self.inventory, records, now())
            .await;
    }

    /// Whether a watch has reported a change that requires an immediate inspection.
    pub(super) fn is_inspection_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed)
    }

    async fn is_inspection_due(&self) -> bool {
        let Some(last) = &self.inspection else {
            return true;
        };
        last.is_over(self.sync_period)
            || !self.is_enforcing() && self.counted().await != last.counted
    }

    fn is_enforcing(&self) -> bool {
        self.context.enforcement.is_on()
    }

    /// Whether enforcement starts even if some Nodes have no record.
    fn enforces_now(&self) -> bool {
        self.spec.mode() == AutoApproveBindings::RemoveNow
    }

    async fn records(&self) -> Result<AllRecords, PartError> {
        let records = self.context.ledger.records().all().await;
        records.map_err(|error| PartError::of(&error))
    }

    /// The inputs for counting the Nodes without a record. `None` if they are unknown.
    async fn counted(&self) -> Option<Counted> {
        let records = self.records().await.ok()?;
        let live = pace::count(&records, |stored| stored.record.is_live()).await;
        Some(Counted {
            live,
            has_tombstones: records.len() > live,
            of_machines: self
                .inventory
                .nodes_without(|_| true)
                .await
                .unwrap_or_default(),
        })
    }

    /// Inspects the cluster, and restores objects that another client changed.
    ///
    /// The steps have this order because each step uses the state that the previous steps set: the exempt Nodes, the
    /// decision in [`enforce`](Self::enforce), the admission policy, and then the bindings in [`paths`](Self::paths).
    async fn inspect(&mut self, counted: Option<&Counted>) -> Health {
        let mut health = self.examined().await;
        if !matches!(health.answers, ApiReachability::Yes(_)) {
            return health;
        }
        if self.inspection.is_some() {
            // Another client might have changed the revocation list, so it is written again.
            self.revoked.forget();
        }
        self.read_service_ranges(&mut health).await;
        if let Some(nodes) = self.inventory.control_plane_nodes().await {
            self.admission.exempt = self.context.exempt_nodes.names(nodes);
        }
        let (exempt, records) = (&self.admission.exempt, self.records().await.ok());
        let unrecorded = Unrecorded::of(exempt, &self.inventory, records.as_ref()).await;
        // The calls below can take minutes. Deleted records must not stay in memory in the meantime.
        drop(records);
        health.exempt = Some(unrecorded.exempt.len());
        let has_tombstones = counted.is_some_and(|counted| counted.has_tombstones);
        let without = if has_tombstones || !self.is_enforcing() || self.enforces_now() {
            self.without_record(has_tombstones).await
        } else {
            Ok(BTreeSet::new())
        };
        if let Some(without) = health.note("the Nodes without a node identity", without.clone()) {
            self.listed = without;
        }
        let enforced = self.enforce(without).await;
        let Some(mut without) = health.note("the admission policy for requests", enforced) else {
            let error = "cannot read the admission policy".to_owned();
            health.paths = Some((AutoApprove::NotReviewed, error));
            return health;
        };
        let client = self.access.client();
        let applied = part(admission::apply(client, &self.admission)).await;
        let applied = health.note("the admission policy for requests", applied);
        self.is_policy_applied = applied.is_some();
        if without.is_none() && self.is_enforcing() {
            without = without_identity(Ok(unrecorded.of_machines), true);
        }
        let looked = self.overlaps.look(client, &unrecorded.exempt, now());
        // After a failure, the message states that not all requests were read.
        drop(part_within(REPORT_WITHIN, looked).await);
        health.overlaps = self.overlaps.count();
        let told = without.into_iter().chain(exempt_nodes(&unrecorded.exempt));
        let told = told.chain(self.overlaps.message());
        let paths = part(self.paths(told.collect())).await;
        health.paths =
            Some(paths.unwrap_or_else(|error| (AutoApprove::NotReviewed, error.to_string())));
        let approvers = other_approvers::read(self.access.client());
        let approvers = part_within(REPORT_WITHIN, approvers).await;
        health.approvers = Some(if self.context.signer.signs_kubelet_serving() {
            approvers.map(other_approvers::OtherApprovers::with_signers)
        } else {
            approvers
        });
        health
    }

    /// Reads the Service addresses. If this fails, the previous addresses remain in use.
    async fn read_service_ranges(&self, health: &mut Health) {
        let (of_cluster, known) = (&self.service_ranges, &self.context.serving.service_ranges);
        let read = part(service_ranges::read(self.access.client())).await;
        if let Some(read) = health.note("the addresses of Services", read) {
            let ranges = of_cluster.ranges.iter().copied().chain(read.ranges);
            known.set(ranges.collect(), of_cluster.are_all() || read.are_all);
        }
        health.services = Some(ServiceAddressState {
            are_known: known.are_known(),
            unreadable: of_cluster.unreadable.as_deref().map(cut),
        });
    }

    /// Publishes newly revoked certificates. Must be called after the first inspection.
    pub(super) async fn revoke_what_is_new(&mut self) {
        if self.revoked.is_published() {
            let tried = self.revoke().boxed().await;
            self.revoked.log(tried, self.machine_conditions.lines());
        }
    }

    async fn revoke(&mut self) -> Result<(), RevocationListError> {
        let records = (self.records().await?, self.context.ledger.as_ref());
        let times = PresentTime {
            earlier: self.ended_by(),
            later: self.server_time.later(now()),
        };
        self.revoked
            .publish(self.access.client(), records, times)
            .await
    }

    async fn examined(&mut self) -> Health {
        // If the permissions have been revoked since then, the API server rejects the call.
        let rights = self.rights.take();
        let rights = rights.filter(|at| at.elapsed() < self.sync_period * 2);
        let client = self.access.client();
        let examining = async {
            let version = preflight::version(client).await?;
            let missing = match rights {
                Some(_) => Vec::new(),
                None => {
                    preflight::missing(client, required_rights(&self.context.available_signers()))
                        .await?
                }
            };
            Ok((version, missing))
        };
        let examining = Decoding::new(Box::pin(examining));
        let answers = match timeout(PART_DEADLINE, examining).await {
            Ok(Ok((version, missing))) => {
                if missing.is_empty() {
                    self.rights = Some(rights.unwrap_or_else(Instant::now));
                }
                return Health {
                    answers: ApiReachability::Yes(version),
                    missing: missing.iter().map(ToString::to_string).collect(),
                    ..Health::default()
                };
            }
            Ok(Err(error)) => refusal(&error),
            Err(_) => ApiReachability::No(PartError::Late(PART_DEADLINE).to_string()),
        };
        Health {
            answers,
            ..Health::default()
        }
    }

    /// The names of Nodes that have no live record, and that are not allowed to renew without one. The result includes
    /// Nodes that only a Machine reports, and the expected Nodes of control-plane Machines.
    ///
    /// The result contains at most [`nodes::MAX_WITHOUT`] listed Nodes. If `with_retired` is set, it also contains the
    /// Nodes of all retired records.
    async fn without_record(&self, with_retired: bool) -> Result<BTreeSet<String>, PartError> {
        let mut without = self.machines_without_record().await?;
        let unaccounted = |names| self.unaccounted(names);
        without.extend(nodes_named(self.access.client(), with_retired, unaccounted).await?);
        Ok(without)
    }

    /// The Nodes of Machines without a live record, except exempt Nodes.
    async fn machines_without_record(&self) -> Result<BTreeSet<String>, PartError> {
        let records = self.records().await?;
        let exempt = self.admission.exempt.iter();
        let mut accounted_for: BTreeSet<&str> = exempt.map(NodeName::as_str).collect();
        let mut pace = Pace::default();
        for stored in &*records {
            if stored.record.is_live() {
                accounted_for.insert(stored.record.node_name.as_str());
            }
            pace.step().await;
        }
        let unaccounted = |name: &str| !accounted_for.contains(name);
        // A Node can be missing temporarily, while a cluster starts or while the Node's instance is stopped.
        let of_machines = self.inventory.nodes_without(unaccounted).await;
        of_machines.map_err(|error| PartError::of(&error))
    }

    /// The Nodes among `names` that have no live record, and are not exempt.
    ///
    /// The records are read again for each page of Nodes. A tenant's API server can delay the next page, and deleted
    /// records must not stay in memory in the meantime.
    async fn unaccounted(&self, names: Vec<String>) -> Result<Unaccounted, PartError> {
        let records = self.records().await?;
        let mut unaccounted: Unaccounted = names.into_iter().map(|name| (name, false)).collect();
        for node in &self.admission.exempt {
            unaccounted.remove(node.as_str());
        }
        let mut pace = Pace::default();
        for stored in &*records {
            let name = stored.record.node_name.as_str();
            if stored.record.is_live() {
                unaccounted.remove(name);
            } else if let Some(is_retired) = unaccounted.get_mut(name) {
                *is_retired = true;
            }
            pace.step().await;
        }
        Ok(unaccounted)
    }
}

/// Removes the admission policy for requests, because it would block nodes that join without this controller.
///
/// The policy for revoked certificates is kept, because deleting it would make stolen certificates valid again.
pub(super) async fn release(access: &ClusterAccess) -> Result<(), PartError> {
    part(admission::remove(access.client())).await
}

#[cfg(test)]
mod tests;
