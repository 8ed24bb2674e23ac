//! Errors of the settings.

/// Settings that mean nothing: the field, and the rule that it breaks. The API server's schema refuses
/// all but the contents of certificates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidTpmSettings(String);

impl InvalidTpmSettings {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
