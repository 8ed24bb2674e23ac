//! The authorities of endorsement key certificates.

use kubelet_attestation::ensure;
use x509_parser::certificate::{Validity, X509Certificate};
use x509_parser::extensions::ParsedExtension;
use x509_parser::time::ASN1Time;

use super::signature::verifies;
use super::{EK_CERTIFICATE, one};

/// A vendor's authority, with its subject: the two must agree with a certificate's issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) subject: Vec<u8>,
    pub(super) spki: Vec<u8>,
    pub(super) validity: Validity,
    /// The limit of authorities between it and an endorsement key.
    pub(super) path_len: Option<u32>,
}

impl Authority {
    /// One that an operator lists.
    pub(super) fn read(block: &pem::Pem) -> Result<Self, &'static str> {
        if block.tag() != "CERTIFICATE" {
            return Err("it has something else than certificates");
        }
        let certificate = one(block.contents())?;
        ensure!(certificate.is_ca(), "its certificate is of no authority");
        let usage = certificate.key_usage();
        let usage = usage.map_err(|_| "its certificate has an extension twice")?;
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err("its key signs no certificates");
        }
        let constraints = certificate.basic_constraints().ok().flatten();
        Ok(Self {
            subject: certificate.subject().as_raw().to_vec(),
            spki: certificate.public_key().raw.to_vec(),
            validity: certificate.validity().clone(),
            path_len: constraints.and_then(|constraints| constraints.value.path_len_constraint),
        })
    }

    /// Whether it signed `certificate`, and may, with `below` authorities between it and the
    /// endorsement key.
    pub(super) fn signed(
        &self,
        certificate: &X509Certificate<'_>,
        below: u32,
        now: ASN1Time,
    ) -> bool {
        self.validity.is_valid_at(now)
            && self.path_len.is_none_or(|most| below <= most)
            && self.subject == certificate.issuer().as_raw()
            && verifies(&self.spki, certificate).is_some()
    }
}

/// Checks that `authority`, which came with evidence and is named as the issuer, issued `certificate`
/// and may have; the error says what does not hold.
pub(super) fn issued(
    authority: &X509Certificate<'_>,
    certificate: &X509Certificate<'_>,
    below: u32,
    now: ASN1Time,
) -> Result<(), &'static str> {
    authority
        .extensions_map()
        .map_err(|_| "it has an extension twice")?;
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
                return Err("its extended key usage is not that of endorsement keys");
            }
        } else if extension.critical {
            return Err("it has an unknown critical extension");
        }
    }
    ensure!(is_authority, "it is not an authority's");
    ensure!(signs, "its key signs no certificates");
    if most.is_some_and(|most| below > most) {
        return Err("it may not have as many authorities below it");
    }
    ensure!(authority.validity().is_valid_at(now), "it is not valid now");
    verifies(authority.public_key().raw, certificate)
        .ok_or("it did not sign the certificate that names it")
}
