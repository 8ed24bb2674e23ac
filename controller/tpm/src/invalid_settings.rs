//! Errors in the settings.

/// Invalid settings: the field, and the rule that it violates. Except for the contents of certificates, the API
/// server's schema rejects them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidTpmSettings(String);

impl InvalidTpmSettings {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
