//! Test access to the parsers of API server responses, without an API server.

use reqwest::StatusCode;

use super::client::ApiClient;
use super::error::ApiError;
use super::transport::Answer;
use super::types::CsrObject;
use super::watch::{Ended, Watch};
use crate::clock::Deadline;

/// Parses a request from the API server.
pub fn object(client: &ApiClient, json: &[u8]) -> Result<CsrObject, ApiError> {
    client.object(json)
}

/// The error for a response with this status, which is not a success.
pub fn refusal(client: &ApiClient, status: u16, body: &[u8]) -> ApiError {
    client.transport.refusal(&Answer {
        status: StatusCode::from_u16(status).unwrap_or_default(),
        body: body.to_vec().into(),
        retry_after: None,
    })
}

/// The result of a watch for `csr` that receives these lines: `csr` itself if they do not contain a decision, and
/// `None` if the request was deleted.
pub fn watch(
    client: &ApiClient,
    csr: &CsrObject,
    lines: &[u8],
) -> Result<Option<CsrObject>, ApiError> {
    let mut watch = Watch::new(client, csr, Deadline::after(std::time::Duration::MAX));
    for line in lines.split(|byte| *byte == b'\n') {
        match watch.take(line)? {
            Some(Ended::Seen) => return Ok(Some(watch.seen)),
            Some(Ended::Gone) => return Ok(None),
            Some(Ended::Cut | Ended::Expired) => break,
            None => {}
        }
    }
    Ok(Some(csr.clone()))
}
