//! Errors in the settings.

/// Invalid settings. Contains the field, and the rule that it violates. The API server's schema rejects all invalid
/// settings except invalid certificate contents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidTpmSettings(String);

impl InvalidTpmSettings {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
