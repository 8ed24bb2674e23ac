//! The authorities for endorsement key certificates.

use kubelet_attestation::ensure;
use x509_parser::certificate::{Validity, X509Certificate};
use x509_parser::extensions::ParsedExtension;
use x509_parser::time::ASN1Time;

use super::EK_CERTIFICATE;
use super::extension::pass_over;
use super::name::{date, name, text};
use super::signature::{AuthorityKey, NotSigned, SUPPORTED};

/// A vendor's authority. Its subject must match the issuer of a certificate byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) subject: Vec<u8>,
    /// The subject as text.
    pub(super) name: String,
    pub(super) key: AuthorityKey,
    pub(super) validity: Validity,
    /// The maximum number of authorities between this authority and an endorsement key.
    pub(super) path_len: Option<u32>,
}

/// The reason why an authority did not issue a certificate that names it as the issuer. Reasons of later checks are
/// greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(super) enum NotIssued {
    /// The authority did not sign the certificate.
    #[error("{0}")]
    NotSigned(NotSigned),
    /// The authority's certificate is not valid yet.
    #[error("its own certificate is valid from {0}")]
    NotYetValid(String),
    /// The authority's certificate has expired.
    #[error("its own certificate expired on {0}")]
    Expired(String),
    /// The authority's path length constraint does not permit this number of authorities below it.
    #[error("its path length permits {most} authorities below it, and there are {below}")]
    PathLength { most: u32, below: u32 },
}

/// The time for which certificates are checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) now: ASN1Time,
    /// Whether expired certificates are accepted.
    pub(super) accepts_expired: bool,
}

impl At {
    /// Whether a certificate is refused because of its end.
    pub(super) fn has_ended(self, validity: &Validity) -> bool {
        !self.accepts_expired && self.now > validity.not_after
    }
}

impl Authority {
    /// Parses the certificate of an authority that an operator listed.
    pub(super) fn read(block: &pem::Pem) -> Result<Self, String> {
        if block.tag() != "CERTIFICATE" {
            return Err("it has blocks other than certificates".to_owned());
        }
        let certificate = super::one(block.contents())?;
        ensure!(
            certificate.is_ca(),
            "its certificate is not a CA certificate".to_owned()
        );
        let usage = certificate.key_usage();
        let usage = usage.map_err(|_| "its certificate has an extension twice")?;
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err("its key usage does not allow it to sign certificates".to_owned());
        }
        let key = AuthorityKey::read(certificate.public_key()).map_err(|kind| {
            let name = name(certificate.subject());
            format!("the key of {name} is {kind}, and can verify no signature: {SUPPORTED}")
        })?;
        let constraints = certificate.basic_constraints().ok().flatten();
        Ok(Self {
            subject: certificate.subject().as_raw().to_vec(),
            name: text(certificate.subject()),
            key,
            validity: certificate.validity().clone(),
            path_len: constraints.and_then(|constraints| constraints.value.path_len_constraint),
        })
    }

    /// Checks that this authority signed `certificate` and was allowed to, with `below` authorities between it and the
    /// endorsement key. `None` if the certificate names a different issuer.
    pub(super) fn issued(
        &self,
        certificate: &X509Certificate<'_>,
        below: u32,
        at: At,
    ) -> Option<Result<(), NotIssued>> {
        if self.subject != certificate.issuer().as_raw() {
            return None;
        }
        let signed = self.key.signed(certificate).map_err(NotIssued::NotSigned);
        let valid = || valid_at(&self.validity, at);
        let permitted = || permits(self.path_len, below);
        Some(signed.and_then(|()| valid()).and_then(|()| permitted()))
    }
}

/// Checks that `authority`, which is in the evidence and named as the issuer, signed `certificate` and was allowed to.
/// The error describes the violated rule.
pub(super) fn issued(
    authority: &X509Certificate<'_>,
    certificate: &X509Certificate<'_>,
    below: u32,
    at: At,
) -> Result<(), String> {
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
                return Err("its extended key usage is not allowed for endorsement keys".to_owned());
            }
        } else {
            pass_over(extension)?;
        }
    }
    ensure!(is_authority, "it is not a CA certificate".to_owned());
    ensure!(
        signs,
        "its key usage does not allow it to sign certificates".to_owned()
    );
    let not_issued = |why: NotIssued| why.to_string();
    permits(most, below).map_err(not_issued)?;
    valid_at(authority.validity(), at).map_err(not_issued)?;
    let key = AuthorityKey::read(authority.public_key())
        .map_err(|kind| format!("its key is {kind}: {SUPPORTED}"))?;
    key.signed(certificate).map_err(|why| why.to_string())
}

fn permits(most: Option<u32>, below: u32) -> Result<(), NotIssued> {
    let most = most.filter(|most| below > *most);
    most.map_or(Ok(()), |most| Err(NotIssued::PathLength { most, below }))
}

/// Checks the validity of an authority's certificate.
fn valid_at(validity: &Validity, at: At) -> Result<(), NotIssued> {
    if at.now < validity.not_before {
        return Err(NotIssued::NotYetValid(date(validity.not_before)));
    }
    if at.has_ended(validity) {
        return Err(NotIssued::Expired(date(validity.not_after)));
    }
    Ok(())
}
