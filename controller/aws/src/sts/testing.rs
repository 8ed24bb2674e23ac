//! Test access to the parser for STS responses.

use hyper::StatusCode;
use node_attestation_core::refusal::Refusal;

use super::answer;
use super::principal::{ProfileRole, is_instance};
use crate::denial::AwsDenial;
use crate::document::VerifiedDocument;
use crate::partition::Partition;

/// Whether the caller in a response with this status is the instance in `document`.
///
/// # Errors
///
/// The outer error is the reason why the response does not contain an identity.
pub fn caller(
    status: u16,
    body: &[u8],
    document: &VerifiedDocument,
    partition: Partition,
    roles: &[ProfileRole],
) -> Result<Result<(), AwsDenial>, Refusal> {
    let status = StatusCode::from_u16(status).unwrap_or_default();
    let identity = answer::read(status, body)?;
    Ok(is_instance(&identity, document, partition, roles))
}
