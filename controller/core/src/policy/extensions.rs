//! The extensions in the certification request.

use kubelet_attestation::csr::oid;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::names::ProviderId;
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::AnyRef;
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::BasicConstraints;

use crate::refusal::Denial;

/// Returns the claimed provider ID, which must be the only extension.
///
/// Other extensions are rejected, because the requester expects them in the certificate, but the certificate would not
/// contain them.
pub(crate) fn provider_id(csr: &CertificationRequest) -> Result<ProviderId, Denial> {
    for extension in csr.extensions() {
        accepted(extension)?;
    }
    if csr.extension(oid::PROVIDER_ID).is_none() {
        return Err(Denial::ProviderIdMissing);
    }
    csr.claimed_provider_id().ok_or(Denial::ProviderIdMalformed)
}

/// Returns the value of the subject alternative names, which must be the only extension.
pub(crate) fn alternative_names(csr: &CertificationRequest) -> Result<&[u8], Denial> {
    let mut names = None;
    for extension in csr.extensions() {
        match extension.extn_id {
            oid @ oid::SUBJECT_ALT_NAME if extension.critical => {
                return Err(Denial::CriticalExtension(oid));
            }
            oid::SUBJECT_ALT_NAME => names = Some(extension.extn_value.as_bytes()),
            oid @ oid::PROVIDER_ID => return Err(Denial::UnknownExtension(oid)),
            _ => accepted(extension)?,
        }
    }
    names.ok_or(Denial::ServingNamesMissing)
}

/// Checks that the request contains no extensions, as in a client certificate request from a kubelet without the
/// plugin.
pub(crate) fn none(csr: &CertificationRequest) -> Result<(), Denial> {
    match csr.extensions() {
        [] => Ok(()),
        [first, ..] => {
            accepted(first)?;
            Err(Denial::UnknownExtension(first.extn_id))
        }
    }
}

fn accepted(extension: &Extension) -> Result<(), Denial> {
    let value = extension.extn_value.as_bytes();
    match extension.extn_id {
        oid::SUBJECT_ALT_NAME => Err(Denial::SubjectAltNameRequested(first_name(value))),
        oid::BASIC_CONSTRAINTS => Err(Denial::BasicConstraintsRequested {
            // Another parser could interpret malformed constraints as CA constraints.
            ca: BasicConstraints::from_der(value).map_or(true, |constraints| constraints.ca),
        }),
        oid::KEY_USAGE | oid::EXTENDED_KEY_USAGE => Err(Denial::UsageExtensionRequested),
        oid if extension.critical => Err(Denial::CriticalExtension(oid)),
        oid::PROVIDER_ID => Ok(()),
        oid => Err(Denial::UnknownExtension(oid)),
    }
}

/// Returns the type of the first `GeneralName` (RFC 5280 section 4.2.1.6): its context-specific tag.
fn first_name(value: &[u8]) -> &'static str {
    let names = AnyRef::from_der(value).ok();
    let first = names.and_then(|names| names.value().first().copied());
    match first.map(|tag| tag & 0b1101_1111) {
        Some(0x80) => "otherName",
        Some(0x81) => "email",
        Some(0x82) => "DNS",
        Some(0x83) => "x400Address",
        Some(0x84) => "directoryName",
        Some(0x85) => "ediPartyName",
        Some(0x86) => "URI",
        Some(0x87) => "IP",
        Some(0x88) => "registeredID",
        _ => "unknown",
    }
}
