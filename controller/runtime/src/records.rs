//! The records of clusters, as `NodeIdentity` objects.

mod cache;
mod index;
mod kube;
mod object;
mod watch;

pub use kube::KubeRecords;
pub use watch::RecordsWatch;
