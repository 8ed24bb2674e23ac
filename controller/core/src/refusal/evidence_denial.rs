//! Denials with a provider's own reasons.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

/// A provider's own reason to deny evidence. The macro [`reasons!`](crate::reasons) implements the trait.
pub trait EvidenceReason: Error + Send + Sync + 'static {
    /// The stable name in `CamelCase`, for conditions, Events and the log.
    fn reason(&self) -> &'static str;

    /// The message for the requester.
    fn message(&self) -> &'static str;

    /// The fix, for operators.
    fn cure(&self) -> &'static str;
}

/// A denial with a provider's own reason. Only the provider's verifier uses the concrete type.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct EvidenceDenial(Arc<dyn EvidenceReason>);

impl EvidenceDenial {
    /// Creates a denial with this reason.
    pub(super) fn new(reason: impl EvidenceReason) -> Self {
        Self(Arc::new(reason))
    }

    /// The stable name, for conditions, Events and the log.
    pub fn reason(&self) -> &'static str {
        self.0.reason()
    }

    /// The message for the requester.
    pub fn message(&self) -> &'static str {
        self.0.message()
    }

    /// The fix, for operators.
    pub fn cure(&self) -> &'static str {
        self.0.cure()
    }

    /// The provider's own denial type. `None` if that type is not `D`.
    pub fn downcast_ref<D: EvidenceReason>(&self) -> Option<&D> {
        let error: &(dyn Error + 'static) = &*self.0;
        error.downcast_ref()
    }
}

/// Two denials are equal if their log messages are equal.
impl PartialEq for EvidenceDenial {
    fn eq(&self, other: &Self) -> bool {
        self.reason() == other.reason() && self.to_string() == other.to_string()
    }
}

impl Eq for EvidenceDenial {}
