//! The records of a cluster, as `NodeIdentity` objects.

mod cache;
mod heard;
mod kube;
mod object;

pub use kube::KubeRecords;
pub use object::BrokenRecord;
