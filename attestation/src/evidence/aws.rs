//! Evidence of an AWS instance: its signed identity document, and a call of STS that only this
//! instance can sign, for this request alone.
//!
//! The proof is a signature over one fixed request (`POST /` of `GetCallerIdentity`, AWS Signature
//! Version 4) with the key binding in a signed header. Neither the request nor the binding travels:
//! both sides build them from the words here.

pub mod ber;

use std::fmt;

use serde::Deserialize;

use super::{Header, InvalidEvidence, within_limit};

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

/// What is wrong with a field of the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidProof {
    /// Not a region's name.
    #[error("sts.region is no region's name")]
    Region,
    /// Not the access key ID of temporary credentials.
    #[error("sts.accessKeyId is not that of temporary credentials")]
    AccessKeyId,
    /// Not a session token.
    #[error("sts.sessionToken is no session token")]
    SessionToken,
    /// Not a time.
    #[error("sts.amzDate is no time of the form YYYYMMDDTHHMMSSZ")]
    AmzDate,
    /// Not a signature.
    #[error("sts.signature is not 64 lower-case hexadecimal digits")]
    Signature,
}

/// The evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsEvidence {
    /// The format, and the cluster that it is for.
    pub header: Header,
    /// The CMS message of the instance metadata's `rsa2048`, in base64 with its line ends, as it
    /// came.
    pub rsa2048: String,
    /// The signed call.
    pub sts: Proof,
}

/// A signature over the one request to STS, and what it takes to rebuild the rest.
///
/// Every field has its form: none can carry a header, a host or a path. `Debug` shows no credential.
#[derive(Clone, PartialEq, Eq)]
pub struct Proof {
    region: String,
    access_key_id: String,
    session_token: String,
    amz_date: String,
    signature: String,
}

impl Proof {
    /// A proof of these fields.
    ///
    /// # Errors
    ///
    /// A field does not have the form that AWS gives it.
    pub fn new(
        region: &str,
        access_key_id: &str,
        session_token: &str,
        amz_date: &str,
        signature: &str,
    ) -> Result<Self, InvalidProof> {
        let checks = [
            (is_region(region), InvalidProof::Region),
            (
                is_temporary_key_id(access_key_id),
                InvalidProof::AccessKeyId,
            ),
            (is_session_token(session_token), InvalidProof::SessionToken),
            (is_amz_date(amz_date), InvalidProof::AmzDate),
            (is_signature(signature), InvalidProof::Signature),
        ];
        if let Some((_, error)) = checks.into_iter().find(|(valid, _)| !valid) {
            return Err(error);
        }
        Ok(Self {
            region: region.to_owned(),
            access_key_id: access_key_id.to_owned(),
            session_token: session_token.to_owned(),
            amz_date: amz_date.to_owned(),
            signature: signature.to_owned(),
        })
    }

    /// The region of the STS endpoint.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The access key ID of the instance's temporary credentials.
    pub fn access_key_id(&self) -> &str {
        &self.access_key_id
    }

    /// The session token: for the request to STS and for nothing else.
    pub fn session_token(&self) -> &str {
        &self.session_token
    }

    /// When the call was signed: `YYYYMMDDTHHMMSSZ`.
    pub fn amz_date(&self) -> &str {
        &self.amz_date
    }

    /// The signature, in lower-case hexadecimal.
    pub fn signature(&self) -> &str {
        &self.signature
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof")
            .field("region", &self.region)
            .field("amz_date", &self.amz_date)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEvidence {
    version: String,
    audience: String,
    rsa2048: String,
    sts: RawProof,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawProof {
    region: String,
    access_key_id: String,
    session_token: String,
    amz_date: String,
    signature: String,
}

impl AwsEvidence {
    /// Reads evidence that has these fields, each once, and no others.
    ///
    /// # Errors
    ///
    /// It is too large, other JSON, or a field does not have its form.
    pub fn parse(evidence: &[u8]) -> Result<Self, InvalidEvidence> {
        within_limit(evidence)?;
        let raw: RawEvidence = serde_json::from_slice(evidence).map_err(InvalidEvidence::Json)?;
        let sts = &raw.sts;
        let sts = Proof::new(
            &sts.region,
            &sts.access_key_id,
            &sts.session_token,
            &sts.amz_date,
            &sts.signature,
        )?;
        let header = Header::of(&raw.version, &raw.audience)?;
        Ok(Self {
            header,
            rsa2048: raw.rsa2048,
            sts,
        })
    }

    /// The bytes that a request carries.
    pub fn to_json(&self) -> Vec<u8> {
        let sts = &self.sts;
        serde_json::json!({
            "version": self.header.version.as_str(),
            "audience": self.header.audience.as_str(),
            "rsa2048": self.rsa2048,
            "sts": {
                "region": sts.region,
                "accessKeyId": sts.access_key_id,
                "sessionToken": sts.session_token,
                "amzDate": sts.amz_date,
                "signature": sts.signature,
            },
        })
        .to_string()
        .into_bytes()
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
    id.len() == 20
        && id.strip_prefix("ASIA").is_some_and(|rest| {
            rest.bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
        })
}

fn is_session_token(token: &str) -> bool {
    !token.is_empty()
        && token.len() <= MAX_SESSION_TOKEN_LEN
        && token
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
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
    signature.len() == 64
        && signature
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
