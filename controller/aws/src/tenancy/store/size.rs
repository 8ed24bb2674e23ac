//! The limits on stored objects, and the memory that the objects use.

use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::memory::KeptLimit;

use super::{IdentityStore, Seen, Source};
use crate::bounded::{NamespaceLimits, of_memory};
use crate::tenancy::{Cluster, IdentityKind, Infrastructure};

/// The limits on the Clusters in one namespace, and on the objects that refer to their identities. The limits are much
/// higher than `--max-clusters-per-namespace`.
pub(super) const OF_CLUSTERS: NamespaceLimits = NamespaceLimits {
    objects: 20_000,
    bytes: 16 * 1024 * 1024,
};

/// The container's memory limit divided by this number is the limit for the Clusters in all namespaces, and also the
/// limit for the objects that refer to their identities: 32 MiB of 1 GiB for each of the two.
const PART: usize = 32;

/// The limit on these objects in all namespaces, in bytes.
pub(super) fn of_all() -> KeptLimit {
    of_memory(PART)
}

/// The reason why an object that exceeds a size limit is not used.
pub(super) const TOO_LARGE: &str = "the objects of this kind in the namespace exceed 16 MiB in total, or their part of \
    the memory for all namespaces; delete some of these objects, and then change this object, so that the controller \
    reads it again";

impl IdentityStore {
    /// Whether an object is kept. The names of omitted objects are not stored, because a tenant can have any number of
    /// them.
    pub(crate) fn keeps(&self, source: &Source, key: &ObjectKey) -> bool {
        self.state.read(|state| match source {
            Source::Clusters => state.clusters.get(key).is_some(),
            Source::Infrastructure(kind) => {
                let key = ((*kind).to_owned(), key.clone());
                state.infrastructure.get(&key).is_some()
            }
            Source::Identities(IdentityKind::ServiceAccount) => {
                let accounts = &state.objects.service_accounts;
                accounts.get(&key.namespace, &key.name).is_some()
            }
            // Tenants cannot create objects of the other kinds, so these objects are never omitted.
            Source::Identities(_)
            | Source::Namespaces
            | Source::Secret(_)
            | Source::ConfigMap(_)
            | Source::RoleSelectors => true,
        })
    }
}

/// The size of a Cluster in bytes. Includes its namespace and its name, which are also in its key.
pub(super) fn of_cluster(key: &ObjectKey, found: &Seen<Cluster>) -> usize {
    let fields: usize = match found {
        Ok(cluster) => {
            let references = [&cluster.infrastructure, &cluster.control_plane];
            let references = references.into_iter().flatten();
            let references = references.map(|found| found.kind.len() + found.name.len());
            let labels = cluster.labels.iter();
            let labels = labels.map(|(key, value)| of_text(key) + of_text(value));
            references.chain(labels).sum()
        }
        Err(unreadable) => unreadable.to_string().len(),
    };
    size_of_val(found) + 2 * of_key(key) + fields
}

/// Returns the size of an object that refers to an identity, in bytes.
pub(super) fn of_infrastructure(key: &ObjectKey, found: &Seen<Infrastructure>) -> usize {
    let fields: usize = match found {
        Ok(found) => {
            let identity = found.identity_ref.iter();
            let identity = identity.map(|identity| {
                let namespace = identity.namespace.as_ref().map_or(0, String::len);
                identity.kind.len() + identity.name.len() + namespace
            });
            let region = found.region.as_ref().map_or(0, String::len);
            let identity: usize = identity.sum();
            identity + region
        }
        Err(unreadable) => unreadable.to_string().len(),
    };
    size_of_val(found) + of_key(key) + fields
}

fn of_key(key: &ObjectKey) -> usize {
    of_text(&key.namespace) + of_text(&key.name)
}

fn of_text(text: &str) -> usize {
    size_of::<String>() + text.len()
}
