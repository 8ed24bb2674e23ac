//! The objects that specify the AWS identities of clusters, as received from watches.
//!
//! # Guarantees
//!
//! - Each resolution uses the current objects. Its cost does not depend on the number of clusters.
//! - A resolution fails if some of its objects have not been read, or if their watch has been broken for two minutes.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use kubelet_attestation::ensure;
use kubelet_attestation::names::is_dns_subdomain;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::shared::{Lock, Shared, page};
use node_attestation_runtime::watch::Unreadable;
use tokio::time::Instant;

use crate::bounded::Bounded;
use crate::credentials::ClusterTenant;
use crate::tenancy::{
    Ack, Cluster, Explanation, IdentityKind, Infrastructure, MAX_SERVICE_ACCOUNTS, ObjectRef,
    Objects, Plan, ResolutionError, TenancySettings, explain,
};

mod error;
mod size;
mod source;

pub use error::IdentityError;
use size::{OF_CLUSTERS, TOO_LARGE};
pub use source::Source;

/// The maximum time for which objects are used while their watch is broken.
const BROKEN_WATCH: Duration = Duration::from_mins(2);

/// The time that a resumed watch needs to report the changes that it missed.
const CATCHES_UP: Duration = Duration::from_secs(10);

/// The maximum number of watched Secrets. Each Secret has a separate watch, and operators rarely use more than a few
/// dozen of these Secrets.
pub const MAX_SECRETS: usize = 1024;

/// The objects that specify identities.
#[derive(Debug)]
pub struct IdentityStore {
    settings: TenancySettings,
    state: Shared<State>,
}

/// A parsed object, or the reason why it cannot be parsed.
pub type Seen<T> = Result<T, Unreadable>;

#[derive(Debug)]
struct State {
    objects: Objects,
    clusters: Bounded<ObjectKey, Seen<Cluster>>,
    /// The objects that refer to an identity, keyed by kind, namespace and name.
    infrastructure: Bounded<(String, ObjectKey), Seen<Infrastructure>>,
    watches: HashMap<Source, WatchState>,
    /// The Secrets that are not watched, because there are too many.
    unwatched: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct WatchState {
    is_read: bool,
    broken_since: Option<Instant>,
    /// The time at which a broken watch resumed without a new list. Missed events arrive shortly afterwards.
    resumed: Option<Instant>,
}

impl IdentityStore {
    /// Creates an empty store. Secrets are in `capa_namespace`.
    pub fn new(settings: TenancySettings, capa_namespace: &str) -> Self {
        let objects = Objects {
            capa_namespace: capa_namespace.to_owned(),
            ..Objects::default()
        };
        Self {
            settings,
            state: Shared::new(
                Lock::Identities,
                State {
                    objects,
                    clusters: Bounded::new(OF_CLUSTERS, size::of_all()),
                    infrastructure: Bounded::new(OF_CLUSTERS, size::of_all()),
                    watches: HashMap::new(),
                    unwatched: BTreeSet::new(),
                },
            ),
        }
    }

    /// The stored labels of a Cluster, if the Cluster could be parsed.
    #[cfg(test)]
    pub(crate) fn labels_of(&self, cluster: &ObjectKey) -> Option<crate::tenancy::Labels> {
        self.state.read(|state| {
            let cluster = state.clusters.get(cluster)?.as_ref().ok()?;
            Some(cluster.labels.clone())
        })
    }

    /// The kinds of objects that must be read, except Secrets.
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

    /// Whether the identity of a Cluster depends on its labels.
    pub(crate) fn reads_cluster_labels(&self) -> bool {
        self.settings.ack == Ack::RoleSelectors
    }

    /// Changes the objects, and returns the result of `change`.
    pub fn update<R>(&self, change: impl FnOnce(&mut Objects) -> R) -> R {
        self.state.write(|state| change(&mut state.objects))
    }

    /// Replaces a Cluster. `None` removes it.
    pub fn put_cluster(&self, key: ObjectKey, cluster: Option<Seen<Cluster>>) {
        let too_large = || Err(Unreadable::because(TOO_LARGE));
        let cluster = cluster.map(|cluster| {
            let bytes = size::of_cluster(&key, &cluster);
            (cluster, bytes)
        });
        let dropped: Vec<_> = self.state.write(|state| match cluster {
            Some(cluster) => {
                let namespace = key.namespace.clone();
                state.clusters.put(&namespace, key, cluster, too_large)
            }
            None => Vec::from_iter(state.clusters.remove(&key.namespace, &key)),
        });
        drop(dropped);
    }

    /// Replaces an object that refers to an identity. `None` removes it.
    pub fn put_infrastructure(
        &self,
        kind: &str,
        key: ObjectKey,
        found: Option<Seen<Infrastructure>>,
    ) {
        let too_large = || Err(Unreadable::because(TOO_LARGE));
        let namespace = key.namespace.clone();
        let found = found.map(|found| {
            let bytes = size::of_infrastructure(&key, &found);
            (found, bytes)
        });
        let key = (kind.to_owned(), key);
        let dropped: Vec<_> = self.state.write(|state| match found {
            Some(found) => state.infrastructure.put(&namespace, key, found, too_large),
            None => Vec::from_iter(state.infrastructure.remove(&namespace, &key)),
        });
        drop(dropped);
    }

    /// Removes the Clusters or other objects that a new list does not contain.
    pub fn retain(&self, source: &Source, listed: &BTreeSet<ObjectKey>) {
        let has_name = |name: &String| listed.contains(&ObjectKey::new("", name.as_str()));
        match source {
            Source::Clusters => self.state.retain(
                |state| state.clusters.entries_mut(),
                |key: &ObjectKey, _| listed.contains(key),
            ),
            Source::Infrastructure(kind) => self.state.retain(
                |state| state.infrastructure.entries_mut(),
                |(of, key): &(String, ObjectKey), _| of != kind || listed.contains(key),
            ),
            Source::Identities(IdentityKind::ServiceAccount) => self.state.retain(
                |state| state.objects.service_accounts.entries_mut(),
                |(namespace, name): &(String, String), _| {
                    listed.contains(&ObjectKey::new(namespace.as_str(), name.as_str()))
                },
            ),
            // Tenants cannot create the other kinds.
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

    /// Records that all objects of a source have been read, and that its watch works.
    pub fn read(&self, source: &Source) {
        let watch = WatchState {
            is_read: true,
            ..WatchState::default()
        };
        self.state
            .write(|state| state.watches.insert(source.clone(), watch));
    }

    /// Records that the API server responded to the watch for a source. A broken watch continues where it stopped.
    pub fn heard(&self, source: &Source) {
        let is_resumed = |watch: &WatchState| watch.is_read && watch.broken_since.is_some();
        // A watch is rarely broken, so a read lock is almost always sufficient.
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

    /// Records that the watch for a source failed. Returns whether the watch worked before.
    pub fn failed(&self, source: &Source) -> bool {
        self.state.write(|state| {
            let watch = state.watches.entry(source.clone()).or_default();
            let held = watch.broken_since.is_none();
            watch.broken_since.get_or_insert_with(Instant::now);
            held
        })
    }

    /// Removes a source that is no longer watched.
    pub fn forget(&self, source: &Source) {
        self.state.write(|state| state.watches.remove(source));
        self.retain(source, &BTreeSet::new());
    }

    /// Sets the Secrets that are not watched, because there are too many.
    pub fn set_unwatched(&self, secrets: BTreeSet<String>) {
        self.state.write(|state| state.unwatched = secrets);
    }

    /// The names of the Secrets that identities refer to.
    pub fn secrets(&self) -> BTreeSet<String> {
        self.state.read(|state| state.objects.secrets())
    }

    /// The Clusters. `None` if the list is not current.
    pub fn clusters(&self) -> Option<BTreeSet<ObjectKey>> {
        let (mut clusters, now) = (BTreeSet::new(), Instant::now());
        loop {
            let last = clusters.last();
            let next: Vec<ObjectKey> = self.state.read(|state| {
                state.is_current(Source::Clusters, now).ok()?;
                let next = page(state.clusters.entries(), last);
                Some(next.map(|(key, _)| key.clone()).collect())
            })?;
            if next.is_empty() {
                return Some(clusters);
            }
            clusters.extend(next);
        }
    }

    /// Whether a cluster can have instances in this region: its `AWSCluster` or managed control plane specifies this
    /// region, or does not specify a region.
    ///
    /// # Errors
    ///
    /// Returns an error if the known objects do not allow the region but might be outdated, or if the cluster's
    /// identity cannot be determined.
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

    /// The region in a cluster's `AWSCluster` or managed control plane.
    pub fn region(&self, cluster: &ObjectKey) -> Option<String> {
        let own = |state: &State| Some(state.region(cluster)?.0.to_owned());
        self.state.read(own)
    }

    /// Returns the path to a cluster's credentials, based on the current objects.
    ///
    /// # Errors
    ///
    /// Returns an error if the identity cannot be determined.
    pub fn resolve(&self, tenant: &ClusterTenant) -> Result<Plan, IdentityError> {
        self.state
            .read(|state| state.resolve(tenant, self.settings, &self.sources()))
    }

    /// Returns the resolution with its steps, based on the stored objects. It is for an operator, and must not be used
    /// for a decision.
    ///
    /// # Errors
    ///
    /// Returns an error if the Cluster cannot be read, or if an object exceeds the limits of its namespace.
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
        // A missing Secret might be a Secret that has not been read yet.
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
        let ObjectKey { namespace, name } = &tenant.cluster;
        let not_found = || {
            if self.clusters.has_omitted(namespace, &tenant.cluster) {
                IdentityError::too_many("Cluster", name, namespace, OF_CLUSTERS)
            } else {
                IdentityError::ClusterNotFound(tenant.cluster.clone())
            }
        };
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
        if let Err(error) = &explanation.plan
            && let Some(omitted) = self.omitted(error, namespace)
        {
            return Err(omitted);
        }
        Ok(explanation)
    }

    /// The error for an object that is missing because its namespace has too many objects.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only a tenant's own missing objects can be omitted"
    )]
    fn omitted(&self, error: &ResolutionError, namespace: &str) -> Option<IdentityError> {
        let (is_omitted, kind, name, limits) = match error {
            ResolutionError::InfrastructureNotFound { kind, name, .. } => {
                let key = (kind.clone(), ObjectKey::new(namespace, name.as_str()));
                let is_omitted = self.infrastructure.has_omitted(namespace, &key);
                (is_omitted, kind.as_str(), name, OF_CLUSTERS)
            }
            ResolutionError::IdentityNotFound { identity }
                if identity.kind == IdentityKind::ServiceAccount =>
            {
                let accounts = &self.objects.service_accounts;
                let is_omitted = accounts.has_omitted(namespace, &identity.name);
                let kind = identity.kind.kind();
                (is_omitted, kind, &identity.name, MAX_SERVICE_ACCOUNTS)
            }
            _ => return None,
        };
        is_omitted.then(|| IdentityError::too_many(kind, name, namespace, limits))
    }

    fn infrastructure_of(
        &self,
        cluster: &Cluster,
        decider: &ObjectRef,
    ) -> Option<&Seen<Infrastructure>> {
        let key = ObjectKey::new(cluster.namespace.as_str(), decider.name.as_str());
        self.infrastructure.get(&(decider.kind.clone(), key))
    }

    /// Returns a cluster's region and the kind of object that specifies it. `None` if the object has no region.
    fn region(&self, cluster: &ObjectKey) -> Option<(&str, &str)> {
        let cluster = self.clusters.get(cluster)?.as_ref().ok()?;
        let decider = cluster.decider()?;
        let found = self.infrastructure_of(cluster, decider)?.as_ref().ok()?;
        let region = found.region.as_deref().filter(|it| !it.is_empty())?;
        Some((region, &decider.kind))
    }

    /// Whether all objects have been read, and the watch is not broken and was not resumed recently.
    fn holds(&self, source: &Source) -> bool {
        let watch = self.watches.get(source).copied().unwrap_or_default();
        let has_caught_up = |resumed: Instant| resumed.elapsed() > CATCHES_UP;
        watch.is_read && watch.broken_since.is_none() && watch.resumed.is_none_or(has_caught_up)
    }

    fn is_current(&self, source: Source, now: Instant) -> Result<(), IdentityError> {
        let watch = self.watches.get(&source).copied().unwrap_or_default();
        ensure!(watch.is_read, IdentityError::NotRead(source));
        let is_short = |since| now.duration_since(since) <= BROKEN_WATCH;
        let holds = watch.broken_since.is_none_or(is_short);
        ensure!(holds, IdentityError::WatchBroken(source));
        Ok(())
    }
}

fn infrastructure(kind: &str) -> Option<Source> {
    let mut kinds = Cluster::DECIDERS.into_iter();
    kinds.find(|of| *of == kind).map(Source::Infrastructure)
}

#[cfg(test)]
mod tests;
