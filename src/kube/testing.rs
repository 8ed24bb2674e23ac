//! The parsers of an API server's answers, without an API server.

use reqwest::StatusCode;

use super::client::ApiClient;
use super::error::ApiError;
use super::transport::Answer;
use super::types::CsrObject;
use super::watch::{Ended, Waited, Watch};
use crate::clock::Deadline;

/// Parses a request of the API server.
pub fn object(client: &ApiClient, json: &[u8]) -> Result<CsrObject, ApiError> {
    client.object(json)
}

/// The error for an answer with this status, which is no success.
pub fn refusal(client: &ApiClient, status: u16, body: &[u8]) -> ApiError {
    client.refusal(&Answer {
        status: StatusCode::from_u16(status).unwrap_or_default(),
        body: body.to_vec(),
    })
}

/// The result of a watch of `csr` with these lines. `None` if they decide nothing.
pub fn watch(
    client: &ApiClient,
    csr: &CsrObject,
    lines: &[u8],
) -> Result<Option<Waited>, ApiError> {
    let mut watch = Watch::new(client, csr, Deadline::after(std::time::Duration::MAX));
    for line in lines.split(|byte| *byte == b'\n') {
        match watch.take(line)? {
            Some(Ended::With(waited)) => return Ok(Some(waited)),
            Some(Ended::Cut(_) | Ended::Expired) => return Ok(None),
            None => {}
        }
    }
    Ok(None)
}
