//! Test access to the parser for a bootstrap token's Secret, without a cluster.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::TokenSecret;

/// The new expiry time of a needed token at `now`, and the patch for its Secret. `None` if the Secret does not change.
///
/// # Errors
///
/// The text is not the Secret of a bootstrap token.
pub fn extension(text: &str, now: Timestamp) -> Result<Option<(Timestamp, Value)>, NoToken> {
    let (secret, life) = TokenSecret::parse(text).ok_or(NoToken)?;
    let end = life.extended(now);
    Ok(end.map(|end| (end, secret.ending_at(end, true))))
}

/// The text is not the Secret of a bootstrap token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoToken;
