//! The content of a document.
//!
//! Each field that is used must be present once, in the form that AWS documents. Other fields are ignored, because AWS
//! has added fields before, and a new unused field must not prevent nodes from joining. For the same reason, the types
//! of other fields are not checked (`privateIp` is null for an instance without IPv4).

use std::time::SystemTime;

use kubelet_attestation::evidence::aws::is_region;
use kubelet_attestation::members::Members;
use serde_json::Value;

use super::VerifiedDocument;
use super::cms::VerifiedContent;
use crate::denial::AwsDenial;

/// The current version, and the version before 2017. The fields that are read here are the same in both versions.
const VERSIONS: [&str; 2] = ["2017-09-30", "2010-08-31"];
/// The maximum length of a zone, which is longer than any zone name.
const MAX_ZONE_LEN: usize = 64;

fn malformed(detail: impl Into<String>) -> AwsDenial {
    AwsDenial::DocumentMalformed(detail.into())
}

/// Returns the region in a document whose signature has not been verified yet.
pub(super) fn claimed_region(content: &[u8]) -> Result<String, AwsDenial> {
    Object::parse(content)?.region()
}

/// Parses a verified document. Its version must be a known version, or one of `extra_versions`.
pub(super) fn parse(
    content: &VerifiedContent<'_>,
    extra_versions: &[String],
) -> Result<VerifiedDocument, AwsDenial> {
    let object = Object::parse(content.bytes())?;
    let version = object.string("version")?;
    let is_extra = extra_versions.iter().any(|extra| extra == version);
    if !VERSIONS.contains(&version) && !is_extra {
        return Err(malformed("its version is unknown"));
    }
    let region = object.region()?;
    let zone = object.checked("availabilityZone", |zone| is_zone_of(zone, &region))?;
    Ok(VerifiedDocument {
        account: object.checked("accountId", is_account)?.to_owned(),
        availability_zone: zone.to_owned(),
        instance: object.checked("instanceId", is_instance)?.to_owned(),
        pending_time: object.pending_time()?,
        digest: content.digest(),
        region,
    })
}

/// A JSON object without duplicate names.
struct Object(Members<Value>);

impl Object {
    fn parse(content: &[u8]) -> Result<Self, AwsDenial> {
        // The error message could quote the content, so only the position of the error is kept.
        serde_json::from_slice(content).map(Self).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            malformed(format!(
                "not a JSON object with unique names, line {line} column {column}"
            ))
        })
    }

    fn string(&self, name: &'static str) -> Result<&str, AwsDenial> {
        match self.0.0.get(name) {
            None => Err(malformed(format!("{name} is missing"))),
            Some(Value::String(value)) => Ok(value),
            Some(_) => Err(malformed(format!("{name} is not a string"))),
        }
    }

    fn checked(
        &self,
        name: &'static str,
        has_form: impl Fn(&str) -> bool,
    ) -> Result<&str, AwsDenial> {
        let value = self.string(name)?;
        if has_form(value) {
            Ok(value)
        } else {
            Err(malformed(format!("{name} has an invalid form")))
        }
    }

    fn region(&self) -> Result<String, AwsDenial> {
        self.checked("region", is_region).map(str::to_owned)
    }

    fn pending_time(&self) -> Result<SystemTime, AwsDenial> {
        humantime::parse_rfc3339(self.string("pendingTime")?)
            .map_err(|_| malformed("pendingTime has an invalid format"))
    }
}

pub(crate) fn is_account(account: &str) -> bool {
    account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit())
}

pub(crate) fn is_instance(instance: &str) -> bool {
    instance.strip_prefix("i-").is_some_and(|id| {
        (8..=17).contains(&id.len()) && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Accepts `us-west-2a`, a local zone such as `us-west-2-lax-1a`, and a Wavelength zone such as
/// `us-east-1-wl1-bos-wlz-1`.
pub(crate) fn is_zone_of(zone: &str, region: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    zone.len() <= MAX_ZONE_LEN
        && match zone.strip_prefix(region).map(str::as_bytes) {
            Some([letter]) => letter.is_ascii_lowercase(),
            Some([b'-', rest @ ..]) => rest.iter().copied().all(allowed),
            _ => false,
        }
}
