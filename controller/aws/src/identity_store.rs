//! The objects that name the AWS identities of clusters, as watches have shown them.
//!
//! # Guarantees
//!
//! - Each resolution is by the objects of that moment, and costs the same among a hundred clusters and ten thousand.
//! - Nothing is resolved by objects that were not all read, or whose watch has been broken for two minutes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use kubelet_attestation::ensure;
use kubelet_attestation::names::is_dns_subdomain;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::shared::{Shared, page};
use node_attestation_runtime::watch::Unreadable;
use tokio::time::Instant;

use crate::credentials::ClusterTenant;
use crate::tenancy::{
    Ack, Cluster, Explanation, IdentityKind, Infrastructure, ObjectRef, Objects, Plan,
    ResolutionError, TenancySettings, explain,
};

mod source;

pub use source::Source;

/// The longest time that objects count while their watch is broken.
const BROKEN_WATCH: Duration = Duration::from_mins(2);

/// The time in which a watch that goes on has shown what changed while it was broken.
const CATCHES_UP: Duration = Duration::from_secs(10);

/// The limit of Secrets that are watched: each is a watch of its own, and an operator has rarely more than some dozen.
pub const MAX_SECRETS: usize = 1024;

/// The identity of a cluster cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Objects were not read.
    #[error("{0} objects of the management cluster could not be read yet")]
    NotRead(Source),
    /// The watch of objects is broken.
    #[error(
        "the watch of {0} objects of the management cluster has been broken for more than two minutes"
    )]
    WatchBroken(Source),
    /// The watch of objects is broken, so that nobody is denied by them.
    #[error("the watch of {0} objects of the management cluster is broken")]
    WatchInterrupted(Source),
    /// Identities name more Secrets than are watched.
    #[error(
        "the Secret {0:?} is not read: identities name more than the {MAX_SECRETS} Secrets that are watched"
    )]
    TooManySecrets(String),
    /// There is no such Cluster.
    #[error("there is no Cluster {0}")]
    ClusterNotFound(ObjectKey),
    /// The Cluster cannot be read.
    #[error("Cluster {cluster} cannot be read: {detail}")]
    ClusterUnreadable {
        /// The Cluster.
        cluster: ObjectKey,
        /// The error.
        detail: Unreadable,
    },
    /// The objects name no identity that can be used.
    #[error(transparent)]
    Unresolved(#[from] ResolutionError),
}

impl IdentityError {
    /// The reason in a condition; `None` while nothing is known.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Unresolved(error) => Some(error.reason()),
            Self::TooManySecrets(_) => Some("TooManySecrets"),
            Self::ClusterUnreadable { .. } => Some("ClusterInvalid"),
            Self::NotRead(_)
            | Self::WatchBroken(_)
            | Self::WatchInterrupted(_)
            | Self::ClusterNotFound(_) => None,
        }
    }
}

/// The objects that name identities.
#[derive(Debug)]
pub struct IdentityStore {
    settings: TenancySettings,
    state: Shared<State>,
}

/// An object that can be read, or why it cannot.
pub type Seen<T> = Result<T, Unreadable>;

#[derive(Debug, Default)]
struct State {
    objects: Objects,
    clusters: BTreeMap<ObjectKey, Seen<Cluster>>,
    /// By kind, namespace and name.
    infrastructure: BTreeMap<(String, ObjectKey), Seen<Infrastructure>>,
    watches: HashMap<Source, WatchState>,
    /// The Secrets that are not watched, for there are too many.
    unwatched: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct WatchState {
    is_read: bool,
    broken_since: Option<Instant>,
    /// When it went on after it was broken, without a new list: what happened meanwhile comes just after.
    resumed: Option<Instant>,
}

impl IdentityStore {
    /// A store in which nothing is read yet. Secrets are those of `capa_namespace`.
    pub fn new(settings: TenancySettings, capa_namespace: &str) -> Self {
        let objects = Objects {
            capa_namespace: capa_namespace.to_owned(),
            ..Objects::default()
        };
        Self {
            settings,
            state: Shared::new(
                "objects that name identities",
                State {
                    objects,
                    ..State::default()
                },
            ),
        }
    }

    /// The labels that are kept of a Cluster that can be read.
    #[cfg(test)]
    pub(crate) fn labels_of(&self, cluster: &ObjectKey) -> Option<crate::tenancy::Labels> {
        self.state.read(|state| {
            let cluster = state.clusters.get(cluster)?.as_ref().ok()?;
            Some(cluster.labels.clone())
        })
    }

    /// The kinds of objects that must be read, apart from Secrets.
    pub fn sources(&self) -> Vec<Source> {
        let ack: &[Source] = match self.settings.ack {
            Ack::Off => &[],
            Ack::Carm => &[
                Source::ConfigMap(crate::tenancy::ACCOUNT_MAP),
                Source::ConfigMap(crate::tenancy::TEAM_MAP),
            ],
            Ack::RoleSelectors => &[Source::RoleSelectors],
        };
        let identities = IdentityKind::ALL.map(Source::Identities);
        let infrastructure = Cluster::DECIDERS.map(Source::Infrastructure);
        let others = [Source::Clusters, Source::Namespaces];
        identities
            .into_iter()
            .chain(infrastructure)
            .chain(others)
            .chain(ack.iter().cloned())
            .collect()
    }

    /// Whether the labels of Clusters decide on their identities.
    pub(crate) fn reads_cluster_labels(&self) -> bool {
        self.settings.ack == Ack::RoleSelectors
    }

    /// Changes the objects.
    pub fn update(&self, change: impl FnOnce(&mut Objects)) {
        self.state.write(|state| change(&mut state.objects));
    }

    /// Puts a Cluster in the place of what was there; `None` removes it.
    pub fn put_cluster(&self, key: ObjectKey, cluster: Option<Seen<Cluster>>) {
        self.state.write(|state| match cluster {
            Some(cluster) => state.clusters.insert(key, cluster),
            None => state.clusters.remove(&key),
        });
    }

    /// Puts an object that names an identity in the place of what was there; `None` removes it.
    pub fn put_infrastructure(
        &self,
        kind: &str,
        key: ObjectKey,
        found: Option<Seen<Infrastructure>>,
    ) {
        let key = (kind.to_owned(), key);
        self.state.write(|state| match found {
            Some(found) => state.infrastructure.insert(key, found),
            None => state.infrastructure.remove(&key),
        });
    }

    /// Keeps of the Clusters, or of the objects of a kind, only those of a new list.
    pub fn retain(&self, source: &Source, listed: &BTreeSet<ObjectKey>) {
        let has_name = |name: &String| listed.contains(&ObjectKey::new("", name.as_str()));
        match source {
            Source::Clusters => self.state.retain(
                |state| &mut state.clusters,
                |key: &ObjectKey, _| listed.contains(key),
            ),
            Source::Infrastructure(kind) => self.state.retain(
                |state| &mut state.infrastructure,
                |(of, key): &(String, ObjectKey), _| of != kind || listed.contains(key),
            ),
            Source::Identities(IdentityKind::ServiceAccount) => self.state.retain(
                |state| &mut state.objects.service_accounts,
                |(namespace, name): &(String, String), _| {
                    listed.contains(&ObjectKey::new(namespace.as_str(), name.as_str()))
                },
            ),
            // No tenant can create the others.
            Source::Identities(_)
            | Source::Namespaces
            | Source::Secret(_)
            | Source::ConfigMap(_)
            | Source::RoleSelectors => self.update(|objects| match source {
                Source::Clusters
                | Source::Infrastructure(_)
                | Source::Identities(IdentityKind::ServiceAccount) => {}
                Source::Identities(IdentityKind::Controller) => {
                    objects.controllers.retain(|name, _| has_name(name));
                }
                Source::Identities(IdentityKind::Static) => {
                    objects.statics.retain(|name, _| has_name(name));
                }
                Source::Identities(IdentityKind::Role) => {
                    objects.roles.retain(|name, _| has_name(name));
                }
                Source::Namespaces => objects.namespaces.retain(|name, _| has_name(name)),
                Source::RoleSelectors => objects.role_selectors.retain(|name, _| has_name(name)),
                Source::Secret(name) => {
                    if listed.is_empty() {
                        objects.access_keys.remove(name);
                    }
                }
                Source::ConfigMap(name) => {
                    if listed.is_empty() {
                        objects.put_config_map(name, None);
                    }
                }
            }),
        }
    }

    /// The objects of a source were all read, and the watch goes on.
    pub fn read(&self, source: &Source) {
        let watch = WatchState {
            is_read: true,
            ..WatchState::default()
        };
        self.state
            .write(|state| state.watches.insert(source.clone(), watch));
    }

    /// The API server answered the watch of a source: if it was broken, it goes on where it ended.
    pub fn heard(&self, source: &Source) {
        let is_resumed = |watch: &WatchState| watch.is_read && watch.broken_since.is_some();
        // Almost always it was not broken, and nobody waits.
        let was_broken = self
            .state
            .read(|state| state.watches.get(source).is_some_and(is_resumed));
        if !was_broken {
            return;
        }
        self.state.write(|state| {
            if let Some(watch) = state.watches.get_mut(source) {
                watch.broken_since = None;
                watch.resumed = Some(Instant::now());
            }
        });
    }

    /// The watch of a source failed; returns whether it held before.
    pub fn failed(&self, source: &Source) -> bool {
        self.state.write(|state| {
            let watch = state.watches.entry(source.clone()).or_default();
            let held = watch.broken_since.is_none();
            watch.broken_since.get_or_insert_with(Instant::now);
            held
        })
    }

    /// The source is not watched any more.
    pub fn forget(&self, source: &Source) {
        self.state.write(|state| state.watches.remove(source));
        self.retain(source, &BTreeSet::new());
    }

    /// Learns which Secrets are not watched, for there are too many.
    pub fn leave_out(&self, secrets: BTreeSet<String>) {
        self.state.write(|state| state.unwatched = secrets);
    }

    /// The names of the Secrets that identities name.
    pub fn secrets(&self) -> BTreeSet<String> {
        self.state.read(|state| state.objects.secrets())
    }

    /// The Clusters; `None` while it is not known which there are.
    pub fn clusters(&self) -> Option<BTreeSet<ObjectKey>> {
        let (mut clusters, now) = (BTreeSet::new(), Instant::now());
        loop {
            let last = clusters.last();
            let next: Vec<ObjectKey> = self.state.read(|state| {
                state.is_current(Source::Clusters, now).ok()?;
                let next = page(&state.clusters, last);
                Some(next.map(|(key, _)| key.clone()).collect())
            })?;
            if next.is_empty() {
                return Some(clusters);
            }
            clusters.extend(next);
        }
    }

    /// Whether a cluster may have instances in this region: its `AWSCluster` or managed control plane names one, or says
    /// nothing.
    ///
    /// # Errors
    ///
    /// By the objects that are there it may not, but they may be out of date, or its identity cannot be told.
    pub fn accepts_region(
        &self,
        tenant: &ClusterTenant,
        region: &str,
    ) -> Result<bool, IdentityError> {
        let interrupted = self.state.read(|state| {
            let (_, kind) = state
                .region(&tenant.cluster)
                .filter(|(own, _)| *own != region)?;
            let mut sources = [Some(Source::Clusters), infrastructure(kind)]
                .into_iter()
                .flatten();
            Some(sources.find(|source| !state.holds(source)))
        });
        let Some(interrupted) = interrupted else {
            return Ok(true);
        };
        self.resolve(tenant)?;
        interrupted.map_or(Ok(false), |source| {
            Err(IdentityError::WatchInterrupted(source))
        })
    }

    /// The way to the credentials of a cluster, by the objects of now.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn resolve(&self, tenant: &ClusterTenant) -> Result<Plan, IdentityError> {
        self.state
            .read(|state| state.resolve(tenant, self.settings, &self.sources()))
    }

    /// The same with its steps, by whatever objects are there: for a person, and not for a decision.
    ///
    /// # Errors
    ///
    /// [`IdentityError::ClusterNotFound`].
    pub fn explain(&self, tenant: &ClusterTenant) -> Result<Explanation, IdentityError> {
        self.state
            .read(|state| state.explain(tenant, self.settings))
    }
}

impl State {
    fn resolve(
        &self,
        tenant: &ClusterTenant,
        settings: TenancySettings,
        sources: &[Source],
    ) -> Result<Plan, IdentityError> {
        let now = Instant::now();
        for source in sources {
            self.is_current(source.clone(), now)?;
        }
        let plan = self.explain(tenant, settings)?.plan;
        // A Secret that is missing may not have been read yet.
        if let Err(ResolutionError::SecretNotFound { name, .. }) = &plan
            && is_dns_subdomain(name)
        {
            ensure!(
                !self.unwatched.contains(name),
                IdentityError::TooManySecrets(name.clone())
            );
            self.is_current(Source::Secret(name.clone()), now)?;
        }
        let plan = plan?;
        if let Some(name) = self.objects.secret_of(&plan) {
            self.is_current(Source::Secret(name.to_owned()), now)?;
        }
        Ok(plan)
    }

    fn explain(
        &self,
        tenant: &ClusterTenant,
        settings: TenancySettings,
    ) -> Result<Explanation, IdentityError> {
        let not_found = || IdentityError::ClusterNotFound(tenant.cluster.clone());
        let cluster = self.clusters.get(&tenant.cluster).ok_or_else(not_found)?;
        let cluster = cluster.as_ref();
        let cluster = cluster.map_err(|detail| IdentityError::ClusterUnreadable {
            cluster: tenant.cluster.clone(),
            detail: detail.clone(),
        })?;
        let decider = cluster.decider();
        let found = decider.and_then(|decider| self.infrastructure_of(cluster, decider));
        let infrastructure = found.and_then(|found| found.as_ref().ok());
        let service_account = tenant.service_account_identity.as_deref();
        let mut explanation = explain(
            &self.objects,
            cluster,
            infrastructure,
            service_account,
            settings,
        );
        if let Some(Err(unreadable)) = found
            && let Err(ResolutionError::InfrastructureNotFound {
                kind,
                name,
                namespace,
            }) = explanation.plan
        {
            explanation.plan = Err(ResolutionError::InfrastructureInvalid {
                kind,
                name,
                namespace,
                detail: unreadable.to_string(),
            });
        }
        Ok(explanation)
    }

    fn infrastructure_of(
        &self,
        cluster: &Cluster,
        decider: &ObjectRef,
    ) -> Option<&Seen<Infrastructure>> {
        let key = ObjectKey::new(cluster.namespace.as_str(), decider.name.as_str());
        self.infrastructure.get(&(decider.kind.clone(), key))
    }

    /// The region of a cluster, and the kind of the object that names it; `None` if that does not say.
    fn region(&self, cluster: &ObjectKey) -> Option<(&str, &str)> {
        let cluster = self.clusters.get(cluster)?.as_ref().ok()?;
        let decider = cluster.decider()?;
        let found = self.infrastructure_of(cluster, decider)?.as_ref().ok()?;
        let region = found.region.as_deref();
        let region = region.filter(|region| !region.is_empty())?;
        Some((region, &decider.kind))
    }

    /// Whether all was read, and the watch is not broken, nor was just now.
    fn holds(&self, source: &Source) -> bool {
        let watch = self.watches.get(source).copied().unwrap_or_default();
        let has_caught_up = |resumed: Instant| resumed.elapsed() > CATCHES_UP;
        watch.is_read && watch.broken_since.is_none() && watch.resumed.is_none_or(has_caught_up)
    }

    fn is_current(&self, source: Source, now: Instant) -> Result<(), IdentityError> {
        let watch = self.watches.get(&source).copied().unwrap_or_default();
        if !watch.is_read {
            return Err(IdentityError::NotRead(source));
        }
        match watch.broken_since {
            Some(since) if now.duration_since(since) > BROKEN_WATCH => {
                Err(IdentityError::WatchBroken(source))
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn infrastructure(kind: &str) -> Option<Source> {
    let mut kinds = Cluster::DECIDERS.into_iter();
    kinds.find(|of| *of == kind).map(Source::Infrastructure)
}

#[cfg(test)]
mod tests;
