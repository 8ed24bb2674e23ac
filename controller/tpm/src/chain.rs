//! Certificates of endorsement keys ("TCG EK Credential Profile", 2.5, section 3): who made a TPM.
//!
//! A genuine TPM may be anybody's. A certificate can be required in addition to
//! the trusted endorsement key, and never selects one.
//!
//! A required authority signed the certificate, or a certificate that leads to it: vendors publish the
//! authorities in between, which an operator lists, and TPMs that have one of their own keep its
//! certificate, which comes with the evidence. It is trusted for nothing but what the listed authority
//! vouches for. A path is followed upwards, never searched: each certificate is used once at most, so
//! the signatures to verify are bounded by what evidence may carry.

mod authority;
mod signature;

use std::time::SystemTime;

use kubelet_attestation::ensure;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::oid;
use x509_parser::extensions::{GeneralName, KeyUsage, ParsedExtension};
use x509_parser::oid_registry::{OID_EC_P256, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, Oid};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::time::ASN1Time;
use x509_parser::x509::SubjectPublicKeyInfo;

use self::authority::{Authority, issued};
use crate::denial::TpmDenial;
use crate::invalid_settings::InvalidTpmSettings;
use crate::public::{EndorsementKey, Key};

/// `tcg-kp-EKCertificate`.
const EK_CERTIFICATE: Oid<'static> = oid!(2.23.133.8.1);
/// `tcg-at-tpmManufacturer`.
const TPM_MANUFACTURER: Oid<'static> = oid!(2.23.133.2.1);
/// `id-RSAES-OAEP` (RFC 4055), as which some vendors name the key.
const RSAES_OAEP: Oid<'static> = oid!(1.2.840.113549.1.1.7);

/// The authorities one of which must have signed an endorsement key's certificate. Without any, no
/// certificate is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Authorities(Vec<Authority>);

impl Authorities {
    /// The authorities in these texts, each of one certificate (PEM) or more.
    ///
    /// # Errors
    ///
    /// A text is no certificate, or one is of no authority.
    pub(crate) fn new(texts: &[String]) -> Result<Self, InvalidTpmSettings> {
        let mut authorities = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let invalid = |rule| InvalidTpmSettings::new(format!("requireCA[{index}]: {rule}"));
            let blocks = pem::parse_many(text).map_err(|_| invalid("it is not PEM"))?;
            ensure!(!blocks.is_empty(), invalid("it has no certificate"));
            for block in &blocks {
                authorities.push(Authority::read(block).map_err(invalid)?);
            }
        }
        Ok(Self(authorities))
    }

    /// Checks that the certificate is one of the endorsement key, and that one of these signed it, or
    /// one of the `intermediates` that one of these signed, and so on.
    ///
    /// # Errors
    ///
    /// The denials that begin with `EndorsementCertificate`.
    pub(crate) fn require(
        &self,
        certificate: Option<&[u8]>,
        intermediates: &[Vec<u8>],
        key: &EndorsementKey,
        now: SystemTime,
    ) -> Result<(), TpmDenial> {
        if self.0.is_empty() {
            return Ok(());
        }
        let certificate = certificate.ok_or(TpmDenial::EndorsementCertificateMissing)?;
        let malformed = TpmDenial::EndorsementCertificateMalformed;
        let (padding, certificate) = X509Certificate::from_der(certificate)
            .map_err(|_| malformed("it is not one certificate in DER"))?;
        if !is_padding(padding) {
            return Err(malformed("it has something after its end"));
        }
        if key_of(certificate.public_key()).as_ref() != Some(key.key()) {
            return Err(TpmDenial::EndorsementCertificateOfAnotherKey);
        }
        check_profile(&certificate, key.key()).map_err(TpmDenial::EndorsementCertificateUnfit)?;
        let now = asn1_time(now).ok_or(TpmDenial::EndorsementCertificateNotValid)?;
        if !certificate.validity().is_valid_at(now) {
            return Err(TpmDenial::EndorsementCertificateNotValid);
        }
        let intermediates: Result<Vec<_>, _> = intermediates.iter().map(|der| one(der)).collect();
        let intermediates = intermediates
            .map_err(|_| malformed("an intermediate is not one certificate in DER"))?;
        self.follow(&certificate, &intermediates, now)
    }

    /// Follows the issuers of `certificate` up to one of these authorities.
    fn follow<'a>(
        &self,
        mut certificate: &'a X509Certificate<'a>,
        intermediates: &'a [X509Certificate<'a>],
        now: ASN1Time,
    ) -> Result<(), TpmDenial> {
        let mut unused: Vec<&X509Certificate<'_>> = intermediates.iter().collect();
        for below in 0.. {
            let signed = |authority: &Authority| authority.signed(certificate, below, now);
            if self.0.iter().any(signed) {
                return Ok(());
            }
            let mut refusal = TpmDenial::EndorsementCertificateUntrusted;
            let mut issuer = None;
            for (index, named) in unused.iter().enumerate() {
                if named.subject().as_raw() != certificate.issuer().as_raw() {
                    continue;
                }
                match issued(named, certificate, below, now) {
                    Ok(()) => issuer = issuer.or(Some(index)),
                    Err(detail) => {
                        refusal = TpmDenial::EndorsementCertificateIssuerUnfit(detail);
                    }
                }
            }
            let index = issuer.ok_or(refusal)?;
            certificate = unused.swap_remove(index);
        }
        Err(TpmDenial::EndorsementCertificateUntrusted)
    }
}

/// The certificate that these bytes are to the last.
fn one(der: &[u8]) -> Result<X509Certificate<'_>, &'static str> {
    match X509Certificate::from_der(der) {
        Ok((&[], certificate)) => Ok(certificate),
        Ok(_) | Err(_) => Err("it is not one certificate in DER"),
    }
}

/// Vendors fill the TPM's memory up behind the certificate.
fn is_padding(bytes: &[u8]) -> bool {
    [0x00, 0xff]
        .into_iter()
        .any(|filling| bytes.iter().all(|byte| *byte == filling))
}

fn asn1_time(time: SystemTime) -> Option<ASN1Time> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    ASN1Time::from_timestamp(i64::try_from(since.as_secs()).ok()?).ok()
}

/// The key of a certificate, where it is one that an endorsement key may be.
fn key_of(spki: &SubjectPublicKeyInfo<'_>) -> Option<Key> {
    let algorithm = &spki.algorithm.algorithm;
    if *algorithm == OID_PKCS1_RSAENCRYPTION || *algorithm == RSAES_OAEP {
        let (&[], key) =
            x509_parser::public_key::RSAPublicKey::from_der(&spki.subject_public_key.data).ok()?
        else {
            return None;
        };
        let modulus = key.modulus.strip_prefix(&[0]).unwrap_or(key.modulus);
        return (key.exponent == crate::public::EXPONENT)
            .then(|| Key::rsa(modulus).ok())
            .flatten();
    }
    let Ok(PublicKey::EC(point)) = spki.parsed() else {
        return None;
    };
    let curve = spki.algorithm.parameters.as_ref()?.as_oid().ok()?;
    if curve == OID_EC_P256 {
        Key::p256(point.data()).ok()
    } else if curve == OID_NIST_EC_P384 {
        Key::p384(point.data()).ok()
    } else {
        None
    }
}

/// Checks what the profile asks of a certificate; the error says what does not hold.
fn check_profile(certificate: &X509Certificate<'_>, key: &Key) -> Result<(), &'static str> {
    certificate
        .extensions_map()
        .map_err(|_| "it has an extension twice")?;
    let (mut for_endorsement, mut names_tpm) = (false, false);
    for extension in certificate.extensions() {
        let parsed = extension.parsed_extension();
        if let ParsedExtension::BasicConstraints(constraints) = parsed {
            ensure!(!constraints.ca, "it is an authority's");
        } else if let ParsedExtension::KeyUsage(usage) = parsed {
            if !is_for(*usage, key) {
                return Err("its key usage is not that of an endorsement key");
            }
        } else if let ParsedExtension::ExtendedKeyUsage(usage) = parsed {
            for_endorsement = usage.other.contains(&EK_CERTIFICATE);
        } else if let ParsedExtension::SubjectAlternativeName(names) = parsed {
            names_tpm = names.general_names.iter().any(names_a_tpm);
        } else if extension.critical {
            return Err("it has an unknown critical extension");
        }
    }
    if !for_endorsement {
        return Err("it does not have the extended key usage 2.23.133.8.1");
    }
    ensure!(names_tpm, "it does not name a TPM's manufacturer");
    Ok(())
}

/// An endorsement key decrypts: RSA a secret, ECC by agreeing on one.
fn is_for(usage: KeyUsage, key: &Key) -> bool {
    let fits = match key {
        Key::Rsa2048(_) => usage.key_encipherment(),
        Key::P256(_) | Key::P384(_) => usage.key_agreement(),
    };
    fits && !usage.key_cert_sign()
}

fn names_a_tpm(name: &GeneralName<'_>) -> bool {
    let GeneralName::DirectoryName(name) = name else {
        return false;
    };
    name.iter_attributes()
        .any(|attribute| *attribute.attr_type() == TPM_MANUFACTURER)
}

#[cfg(test)]
mod tests;
