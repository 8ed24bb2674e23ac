//! Denials for reasons of a provider.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

use super::{Denial, Refusal};

/// A reason to deny evidence that belongs to one provider. [`reasons!`](crate::reasons) writes the
/// implementation.
pub trait EvidenceReason: Error + Send + Sync + 'static {
    /// The stable name, `CamelCase`, for conditions, events and the log.
    fn reason(&self) -> &'static str;

    /// The message for the requester.
    fn message(&self) -> &'static str;
}

/// A denial for a reason of a provider, which nothing but its verifier knows.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct EvidenceDenial(Arc<dyn EvidenceReason>);

impl EvidenceDenial {
    /// The stable name, for conditions, events and the log.
    pub fn reason(&self) -> &'static str {
        self.0.reason()
    }

    /// The message for the requester.
    pub fn message(&self) -> &'static str {
        self.0.message()
    }

    /// The provider's own type, where it is this one.
    pub fn downcast_ref<D: EvidenceReason>(&self) -> Option<&D> {
        let error: &(dyn Error + 'static) = &*self.0;
        error.downcast_ref()
    }
}

/// Two denials are the same if the log could not tell them apart.
impl PartialEq for EvidenceDenial {
    fn eq(&self, other: &Self) -> bool {
        self.reason() == other.reason() && self.to_string() == other.to_string()
    }
}

impl Eq for EvidenceDenial {}

impl<D: EvidenceReason> From<D> for Denial {
    fn from(denial: D) -> Self {
        Self::Evidence(EvidenceDenial(Arc::new(denial)))
    }
}

impl<D: EvidenceReason> From<D> for Refusal {
    fn from(denial: D) -> Self {
        Self::Deny(denial.into())
    }
}
