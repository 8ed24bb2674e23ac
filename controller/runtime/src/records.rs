//! The records of clusters, as `NodeIdentity` objects.

mod cache;
mod index;
mod kube;
mod object;
mod watch;

pub use kube::KubeRecords;
pub use watch::RecordsWatch;

/// The namespace of the records in a workload cluster without a management cluster. This namespace exists in every
/// cluster, and cannot be deleted.
pub const WORKLOAD_NAMESPACE: &str = "kube-system";
