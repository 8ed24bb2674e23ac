//! Locks that tenants do not share.

/// A lock that belongs to one cluster, or to a part of the process that tenants cannot reach. The comment on each field
/// of this type explains why tenants do not share the lock.
///
/// `controller/clippy.toml` forbids other locks. A value that tenants share is in a `Shared` from
/// `node_attestation_runtime`, which counts the visited entries and measures how long the lock is held.
#[expect(clippy::disallowed_types, reason = "this is the door")]
pub type Unshared<T> = parking_lot::Mutex<T>;
