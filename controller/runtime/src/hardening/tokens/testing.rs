//! The reader of a bootstrap token's Secret, without a cluster.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::TokenSecret;

/// The end that a wanted token is given at `now`, and the patch of its Secret;
/// `None` where that stays as it is.
///
/// # Errors
///
/// The text is no Secret of a bootstrap token.
pub fn extension(text: &str, now: Timestamp) -> Result<Option<(Timestamp, Value)>, NoToken> {
    let (secret, life) = TokenSecret::parse(text).ok_or(NoToken)?;
    let end = life.extended(now);
    Ok(end.map(|end| (end, secret.ending_at(end, true))))
}

/// A text that is no Secret of a bootstrap token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoToken;
