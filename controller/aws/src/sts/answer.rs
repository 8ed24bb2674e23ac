//! STS responses, and their meaning.
//!
//! A response is a denial only if it contradicts the evidence, and only with one of the listed codes. Every other
//! response, from STS or from a server between the controller and STS, is an outage. A request recovers from an outage
//! without action.

use hyper::StatusCode;
use node_attestation_core::refusal::{Failure, Refusal};
use node_attestation_runtime::metrics::CloudResult;
use serde::Deserialize;

use super::outage::StsOutage;
use crate::denial::AwsDenial;

/// Codes that STS returns if the signature or the credentials are not valid.
///
/// From "Common Errors" of the STS API reference, with the codes that SDKs add.
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

/// Codes that STS returns if the credentials or the signature are too old.
const EXPIRED: [&str; 4] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "RequestTimeTooSkewed",
];

/// Codes that STS returns if it throttles the calls.
const LIMITED: [&str; 4] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
];

/// The beginnings of messages that mean an age problem, although the code is in [`REFUSED`].
const EXPIRED_WORDS: [&str; 2] = ["Signature expired", "Signature not yet current"];

/// The maximum length of an error code. All known codes are shorter.
const MAX_CODE_LEN: usize = 64;

/// The caller that STS reports.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CallerIdentity {
    /// The account.
    pub(super) account: String,
    /// The ARN of the principal.
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
    get_caller_identity_result: CallerIdentity,
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

/// Parses a response: an identity, or the reason why there is none.
///
/// Unknown fields are ignored. A response with a duplicate field is invalid.
///
/// # Errors
///
/// [`AwsDenial::CallerRefused`], [`Failure::EvidenceExpired`], or an outage.
pub(super) fn read(status: StatusCode, body: &[u8]) -> Result<CallerIdentity, Refusal> {
    if status == StatusCode::OK {
        let answer: Answer =
            serde_json::from_slice(body).map_err(|_| StsOutage::Undecodable(status))?;
        return Ok(answer
            .get_caller_identity_response
            .get_caller_identity_result);
    }
    // STS rejects evidence with status 400, 401 or 403. Every other status is not a decision about the evidence.
    if !matches!(status.as_u16(), 400 | 401 | 403) {
        return Err(StsOutage::Status(status).into());
    }
    let fault = fault(body).ok_or(StsOutage::Undecodable(status))?;
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
        return StsOutage::Code(status, shown(&fault.code)).into();
    };
    let is_about_age = |words: &&str| fault.message.starts_with(words);
    if EXPIRED_WORDS.iter().any(is_about_age) {
        return Failure::EvidenceExpired.into();
    }
    AwsDenial::CallerRefused((*code).to_owned()).into()
}

/// The error, either in JSON, as requested, or in XML, the default format of the query protocol.
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

/// The text of an XML element that occurs exactly once. It is used only for errors, so it never admits a node.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, rest) = rest.split_once(&format!("</{name}>"))?;
    (!text.contains('<') && !rest.contains(&format!("<{name}>"))).then_some(text.trim())
}

/// The code, if it is safe to log. Only letters and dots are accepted, so that credentials are never logged.
fn shown(code: &str) -> String {
    let is_code = code.len() <= MAX_CODE_LEN
        && code.starts_with(|c: char| c.is_ascii_uppercase())
        && code.chars().all(|c| c.is_ascii_alphabetic() || c == '.');
    if is_code {
        code
    } else {
        "an invalid error code"
    }
    .to_owned()
}
