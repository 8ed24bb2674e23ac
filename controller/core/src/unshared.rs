//! Locks that tenants do not share.

/// A lock of one cluster, or of a part of the process that tenants cannot reach. Each field of this type states the
/// reason.
///
/// `controller/clippy.toml` forbids other locks. A value that tenants share is in a `Shared` of
/// `node_attestation_runtime`, which counts the visited entries and measures the time under the lock.
#[expect(clippy::disallowed_types, reason = "this is the door")]
pub type Unshared<T> = parking_lot::Mutex<T>;
