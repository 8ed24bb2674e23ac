//! Secret values.

pub use kubelet_attestation::secret::Secret;
