//! Evidence of an AWS instance: its signed identity document, and an STS call that only this instance can sign, for
//! only this request.
//!
//! The second part of the evidence is a signature over one fixed request (`POST /` of `GetCallerIdentity`, AWS
//! Signature Version 4) with the key binding in a signed header. The evidence contains neither the request nor the
//! binding: the node and the verifier build both from the constants in this module.

pub mod ber;
pub mod cms;

use serde::{Deserialize, Serialize};

use super::{Header, InvalidEvidence, InvalidField, from_json, to_json};

/// The body of the signed request.
pub const STS_BODY: &str = "Action=GetCallerIdentity&Version=2011-06-15";
/// The `accept` header of the signed request.
pub const STS_ACCEPT: &str = "application/json";
/// The `content-type` header of the signed request.
pub const STS_CONTENT_TYPE: &str = "application/x-www-form-urlencoded; charset=utf-8";
/// The header with the key binding, in lower-case hexadecimal.
pub const BINDING_HEADER: &str = "x-kubelet-attestation";
/// The list of signed headers in the signature.
pub const SIGNED_HEADERS: &str =
    "accept;content-type;host;x-amz-date;x-amz-security-token;x-kubelet-attestation";
/// The service in the signature's scope.
pub const STS_SERVICE: &str = "sts";

/// The maximum length of a session token. Session tokens from AWS are several hundred bytes long.
const MAX_SESSION_TOKEN_LEN: usize = 4 * 1024;
/// The maximum length of a region name. The limit is longer than any existing name.
const MAX_REGION_LEN: usize = 32;

/// The evidence of an AWS instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AwsEvidence {
    /// The version, and the cluster for which the evidence was created.
    #[serde(flatten)]
    pub header: Header,
    /// The CMS message from `rsa2048` of the instance metadata: base64 with the original line breaks.
    pub rsa2048: String,
    /// The signed STS call.
    pub sts: Proof,
}

/// A signature over the fixed STS request, and the fields that the verifier needs to rebuild the request.
///
/// The syntax of each field is checked, because a field must not add a header, a host or a path to the request. `Debug`
/// does not show credentials. The serialization contains the session token, which STS requires.
#[derive(Debug, derive_more::Deref, Clone, PartialEq, Eq, Serialize)]
pub struct Proof(ProofFields);

/// The fields of a proof, before their syntax is checked.
#[derive(derive_more::Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[debug("ProofFields({region}, {amz_date})")]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ProofFields {
    /// The region of the STS endpoint.
    pub region: String,
    /// The access key ID of the instance's temporary credentials.
    pub access_key_id: String,
    /// The session token, used only for the STS request.
    pub session_token: String,
    /// The time of the signature: `YYYYMMDDTHHMMSSZ`.
    pub amz_date: String,
    /// The signature, in lower-case hexadecimal.
    pub signature: String,
}

impl Proof {
    /// Checks the fields, and creates a proof from them.
    ///
    /// # Errors
    ///
    /// Returns an error if a field does not have the syntax that AWS uses.
    pub fn new(fields: ProofFields) -> Result<Self, InvalidField> {
        let checks = [
            (
                is_region(&fields.region),
                "sts.region is not a valid region name",
            ),
            (
                is_temporary_key_id(&fields.access_key_id),
                "sts.accessKeyId does not belong to temporary credentials",
            ),
            (
                is_session_token(&fields.session_token),
                "sts.sessionToken is not a valid session token",
            ),
            (
                is_amz_date(&fields.amz_date),
                "invalid sts.amzDate (want YYYYMMDDTHHMMSSZ)",
            ),
            (
                is_signature(&fields.signature),
                "sts.signature is not 64 lower-case hexadecimal digits",
            ),
        ];
        match checks.into_iter().find(|(valid, _)| !valid) {
            Some((_, rule)) => Err(InvalidField::new(rule)),
            None => Ok(Self(fields)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEvidence {
    version: String,
    audience: String,
    rsa2048: String,
    sts: ProofFields,
}

impl AwsEvidence {
    /// Parses evidence that has exactly these fields, each once.
    ///
    /// # Errors
    ///
    /// Returns an error if the evidence is too large, is not this JSON object, or has a malformed field.
    pub fn parse(evidence: &[u8]) -> Result<Self, InvalidEvidence> {
        let raw: RawEvidence = from_json(evidence)?;
        let sts = Proof::new(raw.sts)?;
        Ok(Self {
            header: Header::of(&raw.version, &raw.audience)?,
            rsa2048: raw.rsa2048,
            sts,
        })
    }

    /// The encoding of the evidence for a request.
    pub fn to_json(&self) -> Vec<u8> {
        to_json(self)
    }
}

/// Whether the text has the syntax of a region name, such as `eu-west-1`. Text with this syntax is safe in a host
/// name.
pub fn is_region(region: &str) -> bool {
    let mut parts = region.split('-');
    let letters = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase());
    let number =
        |part: &str| matches!(part.len(), 1 | 2) && part.bytes().all(|b| b.is_ascii_digit());
    region.len() <= MAX_REGION_LEN
        && region.split('-').count() >= 3
        && parts.next_back().is_some_and(number)
        && parts.all(letters)
}

fn is_temporary_key_id(id: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit();
    id.len() == 20 && id.starts_with("ASIA") && id.bytes().all(allowed)
}

fn is_session_token(token: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
    (1..=MAX_SESSION_TOKEN_LEN).contains(&token.len()) && token.bytes().all(allowed)
}

fn is_amz_date(date: &str) -> bool {
    date.len() == 16
        && date.bytes().enumerate().all(|(at, b)| match at {
            8 => b == b'T',
            15 => b == b'Z',
            _ => b.is_ascii_digit(),
        })
}

fn is_signature(signature: &str) -> bool {
    let allowed = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    signature.len() == 64 && signature.bytes().all(allowed)
}

#[cfg(test)]
mod tests;
