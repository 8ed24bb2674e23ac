//! Supervises one cluster: watches its configuration, and runs its tasks while the configuration is valid.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt as _;
use kubelet_attestation::backoff::Backoff;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::{BootstrapTokens, KubeletAuthenticationStatus};
use node_attestation_core::ledger::{Absences, MISSING_MACHINE_TIMEOUT, Records as _, Revocations};
use node_attestation_core::rate_limit::Rate;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

mod release;
mod restarts;
mod secrets;

use restarts::Restarts;

use super::Shared;
use super::ca_key_registry::CaKeyHolder;
use super::cluster_tasks::Running;
use super::conditions::not_ready::NotReady;
use super::conditions::{self, ClusterPhase};
use super::desired_state::{self, Fingerprint, HeldKey, Inputs, Parsed, Service, Sources};
use super::kept_authentications::{Authentication, KeptAuthentication};
use super::places::Place;
use super::reporting::{Report, Reporting};
use super::single_object::Observed;
use super::spec_mapping::allowed_retirements;
use super::token_renewal::{OwnSecret, TokenRenewal};
use crate::capi::{Cluster, KubeconfigRefused, ObjectKey, Objects, Selection};
use crate::clock::now;
use crate::hardening::exempt_overlaps::ExemptOverlaps;
use crate::log_lines::ClusterLines;
use crate::metrics::ClusterMetrics;
use crate::records::KubeRecords;
use crate::turns::{Line, TurnLimits};
use crate::watch::Unreadable;

/// The maximum interval between two status updates, because a part of the status depends on the time.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// The rate at which one cluster is reconciled. It is limited because each reconciliation can parse the settings and
/// Secrets, and a tenant can change its objects at any rate.
const RECONCILED: Rate = Rate {
    burst: 20,
    every: Duration::from_secs(1),
};

/// The maximum number of clusters whose objects are parsed at the same time. With a limit of one, parsing occupies at
/// most one thread, and a cluster waits for at most one cluster in each other namespace.
pub(super) const PARSED: TurnLimits = TurnLimits {
    all: 1,
    of_cluster: 1,
};

/// The delays before a cluster is served again after a panic in its tasks, and the delays between attempts to release a
/// cluster.
const RESTART: Backoff = Backoff {
    first: Duration::from_secs(5),
    longest: Duration::from_mins(5),
};

/// Serves one cluster while this controller selects it, until its `KubeletAuthentication` is deleted.
pub(super) async fn supervise(
    shared: Arc<Shared>,
    key: ObjectKey,
    mut authentication: watch::Receiver<Authentication>,
) {
    // The budget is kept when the object is deleted, because a tenant can delete and create the object at any rate.
    let mut full_at = Instant::now();
    loop {
        let served = serve_selected(&shared, &key, &mut authentication, &mut full_at);
        served.boxed().await;
        let again = timeout_at(full_at, authentication.changed()).await;
        if !matches!(again, Ok(Ok(()))) {
            return;
        }
    }
}

/// Serves the cluster while this controller selects it, until its `KubeletAuthentication` is deleted. `full_at` is the
/// state of the budget [`RECONCILED`].
async fn serve_selected(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    authentication: &mut watch::Receiver<Authentication>,
    full_at: &mut Instant,
) {
    while let Some((cluster, selected)) = selected(shared, key, authentication).boxed().await {
        let settings = &shared.controller.settings;
        let missing_machine_timeout = settings.missing_machine_timeout;
        let supervisor = Box::new(Supervisor {
            shared: shared.clone(),
            key: key.clone(),
            authentication: authentication.clone(),
            bootstrap_tokens: selected.spec.bootstrap_tokens,
            sources: Sources {
                cluster,
                ..Sources::default()
            },
            metrics: settings.metrics.cluster(&key.namespace, &key.name),
            ca_key: shared.ca_keys.holder(key.clone()),
            parsed: Parsed::default(),
            no_client: None,
            parsing: shared.parsing.line(key),
            place: shared.places.place(key, &selected),
            records: Arc::new(shared.records.of_cluster(key)),
            absences: Absences::new(missing_machine_timeout.unwrap_or(MISSING_MACHINE_TIMEOUT)),
            revocations: Revocations::unread(),
            overlaps: ExemptOverlaps::default(),
            running: None,
            restarts: Restarts::new(Instant::now()),
            reporting: Reporting::new(shared, key),
            renewal: TokenRenewal::default(),
            lines: ClusterLines::of(key),
        });
        supervisor.run(full_at).boxed().await;
    }
}

/// Waits until this controller selects the cluster, and returns its Cluster and its `KubeletAuthentication`. Returns
/// `None` if the `KubeletAuthentication` was deleted.
async fn selected(
    shared: &Shared,
    key: &ObjectKey,
    authentication: &mut watch::Receiver<Authentication>,
) -> Option<(Observed<Cluster>, Arc<KeptAuthentication>)> {
    let selection = &shared.controller.settings.selection;
    let mut objects = shared.objects.changes_of(key);
    let mut cluster = Observed::Unknown;
    loop {
        // The channel is closed when this replica is no longer the leader.
        authentication.has_changed().ok()?;
        let current = authentication.borrow_and_update().clone()?;
        if is_selected(selection, &cluster, current.metadata.labels.as_ref()) {
            return Some((cluster, current));
        }
        tokio::select! {
            still_wanted = authentication.changed() => still_wanted.ok()?,
            other = other_cluster(&shared.objects, key, &mut objects, &cluster) => cluster = other,
        }
    }
}

/// Waits until this controller serves the cluster. `labels` are the labels of its `KubeletAuthentication`.
pub(super) async fn until_selected(
    shared: &Shared,
    key: &ObjectKey,
    labels: Option<&BTreeMap<String, String>>,
) {
    let selection = &shared.controller.settings.selection;
    let mut objects = shared.objects.changes_of(key);
    let mut cluster = Observed::Unknown;
    while !is_selected(selection, &cluster, labels) {
        cluster = other_cluster(&shared.objects, key, &mut objects, &cluster).await;
    }
}

/// Whether this controller serves the cluster. `labels` are the labels of its `KubeletAuthentication`.
///
/// The Cluster's label determines whether this controller serves the cluster. If the Cluster cannot be read, the label
/// of the `KubeletAuthentication` determines this. If this controller has a watch filter, it does not write to a
/// cluster that belongs to another controller, or whose label it has not read.
fn is_selected(
    selection: &Selection,
    cluster: &Observed<Cluster>,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    match cluster {
        Observed::Unknown => selection.watch_filter.is_none(),
        Observed::Absent | Observed::Unreadable(_) => selection.has_label(labels),
        Observed::Present(_) => true,
    }
}

struct Supervisor {
    shared: Arc<Shared>,
    key: ObjectKey,
    authentication: watch::Receiver<Authentication>,
    /// The setting in the last `KubeletAuthentication`.
    bootstrap_tokens: BootstrapTokens,
    sources: Sources,
    metrics: ClusterMetrics,
    ca_key: CaKeyHolder,
    parsed: Parsed,
    /// The last service for which no client could be created, so that its kubeconfig is rejected only once.
    no_client: Option<(Fingerprint, KubeconfigRefused)>,
    /// The turns for parsing objects, which rotate through the namespaces.
    parsing: Line,
    place: Place,
    records: Arc<KubeRecords>,
    absences: Absences,
    revocations: Revocations,
    overlaps: ExemptOverlaps,
    running: Option<Running>,
    restarts: Restarts,
    reporting: Reporting,
    /// The renewal of the token in the controller's own kubeconfig.
    renewal: TokenRenewal,
    lines: ClusterLines,
}

impl Supervisor {
    /// Runs until the `KubeletAuthentication` is deleted, or until another controller selects the cluster.
    ///
    /// The steps are boxed, because a task always reserves space for its largest step, and each cluster has a task. The
    /// supervisor is boxed, because an `async fn` reserves space for an argument twice.
    async fn run(mut self: Box<Self>, full_at: &mut Instant) {
        let mut secrets = None;
        let mut objects = self.shared.objects.changes_of(&self.key);
        loop {
            while let Err(next) = RECONCILED.take(full_at, Instant::now()) {
                self.pause(next).await;
                if self.authentication.has_changed().is_err() {
                    return self.stop().await;
                }
            }
            let Some(authentication) = self.authentication.borrow_and_update().clone() else {
                let sources = release::ReleaseChannels { objects, secrets };
                return Box::pin(self.release(sources, full_at)).await;
            };
            self.bootstrap_tokens = authentication.spec.bootstrap_tokens;
            let selection = &self.shared.controller.settings.selection;
            let labels = authentication.metadata.labels.as_ref();
            if !is_selected(selection, &self.sources.cluster, labels) {
                break;
            }
            self.follow_secrets(&mut secrets);
            let phase = Box::pin(self.reconcile(&authentication)).await;
            let mut status = conditions::status(&authentication, &phase, now());
            let cluster = self.sources.cluster.present();
            conditions::control_plane::set(&mut status, &authentication, cluster, now());
            let members = self.shared.objects.unreadable_members(&self.key);
            let unreadable = members.into_iter().chain(self.records.invalid());
            let of = (&**authentication, &phase);
            conditions::name_unreadable(&mut status, of, unreadable, now());
            self.metrics
                .report(|| conditions::report_of(&phase, &status));
            self.report(authentication, status, phase);
            let look_again = Instant::now() + LOOK_AGAIN;
            tokio::select! {
                still_wanted = self.authentication.changed() => if still_wanted.is_err() {
                    break;
                },
                changed = secrets::changed(&mut secrets) => self.secrets_changed(changed),
                cluster = other_cluster(&self.shared.objects, &self.key, &mut objects, &self.sources.cluster) => {
                    self.sources.cluster = cluster;
                }
                () = self.ca_key.changed() => {}
                () = self.place.changed() => {}
                panicked = panicked(self.running.as_mut()) => if panicked {
                    self.broke().await;
                },
                () = self.reporting.due() => {}
                () = sleep_until(look_again) => {}
            }
        }
        self.stop().await;
    }

    /// Waits until this time, or until the channel is closed.
    async fn pause(&mut self, until: Instant) {
        // The caller reads the current value later.
        let closed = async { while self.authentication.changed().await.is_ok() {} };
        drop(timeout_at(until, closed).await);
    }

    /// Starts writing the result of a reconciliation, and does not wait for the write.
    fn report(
        &mut self,
        authentication: Arc<KeptAuthentication>,
        status: KubeletAuthenticationStatus,
        phase: ClusterPhase,
    ) {
        let cluster = self.sources.cluster.present();
        let infra_cluster = cluster.and_then(|cluster| cluster.infrastructure.clone());
        let attestors = match phase {
            ClusterPhase::Serving { attestors, .. } => attestors,
            ClusterPhase::Waiting | ClusterPhase::Stopped(_) => Vec::new(),
        };
        let latest = self.shared.controller.server_time.later(now());
        self.reporting.report(Report {
            authentication,
            status,
            infra_cluster: infra_cluster.filter(|_| self.running.is_some()),
            attestors,
            floor: self.revocations.known_floor(latest),
        });
    }

    /// Reconciles the cluster, and returns its phase.
    async fn reconcile(&mut self, authentication: &Arc<KeptAuthentication>) -> ClusterPhase {
        if !self.place.is_placed() {
            self.stop().await;
            self.ca_key.hold(None);
            self.parsed = Parsed::default();
            return ClusterPhase::Stopped(NotReady::TooManyClusters(self.place.limit()));
        }
        self.absences.allow(allowed_retirements(authentication));
        let controller = &self.shared.controller;
        let turn = self.parsing.turn().await;
        let decisions = self.parsed.decisions(authentication);
        let known = self.revocations.decisions().floor;
        // With a slow clock, the latest decisions of operators would seem to be in the future.
        let latest = controller.server_time.later(now());
        self.revocations
            .decide(decisions.shared_until_or(latest, known));
        let inputs = Inputs {
            authentication,
            sources: &self.sources,
            settings: &controller.settings,
        };
        let held = inputs.ca_key(&mut self.parsed);
        let shared = held.and_then(|HeldKey(key)| self.ca_key.compare(key));
        let verifiers = &*controller.verifiers;
        let desired = desired_state::service(inputs, shared, &mut self.parsed, verifiers);
        drop(turn);
        match desired {
            Ok(Some(service)) => self.serve(service).boxed().await,
            Ok(None) => ClusterPhase::Waiting,
            Err(why) => {
                self.stop().await;
                ClusterPhase::Stopped(why)
            }
        }
    }

    async fn serve(&mut self, service: Service) -> ClusterPhase {
        let current = self.running.as_ref().map(|running| running.fingerprint);
        if current != Some(service.fingerprint) {
            self.stop().await;
        }
        let running = match &mut self.running {
            Some(running) => running,
            None if self.restarts.is_resting(Instant::now()) => {
                return ClusterPhase::Stopped(NotReady::Broken);
            }
            running @ None => {
                let records = self.records.clone();
                let memory = (
                    self.absences.clone(),
                    self.revocations.clone(),
                    self.overlaps.clone(),
                );
                let metrics = self.metrics.clone();
                let known = self.no_client.take();
                let known = known.filter(|(of, _)| *of == service.fingerprint);
                let started = if let Some((_, refused)) = known {
                    Err(refused)
                } else {
                    // The turn is necessary because the library parses the client key and the CA certificates.
                    let _turn = self.parsing.turn().await;
                    Running::start(&self.shared, &self.key, &service, records, memory, metrics)
                };
                match started {
                    Ok(started) => {
                        cluster_line!(&self.lines, INFO, "serving");
                        running.insert(started)
                    }
                    Err(source) => {
                        self.no_client = Some((service.fingerprint, source.clone()));
                        let name = self.sources.kubeconfig_name(&self.key.name);
                        return ClusterPhase::Stopped(NotReady::KubeconfigRefused { name, source });
                    }
                }
            }
        };
        let mut findings = service.configuration.verifiers.findings(now());
        let conditions = std::mem::take(&mut findings.conditions);
        let mut health = Box::new(running.health.borrow().clone());
        health.signer_unused = service.signer_unused;
        let outdated = self.sources.outdated_messages(&self.key.name);
        health.failed.extend(outdated);
        health.failed.extend(self.parsed.unread_releases());
        let management = &self.shared.controller.management;
        if let Some(own) = OwnSecret::of(&self.sources, management, &self.key.namespace) {
            let kubeconfig = &service.kubeconfig;
            let workload = running.access.client();
            Box::pin(self.renewal.renew(kubeconfig, &own, workload, now())).await;
            let warning = self.renewal.warning(kubeconfig, &own, now());
            health.failed.extend(warning);
        }
        ClusterPhase::Serving {
            ca: running.ca.out_of_time(now()),
            health,
            attestors: service
                .configuration
                .verifiers
                .reports()
                .chain(conditions)
                .collect(),
            findings: Box::new(findings),
        }
    }

    async fn broke(&mut self) {
        cluster_line!(
            &self.lines,
            ERROR,
            "a task of the cluster panicked; the controller restarts the task"
        );
        self.restarts.after_panic(Instant::now());
        self.stop().await;
    }

    async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().boxed().await;
            cluster_line!(&self.lines, INFO, "no longer serving");
        }
    }
}

/// Waits until the Cluster differs from `known`. A Cluster that another controller selects counts as unknown.
async fn other_cluster(
    objects: &Objects,
    key: &ObjectKey,
    changes: &mut watch::Receiver<()>,
    known: &Observed<Cluster>,
) -> Observed<Cluster> {
    loop {
        changes.borrow_and_update();
        let now = cluster_now(objects, key);
        if now != *known {
            return now;
        }
        if changes.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

/// The Cluster in the watch's cache.
fn cluster_now(objects: &Objects, key: &ObjectKey) -> Observed<Cluster> {
    match objects.is_ready().then(|| objects.any_cluster(key)) {
        None => Observed::Unknown,
        Some(Some(cluster)) if !objects.selects(&cluster) => Observed::Unknown,
        Some(None) if objects.is_unreadable(key) => {
            Observed::Unreadable(Unreadable::because("the log contains the cause"))
        }
        Some(cluster) => cluster.into(),
    }
}

async fn panicked(running: Option<&mut Running>) -> bool {
    match running {
        Some(running) => running.panicked().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
