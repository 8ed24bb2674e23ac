//! Owner references to a Cluster.
//!
//! Kubernetes garbage-collects an object after its owner's deletion only if the API server serves the API version in
//! the owner reference.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::objects::{CORE_GROUP, Cluster, Watched as _};

/// Whether the owner is a Cluster.
pub(crate) fn is_cluster(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split('/').next();
    owner.kind == Cluster::KIND && group == Some(CORE_GROUP)
}

/// Whether the references refer to the same Cluster, but in different API versions.
pub(crate) fn has_former_version(owner: &OwnerReference, now: &OwnerReference) -> bool {
    is_cluster(owner) && owner.uid == now.uid && owner.api_version != now.api_version
}

/// Sets the API versions of the references to the version in `now`, if they refer to the same Cluster.
pub(crate) fn renew_versions(owners: &mut [OwnerReference], now: &OwnerReference) {
    let former = owners
        .iter_mut()
        .filter(|owner| has_former_version(owner, now));
    former.for_each(|owner| owner.api_version.clone_from(&now.api_version));
}
