//! Answers of STS, and their meaning.
//!
//! Only what contradicts the evidence is a denial: the codes are listed. Whatever else STS says, and
//! whatever says something in its place, is an outage, from which a request recovers by itself.

use hyper::StatusCode;
use node_attestation_core::refusal::{Failure, Refusal};
use node_attestation_runtime::metrics::CloudResult;
use serde::Deserialize;

use super::outage::Outage;
use crate::denial::AwsDenial;

/// Codes by which STS says that the call was not signed so, or not with valid credentials.
///
/// "Common Errors" of the STS API reference, and what SDKs know beside them.
const REFUSED: [&str; 9] = [
    "AuthFailure",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];

/// Codes by which STS says that credentials or signature are too old.
const EXPIRED: [&str; 4] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "RequestTimeTooSkewed",
];

/// Codes by which STS says that it is asked too often.
const LIMITED: [&str; 4] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
];

/// The beginning of the message if one of [`REFUSED`] is about age.
const EXPIRED_WORDS: [&str; 2] = ["Signature expired", "Signature not yet current"];

/// Longer than any code of an error.
const MAX_CODE_LEN: usize = 64;

/// The caller that STS reports.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Identity {
    /// The account.
    pub(super) account: String,
    /// The principal.
    pub(super) arn: String,
    /// The principal's unique ID.
    pub(super) user_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    get_caller_identity_response: Response,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Response {
    get_caller_identity_result: Identity,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    error: Fault,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Fault {
    code: String,
    #[serde(default)]
    message: String,
}

/// Reads an answer: one identity, or why there is none.
///
/// Fields that are unknown are passed over, a field that is there twice is no answer.
///
/// # Errors
///
/// [`AwsDenial::CallerRefused`], [`Failure::EvidenceExpired`], or an outage.
pub(super) fn read(status: StatusCode, body: &[u8]) -> Result<Identity, Refusal> {
    if status == StatusCode::OK {
        let answer: Answer =
            serde_json::from_slice(body).map_err(|_| Outage::Undecodable(status))?;
        return Ok(answer
            .get_caller_identity_response
            .get_caller_identity_result);
    }
    // STS refuses with 400 or 403; what else comes is not its word on the evidence.
    if !matches!(status.as_u16(), 400 | 401 | 403) {
        return Err(Outage::Status(status).into());
    }
    let fault = fault(body).ok_or(Outage::Undecodable(status))?;
    Err(meaning(status, &fault))
}

/// The result of a call, for the metric.
pub(super) fn result(status: StatusCode, body: &[u8]) -> CloudResult {
    if status == StatusCode::OK {
        return CloudResult::Ok;
    }
    if status == StatusCode::TOO_MANY_REQUESTS {
        return CloudResult::Throttled;
    }
    let code = fault(body).map(|fault| fault.code);
    let is_one_of = |codes: &[&str]| code.as_deref().is_some_and(|code| codes.contains(&code));
    if is_one_of(&LIMITED) {
        CloudResult::Throttled
    } else if is_one_of(&REFUSED) || is_one_of(&EXPIRED) {
        CloudResult::Refused
    } else {
        CloudResult::Failed
    }
}

fn meaning(status: StatusCode, fault: &Fault) -> Refusal {
    if EXPIRED.contains(&fault.code.as_str()) {
        return Failure::EvidenceExpired.into();
    }
    let Some(code) = REFUSED.iter().find(|code| **code == fault.code) else {
        return Outage::Code(status, shown(&fault.code)).into();
    };
    let is_about_age = |words: &&str| fault.message.starts_with(words);
    if EXPIRED_WORDS.iter().any(is_about_age) {
        return Failure::EvidenceExpired.into();
    }
    AwsDenial::CallerRefused((*code).to_owned()).into()
}

/// The error, in JSON as it was asked for, or in XML, which the query protocol falls back to.
fn fault(body: &[u8]) -> Option<Fault> {
    if let Ok(Failed { error }) = serde_json::from_slice(body) {
        return Some(error);
    }
    let text = std::str::from_utf8(body).ok()?;
    Some(Fault {
        code: element(text, "Code")?.to_owned(),
        message: element(text, "Message").unwrap_or_default().to_owned(),
    })
}

/// The text of an XML element that is there once. This is for errors alone: nobody is let in by it.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, rest) = rest.split_once(&format!("</{name}>"))?;
    (!text.contains('<') && !rest.contains(&format!("<{name}>"))).then_some(text.trim())
}

/// A code as a log can show it: letters alone, so that it is no credential that is repeated.
fn shown(code: &str) -> String {
    let is_code = code.len() <= MAX_CODE_LEN
        && code.starts_with(|c: char| c.is_ascii_uppercase())
        && code.chars().all(|c| c.is_ascii_alphabetic() || c == '.');
    if is_code { code } else { "an unreadable code" }.to_owned()
}
