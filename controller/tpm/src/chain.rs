//! Certificates of endorsement keys ("TCG EK Credential Profile", 2.5, section 3): who made a TPM.
//!
//! That a TPM is genuine says nothing of whose it is. A certificate can be required in addition to
//! the trusted endorsement key, and never selects one.
//!
//! A required authority signs the certificate itself: an operator lists the authorities in between,
//! as vendors publish them. So there is no path to build, and one signature to verify.

use std::time::SystemTime;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1,
    ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, VerificationAlgorithm,
};
use node_attestation_controller::refusal::TpmDenial;
use x509_parser::certificate::{TbsCertificate, X509Certificate};
use x509_parser::der_parser::oid;
use x509_parser::extensions::{GeneralName, KeyUsage, ParsedExtension};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION,
    OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA,
    OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384, Oid,
};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::policy::InvalidTpmSettings;
use crate::public::{EndorsementKey, Key};

/// `tcg-kp-EKCertificate`.
const EK_CERTIFICATE: Oid<'static> = oid!(2.23.133.8.1);
/// `tcg-at-tpmManufacturer`.
const TPM_MANUFACTURER: Oid<'static> = oid!(2.23.133.2.1);
/// `id-RSAES-OAEP` (RFC 4055), as which some vendors name the key.
const RSAES_OAEP: Oid<'static> = oid!(1.2.840.113549.1.1.7);

/// A vendor's authority, with its subject: the two must agree with a certificate's issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Authority {
    subject: Vec<u8>,
    spki: Vec<u8>,
    validity: Validity,
}

/// In seconds of Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Validity {
    not_before: i64,
    not_after: i64,
}

impl Validity {
    fn of(certificate: &TbsCertificate<'_>) -> Self {
        let validity = certificate.validity();
        Self {
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
        }
    }

    fn contains(self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// The authorities one of which must have signed an endorsement key's certificate. Without any, no
/// certificate is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Authorities(Vec<Authority>);

impl Authorities {
    /// The authorities in these texts, each of one certificate (PEM) or more.
    ///
    /// # Errors
    ///
    /// [`InvalidTpmSettings::Authority`]: a text is no certificate, or one is of no authority.
    pub(crate) fn new(texts: &[String]) -> Result<Self, InvalidTpmSettings> {
        let mut authorities = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let invalid = |detail| InvalidTpmSettings::Authority { index, detail };
            let blocks = pem::parse_many(text).map_err(|_| invalid("it is not PEM"))?;
            if blocks.is_empty() {
                return Err(invalid("it has no certificate"));
            }
            for block in &blocks {
                authorities.push(Authority::read(block).map_err(invalid)?);
            }
        }
        Ok(Self(authorities))
    }

    /// Checks that the certificate is one of the endorsement key, and that one of these signed it.
    ///
    /// # Errors
    ///
    /// The denials that begin with `EndorsementCertificate`.
    pub(crate) fn require(
        &self,
        certificate: Option<&[u8]>,
        key: &EndorsementKey,
        now: SystemTime,
    ) -> Result<(), TpmDenial> {
        if self.0.is_empty() {
            return Ok(());
        }
        let certificate = certificate.ok_or(TpmDenial::EndorsementCertificateMissing)?;
        let malformed = |detail| TpmDenial::EndorsementCertificateMalformed { detail };
        let (padding, certificate) = X509Certificate::from_der(certificate)
            .map_err(|_| malformed("it is not one certificate in DER"))?;
        if !is_padding(padding) {
            return Err(malformed("it has something after its end"));
        }
        if key_of(certificate.public_key()).as_ref() != Some(key.key()) {
            return Err(TpmDenial::EndorsementCertificateOfAnotherKey);
        }
        check_profile(&certificate, key.key())
            .map_err(|detail| TpmDenial::EndorsementCertificateUnfit { detail })?;
        let now = seconds(now);
        if !Validity::of(&certificate).contains(now) {
            return Err(TpmDenial::EndorsementCertificateNotValid);
        }
        let signed = |authority: &Authority| authority.signed(&certificate, now);
        if self.0.iter().any(signed) {
            Ok(())
        } else {
            Err(TpmDenial::EndorsementCertificateUntrusted)
        }
    }
}

impl Authority {
    fn read(block: &pem::Pem) -> Result<Self, &'static str> {
        if block.tag() != "CERTIFICATE" {
            return Err("it has something else than certificates");
        }
        let Ok((&[], certificate)) = X509Certificate::from_der(block.contents()) else {
            return Err("it is not one certificate in DER");
        };
        if !certificate.is_ca() {
            return Err("its certificate is of no authority");
        }
        let usage = certificate.key_usage();
        let usage = usage.map_err(|_| "its certificate has an extension twice")?;
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err("its key signs no certificates");
        }
        Ok(Self {
            subject: certificate.subject().as_raw().to_vec(),
            spki: certificate.public_key().raw.to_vec(),
            validity: Validity::of(&certificate),
        })
    }

    fn signed(&self, certificate: &X509Certificate<'_>, now: i64) -> bool {
        self.validity.contains(now)
            && self.subject == certificate.issuer().as_raw()
            && self.verifies(certificate).is_some()
    }

    fn verifies(&self, certificate: &X509Certificate<'_>) -> Option<()> {
        // The inner one is what is signed.
        if certificate.signature_algorithm != certificate.tbs_certificate.signature {
            return None;
        }
        let (_, spki) = SubjectPublicKeyInfo::from_der(&self.spki).ok()?;
        let algorithm = algorithm(certificate.signature_algorithm.oid(), &spki)?;
        let key = ParsedPublicKey::new(algorithm, &*spki.subject_public_key.data).ok()?;
        let message: &[u8] = certificate.tbs_certificate.as_ref();
        key.verify_sig(message, &certificate.signature_value.data)
            .ok()
    }
}

/// How a key of this kind signs with this algorithm; `None` where it does not, or with SHA-1.
fn algorithm(
    identifier: &Oid<'_>,
    spki: &SubjectPublicKeyInfo<'_>,
) -> Option<&'static dyn VerificationAlgorithm> {
    let curve = || spki.algorithm.parameters.as_ref()?.as_oid().ok();
    if spki.algorithm.algorithm == OID_PKCS1_RSAENCRYPTION {
        let by_digest: [(_, &dyn VerificationAlgorithm); 3] = [
            (OID_PKCS1_SHA256WITHRSA, &RSA_PKCS1_2048_8192_SHA256),
            (OID_PKCS1_SHA384WITHRSA, &RSA_PKCS1_2048_8192_SHA384),
            (OID_PKCS1_SHA512WITHRSA, &RSA_PKCS1_2048_8192_SHA512),
        ];
        let found = by_digest.into_iter().find(|(oid, _)| oid == identifier)?;
        return Some(found.1);
    }
    if spki.algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY {
        return None;
    }
    let curve = curve()?;
    let by_curve: [(_, _, &dyn VerificationAlgorithm); 4] = [
        (
            OID_EC_P256,
            OID_SIG_ECDSA_WITH_SHA256,
            &ECDSA_P256_SHA256_ASN1,
        ),
        (
            OID_EC_P256,
            OID_SIG_ECDSA_WITH_SHA384,
            &ECDSA_P256_SHA384_ASN1,
        ),
        (
            OID_NIST_EC_P384,
            OID_SIG_ECDSA_WITH_SHA256,
            &ECDSA_P384_SHA256_ASN1,
        ),
        (
            OID_NIST_EC_P384,
            OID_SIG_ECDSA_WITH_SHA384,
            &ECDSA_P384_SHA384_ASN1,
        ),
    ];
    let found = by_curve
        .into_iter()
        .find(|(of, oid, _)| *of == curve && oid == identifier)?;
    Some(found.2)
}

/// Vendors fill the TPM's memory up behind the certificate.
fn is_padding(bytes: &[u8]) -> bool {
    [0x00, 0xff]
        .into_iter()
        .any(|filling| bytes.iter().all(|byte| *byte == filling))
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default().as_secs();
    i64::try_from(since).unwrap_or(i64::MAX)
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
            if constraints.ca {
                return Err("it is an authority's");
            }
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
    if !names_tpm {
        return Err("it does not name a TPM's manufacturer");
    }
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
