//! The certificates in the evidence, reduced to the fields that a chain needs.
//!
//! A parsed certificate can need 40 times as much memory as its DER. Each check of a signature waits for its turn, so a
//! request keeps no parsed certificate.

use kubelet_attestation::ensure;
use kubelet_attestation::errors::shortened;
use node_attestation_core::verifier::Expiring;
use x509_parser::certificate::{Validity, X509Certificate};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer as _;
use x509_parser::utils::format_serial;
use x509_parser::x509::{SubjectPublicKeyInfo, X509Name};

use super::EK_CERTIFICATE;
use super::extension::pass_over;
use super::name::{MAX_LEN, name, system_time, text};
use super::signature::{AuthorityKey, Signature};
use super::unfit::Unfit;

/// A certificate in the evidence. It contains no more bytes than two copies of the certificate's DER.
#[derive(Debug)]
pub(super) struct Link {
    /// The DER of the subject.
    pub(super) subject: Vec<u8>,
    /// The DER of the issuer's name.
    pub(super) issuer: Vec<u8>,
    /// The identifier of the certificate's key.
    pub(super) key_id: Option<Vec<u8>>,
    /// The identifier of the issuer's key.
    pub(super) issuer_key_id: Option<Vec<u8>>,
    pub(super) validity: Validity,
    pub(super) signature: Signature,
    /// The path length constraint, if the certificate is acceptable as a CA certificate.
    pub(super) path_len: Result<Option<u32>, Unfit>,
    serial: Vec<u8>,
    /// The DER of the key.
    spki: Vec<u8>,
}

impl Link {
    pub(super) fn of(certificate: &X509Certificate<'_>) -> Self {
        Self {
            subject: certificate.subject().as_raw().to_vec(),
            issuer: certificate.issuer().as_raw().to_vec(),
            key_id: key_id(certificate).map(<[u8]>::to_vec),
            issuer_key_id: issuer_key_id(certificate).map(<[u8]>::to_vec),
            validity: certificate.validity().clone(),
            signature: Signature::of(certificate),
            path_len: path_len(certificate),
            serial: certificate.raw_serial().to_vec(),
            spki: certificate.public_key().raw.to_vec(),
        }
    }

    /// The key of an authority.
    pub(super) fn key(&self) -> Result<AuthorityKey, Unfit> {
        let (_, spki) = SubjectPublicKeyInfo::from_der(&self.spki)
            .map_err(|_| Unfit::Key("malformed".to_owned()))?;
        AuthorityKey::read(&spki).map_err(Unfit::Key)
    }

    /// The subject, in quotation marks.
    pub(super) fn subject_name(&self) -> String {
        quoted(&self.subject)
    }

    /// The name of the issuer, in quotation marks.
    pub(super) fn issuer_name(&self) -> String {
        quoted(&self.issuer)
    }

    /// Returns the expiry time of the certificate. An endorsement key certificate rarely has a subject, so its issuer
    /// and serial number identify it.
    pub(super) fn end(&self) -> Expiring {
        let subject = parsed_name(&self.subject);
        let subject = subject.filter(|name| name.iter_attributes().next().is_some());
        Expiring {
            at: system_time(self.validity.not_after),
            subject: subject.map_or_else(|| self.serial_and_issuer(), |name| text(&name)),
        }
    }

    fn serial_and_issuer(&self) -> String {
        let serial = format_serial(&self.serial);
        let serial = shortened(&serial, MAX_LEN);
        let issuer = parsed_name(&self.issuer).map(|name| text(&name));
        format!("serial {serial} of {}", issuer.unwrap_or_default())
    }

    /// Returns the number of bytes that this value keeps in memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let ids = [&self.key_id, &self.issuer_key_id].into_iter().flatten();
        let parts = [&self.subject, &self.issuer, &self.serial, &self.spki];
        let parts = parts.into_iter().chain(ids).map(Vec::len);
        parts.sum::<usize>() + self.signature.bytes()
    }
}

/// Parses a name that is part of a parsed certificate.
fn parsed_name(der: &[u8]) -> Option<X509Name<'_>> {
    X509Name::from_der(der).ok().map(|(_, name)| name)
}

fn quoted(der: &[u8]) -> String {
    parsed_name(der).map_or_else(String::new, |parsed| name(&parsed))
}

/// Returns the path length constraint of an authority in the evidence.
fn path_len(authority: &X509Certificate<'_>) -> Result<Option<u32>, Unfit> {
    authority
        .extensions_map()
        .map_err(|_| Unfit::DuplicateExtension)?;
    let (mut is_authority, mut signs, mut most) = (false, false, None);
    for extension in authority.extensions() {
        let parsed = extension.parsed_extension();
        if let ParsedExtension::BasicConstraints(constraints) = parsed {
            is_authority = constraints.ca;
            most = constraints.path_len_constraint;
        } else if let ParsedExtension::KeyUsage(usage) = parsed {
            signs = usage.key_cert_sign();
        } else if let ParsedExtension::ExtendedKeyUsage(usage) = parsed {
            if !usage.any && !usage.other.contains(&EK_CERTIFICATE) {
                return Err(Unfit::UsageOfAuthority);
            }
        } else {
            pass_over(extension)?;
        }
    }
    ensure!(is_authority, Unfit::NotAnAuthority);
    ensure!(signs, Unfit::DoesNotSign);
    Ok(most)
}

/// The identifier of the certificate's key.
pub(super) fn key_id<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    let mut extensions = certificate.iter_extensions();
    extensions.find_map(|extension| {
        let ParsedExtension::SubjectKeyIdentifier(id) = extension.parsed_extension() else {
            return None;
        };
        Some(id.0)
    })
}

/// The identifier of the issuer's key in the certificate.
fn issuer_key_id<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    let mut extensions = certificate.iter_extensions();
    extensions.find_map(|extension| {
        let ParsedExtension::AuthorityKeyIdentifier(id) = extension.parsed_extension() else {
            return None;
        };
        id.key_identifier.as_ref().map(|id| id.0)
    })
}
