//! Owner references to a Cluster.
//!
//! Kubernetes deletes an object with its owner only if the API version in the reference is served.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::objects::{CORE_GROUP, Cluster, Watched as _};

/// Whether the owner is a Cluster.
pub(crate) fn is_cluster(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split('/').next();
    owner.kind == Cluster::KIND && group == Some(CORE_GROUP)
}

/// Sets the API version of the reference to the version in `now`, if both refer to the same object. Returns whether the
/// version changed.
pub(crate) fn renew_version(owner: &mut OwnerReference, now: &OwnerReference) -> bool {
    let is_former = owner.uid == now.uid && owner.api_version != now.api_version;
    if is_former {
        owner.api_version.clone_from(&now.api_version);
    }
    is_former
}
