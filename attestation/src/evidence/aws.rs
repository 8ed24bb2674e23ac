//! Evidence of an AWS instance: its signed identity document, and a call of STS that only this
//! instance can sign, for this request alone.
//!
//! The proof is a signature over one fixed request (`POST /` of `GetCallerIdentity`, AWS Signature
//! Version 4) with the key binding in a signed header. Neither the request nor the binding travels:
//! both sides build them from the words here.

pub mod ber;
pub mod cms;

use serde::{Deserialize, Serialize};

use super::{Header, InvalidEvidence, InvalidField, from_json, to_json};

/// The body of the one request that is signed.
pub const STS_BODY: &str = "Action=GetCallerIdentity&Version=2011-06-15";
/// Its `accept`.
pub const STS_ACCEPT: &str = "application/json";
/// Its `content-type`.
pub const STS_CONTENT_TYPE: &str = "application/x-www-form-urlencoded; charset=utf-8";
/// The header that carries the key binding, in lower-case hexadecimal.
pub const BINDING_HEADER: &str = "x-kubelet-attestation";
/// The headers that are signed, as the signature lists them.
pub const SIGNED_HEADERS: &str =
    "accept;content-type;host;x-amz-date;x-amz-security-token;x-kubelet-attestation";
/// The service in the scope of the signature.
pub const STS_SERVICE: &str = "sts";

/// A session token is some hundred bytes; this is the most that is taken for one.
const MAX_SESSION_TOKEN_LEN: usize = 4 * 1024;
/// Longer than any region's name.
const MAX_REGION_LEN: usize = 32;

/// The evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AwsEvidence {
    /// The format, and the cluster that it is for.
    #[serde(flatten)]
    pub header: Header,
    /// The CMS message of the instance metadata's `rsa2048`, in base64 with its line ends, as it
    /// came.
    pub rsa2048: String,
    /// The signed call.
    pub sts: Proof,
}

/// A signature over the one request to STS, and what it takes to rebuild the rest.
///
/// Every field has its form: none can carry a header, a host or a path. `Debug` shows no credential; the serialization
/// has the session token, for STS.
#[derive(Debug, derive_more::Deref, Clone, PartialEq, Eq, Serialize)]
pub struct Proof(ProofFields);

/// The fields of a proof, in whatever form.
#[derive(derive_more::Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[debug("ProofFields({region}, {amz_date})")]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ProofFields {
    /// The region of the STS endpoint.
    pub region: String,
    /// The access key ID of the instance's temporary credentials.
    pub access_key_id: String,
    /// The session token: for the request to STS and for nothing else.
    pub session_token: String,
    /// The time of the signature: `YYYYMMDDTHHMMSSZ`.
    pub amz_date: String,
    /// The signature, in lower-case hexadecimal.
    pub signature: String,
}

impl Proof {
    /// A proof of these fields.
    ///
    /// # Errors
    ///
    /// A field does not have the form that AWS gives it.
    pub fn new(fields: ProofFields) -> Result<Self, InvalidField> {
        let checks = [
            (is_region(&fields.region), "sts.region is no region's name"),
            (
                is_temporary_key_id(&fields.access_key_id),
                "sts.accessKeyId is not that of temporary credentials",
            ),
            (
                is_session_token(&fields.session_token),
                "sts.sessionToken is no session token",
            ),
            (
                is_amz_date(&fields.amz_date),
                "sts.amzDate is no time of the form YYYYMMDDTHHMMSSZ",
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
    /// Reads evidence that has these fields, each once, and no others.
    ///
    /// # Errors
    ///
    /// It is too large, other JSON, or a field does not have its form.
    pub fn parse(evidence: &[u8]) -> Result<Self, InvalidEvidence> {
        let raw: RawEvidence = from_json(evidence)?;
        let sts = Proof::new(raw.sts)?;
        Ok(Self {
            header: Header::of(&raw.version, &raw.audience)?,
            rsa2048: raw.rsa2048,
            sts,
        })
    }

    /// The bytes that a request carries.
    pub fn to_json(&self) -> Vec<u8> {
        to_json(self)
    }
}

/// Whether this has the form of a region's name, `eu-west-1`: safe in a host name.
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
