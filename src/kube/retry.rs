//! The pauses that an API server asks for.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::blocking::Response;
use reqwest::header::RETRY_AFTER;

/// The limit of pauses that a server may ask for.
pub(super) const MAX_PAUSES: u32 = 3;

/// The pause that the server asks for.
pub(super) fn pause(response: &Response) -> Option<Duration> {
    let asks_for_patience = matches!(
        response.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok();
    let seconds = seconds.filter(|_| asks_for_patience)?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}
