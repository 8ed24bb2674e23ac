//! Endorsement key certificates ("TCG EK Credential Profile", 2.5, section 3), which identify the manufacturer of a
//! TPM.
//!
//! A genuine TPM can belong to any machine. Therefore a certificate can be required in addition to the trusted
//! endorsement key, but never replaces the trusted key.
//!
//! A required authority must have signed the certificate directly, or through a chain of intermediate certificates.
//! Vendors publish the certificates of their intermediate authorities, and an operator can list them. Some TPMs have
//! their own intermediate authority, and store its certificate. The evidence then contains this certificate, which is
//! trusted only if a listed authority signed it. The path ends at the first listed authority, even if another listed
//! authority signed its certificate, so the evidence need not contain a complete chain. The path is followed upwards
//! without backtracking: each certificate is used at most once. The path is followed to its end, even above an expired
//! certificate, to determine whether expiry is the only reason for the denial.
//!
//! # Guarantees
//!
//! - A request causes at most [`MAX_CHECKS`](checks::MAX_CHECKS) signature checks, regardless of the list and the
//!   chain. The authority whose key identifier is in the certificate is tried first.
//! - Other tasks run before each check, and the checks of all Clusters take turns by namespace.
//! - A request that waits for its turn keeps no parsed certificate.

mod authority;
pub(crate) mod checks;
mod extension;
mod link;
mod name;
mod signature;
mod unfit;

use std::time::SystemTime;

use kubelet_attestation::ensure;
use node_attestation_core::time::unix_seconds;
use node_attestation_core::verifier::Expiring;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::oid;
use x509_parser::extensions::{GeneralName, KeyUsage, ParsedExtension};
use x509_parser::oid_registry::{OID_EC_P256, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, Oid};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::time::ASN1Time;
use x509_parser::x509::SubjectPublicKeyInfo;

use self::authority::{Authority, NotIssued, issued};
use self::checks::{Checks, TooManyChecks};
use self::extension::pass_over;
use self::link::Link;
use self::name::{date, system_time};
use self::unfit::Unfit;
use crate::denial::TpmDenial;
use crate::invalid_settings::InvalidTpmSettings;
use crate::public::{EndorsementKey, Key};

/// `tcg-kp-EKCertificate`.
const EK_CERTIFICATE: Oid<'static> = oid!(2.23.133.8.1);
/// `tcg-at-tpmManufacturer`.
const TPM_MANUFACTURER: Oid<'static> = oid!(2.23.133.2.1);
/// `id-RSAES-OAEP` (RFC 4055), which some vendors use as the key's algorithm.
const RSAES_OAEP: Oid<'static> = oid!(1.2.840.113549.1.1.7);

/// The maximum number of listed authorities. The vendor with the most authorities has published half of this number.
const MAX_AUTHORITIES: usize = 192;

/// The maximum number of listed authorities with the same name. AMD uses the same name for an RSA key and an ECC key,
/// and each key can be listed with both its expired and its renewed certificate.
const MAX_WITH_ONE_NAME: usize = 4;

/// The denial of certificates that are not accepted.
#[derive(Debug)]
pub(crate) struct NotAccepted {
    pub(crate) denial: TpmDenial,
    /// The earliest expiry among the certificates. Set if expiry is the only reason for the denial.
    pub(crate) expired: Option<Expiring>,
}

impl From<TpmDenial> for NotAccepted {
    fn from(denial: TpmDenial) -> Self {
        Self {
            denial,
            expired: None,
        }
    }
}

/// The required authorities. One of these authorities must have signed the endorsement key certificate. If the list is
/// empty, certificates are not checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Authorities(Vec<Authority>);

impl Authorities {
    /// Parses the authorities in these texts. Each text contains one or more PEM certificates.
    ///
    /// # Errors
    ///
    /// Returns an error if a string is not PEM, if a certificate does not belong to an authority, or if there are too
    /// many authorities.
    pub(crate) fn new(texts: &[String]) -> Result<Self, InvalidTpmSettings> {
        let mut authorities: Vec<Authority> = Vec::new();
        let mut count = 0;
        for (index, text) in texts.iter().enumerate() {
            let invalid =
                |rule: &str| InvalidTpmSettings::new(format!("requireCA[{index}]: {rule}"));
            let blocks = pem::parse_many(text).map_err(|_| invalid("it is not PEM"))?;
            ensure!(!blocks.is_empty(), invalid("it has no certificate"));
            for block in &blocks {
                count += 1;
                ensure!(
                    count <= MAX_AUTHORITIES,
                    InvalidTpmSettings::new(format!(
                        "requireCA: it has more than {MAX_AUTHORITIES} certificates"
                    ))
                );
                let read = Authority::read(block).map_err(|rule| invalid(&rule))?;
                let namesakes = authorities.iter().filter(|one| one.subject == read.subject);
                let namesakes: Vec<_> = namesakes.collect();
                // Vendors publish some certificates in two files.
                if namesakes.contains(&&read) {
                    continue;
                }
                ensure!(
                    namesakes.len() < MAX_WITH_ONE_NAME,
                    invalid(&format!(
                        "it has more than {MAX_WITH_ONE_NAME} different certificates with the subject \"{}\"",
                        read.name
                    ))
                );
                authorities.push(read);
            }
        }
        Ok(Self(authorities))
    }

    /// Whether no authority is required.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The expiry of each authority's certificate.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Expiring> {
        let authorities = self.0.iter();
        authorities.map(|authority| Expiring {
            at: system_time(authority.validity.not_after),
            subject: authority.name.clone(),
        })
    }

    /// Checks that the certificate belongs to the endorsement key, and that one of these authorities signed it,
    /// directly or through `intermediates`. Returns the earliest expiry of these certificates; `None` if no authority
    /// is required.
    ///
    /// # Errors
    ///
    /// Returns the denials that begin with `EndorsementCertificate`.
    pub(crate) async fn require(
        &self,
        (certificate, intermediates): (Option<&[u8]>, &[Vec<u8>]),
        key: &EndorsementKey,
        now: SystemTime,
        checks: &mut Checks<'_>,
    ) -> Result<Option<Expiring>, NotAccepted> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let certificate = certificate.ok_or(TpmDenial::EndorsementCertificateMissing)?;
        let certificate = endorsement(certificate, key)?;
        let not_valid = TpmDenial::EndorsementCertificateNotValid;
        let time =
            asn1_time(now).ok_or_else(|| not_valid("is not valid before 1970".to_owned()))?;
        let validity = certificate.validity.clone();
        if time < validity.not_before {
            let from = date(validity.not_before);
            return Err(not_valid(format!("is not valid before {from}")).into());
        }
        let mut ended = (time > validity.not_after)
            .then(|| not_valid(format!("expired on {}", date(validity.not_after))));
        let followed = self
            .follow(certificate, intermediates, (time, &mut ended), checks)
            .await;
        match (followed, ended) {
            (Ok(end), None) => Ok(Some(end)),
            (Ok(end), Some(denial)) => Err(NotAccepted {
                denial,
                expired: Some(end).filter(|end| end.at < now),
            }),
            (Err(denial), None) | (Err(_), Some(denial)) => Err(denial.into()),
        }
    }

    /// Follows the issuers of `certificate` up to one of these authorities. Returns the earliest expiry on the path,
    /// not including the authority's certificate. The path continues above an expired certificate. In this case,
    /// `ended` contains the denial for the first expired certificate.
    async fn follow(
        &self,
        mut certificate: Link,
        intermediates: &[Vec<u8>],
        (now, ended): (ASN1Time, &mut Option<TpmDenial>),
        checks: &mut Checks<'_>,
    ) -> Result<Expiring, TpmDenial> {
        let intermediates = intermediates.iter();
        let unused: Result<Vec<_>, _> = intermediates
            .map(|der| one(der).map(|parsed| Link::of(&parsed)))
            .collect();
        let mut unused = unused.map_err(|_| {
            let rule = "an intermediate is not exactly one DER certificate";
            TpmDenial::EndorsementCertificateMalformed(rule)
        })?;
        let mut first = certificate.end();
        for below in 0.. {
            let not_issued = match self.listed(&certificate, (below, now), checks).await? {
                Ok(()) => return Ok(first),
                Err(not_issued) => not_issued,
            };
            let above = Above::find(&unused, &certificate, (below, now), checks).await?;
            let is_listed = matches!(not_issued, Some((_, NotIssued::Expired(_))));
            if above.issuer.is_none() {
                let is_closer = |unfit: &NotIssued| {
                    let listed = not_issued.as_ref().map(|(_, why)| why);
                    !is_listed && listed.is_none_or(|why| unfit > why)
                };
                let denial = if let Some(unfit) = above.unfit.filter(is_closer) {
                    let issuer = certificate.issuer_name();
                    TpmDenial::EndorsementCertificateIssuerUnfit(format!("{issuer}: {unfit}"))
                } else {
                    self.untrusted(&certificate, below, not_issued)
                };
                if is_listed {
                    ended.get_or_insert(denial);
                    return Ok(first);
                }
                if above.expired.is_none() {
                    return Err(denial);
                }
                ended.get_or_insert(denial);
            }
            let Some(index) = above.issuer.or(above.expired) else {
                break;
            };
            certificate = unused.swap_remove(index);
            first = first.min(certificate.end());
        }
        Err(TpmDenial::EndorsementCertificateUntrusted(
            "its chain is too long".to_owned(),
        ))
    }

    /// Checks whether one of these authorities issued the certificate. If none of them issued it, returns the authority
    /// that has the issuer's name and that passed the most checks.
    async fn listed(
        &self,
        certificate: &Link,
        at: (u32, ASN1Time),
        checks: &mut Checks<'_>,
    ) -> Result<Result<(), NotListed<'_>>, TooManyChecks> {
        let named = self.0.iter().filter(|one| one.is_named_by(certificate));
        let mut named: Vec<_> = named.collect();
        let id = certificate.issuer_key_id.as_deref();
        named.sort_by_key(|authority| id.is_none() || authority.key_id.as_deref() != id);
        let mut not_issued: Option<(&Authority, NotIssued)> = None;
        for authority in named {
            match authority.issued(certificate, at, checks).await? {
                Ok(()) => return Ok(Ok(())),
                Err(why) if not_issued.as_ref().is_none_or(|(_, other)| why > *other) => {
                    not_issued = Some((authority, why));
                }
                Err(_) => {}
            }
        }
        Ok(Err(not_issued))
    }

    /// Returns the denial if none of these authorities signed the last certificate of a chain.
    fn untrusted(
        &self,
        last: &Link,
        below: u32,
        not_issued: Option<(&Authority, NotIssued)>,
    ) -> TpmDenial {
        let of = match below {
            0 => String::new(),
            _ => format!("its chain ends with {}; ", last.subject_name()),
        };
        let why = if let Some((authority, why)) = not_issued {
            let name = &authority.name;
            format!("{of}the issuer is \"{name}\" in requireCA, but {why}")
        } else {
            let listed = self.0.iter().take(MAX_NAMED);
            let mut shown: Vec<_> = listed.map(|one| format!("\"{}\"", one.name)).collect();
            let rest = self.0.len().saturating_sub(shown.len());
            if rest > 0 {
                shown.push(format!("{rest} more"));
            }
            let (issuer, shown) = (last.issuer_name(), shown.join(", "));
            format!("{of}the issuer is {issuer}, but requireCA contains {shown}")
        };
        TpmDenial::EndorsementCertificateUntrusted(why)
    }
}

/// The listed authority that a certificate names as its issuer, with the reason why it did not issue the certificate.
type NotListed<'a> = Option<(&'a Authority, NotIssued)>;

/// The results for the authorities in the evidence that have the name of a certificate's issuer.
#[derive(Debug, Default)]
struct Above {
    /// The index of the authority that issued the certificate.
    issuer: Option<usize>,
    /// The index of an authority that issued the certificate but has expired.
    expired: Option<usize>,
    /// The reason why the authority that passed the most checks did not issue the certificate.
    unfit: Option<NotIssued>,
}

impl Above {
    async fn find(
        unused: &[Link],
        certificate: &Link,
        at: (u32, ASN1Time),
        checks: &mut Checks<'_>,
    ) -> Result<Self, TooManyChecks> {
        let named = unused.iter().enumerate();
        let named = named.filter(|(_, one)| one.subject == certificate.issuer);
        let mut named: Vec<_> = named.collect();
        let id = certificate.issuer_key_id.as_deref();
        named.sort_by_key(|(_, authority)| id.is_none() || authority.key_id.as_deref() != id);
        let mut above = Self::default();
        for (index, authority) in named {
            let why = match issued(authority, certificate, at, checks).await? {
                Ok(()) => {
                    above.issuer = Some(index);
                    break;
                }
                Err(why) => why,
            };
            if matches!(why, NotIssued::Expired(_)) {
                above.expired = above.expired.or(Some(index));
            }
            if above.unfit.as_ref().is_none_or(|other| why > *other) {
                above.unfit = Some(why);
            }
        }
        Ok(above)
    }
}

/// The maximum number of required CAs that a denial names. The denial also contains the number of remaining CAs.
const MAX_NAMED: usize = 4;

/// Parses an endorsement key certificate, and performs the checks that need neither the time nor other certificates.
fn endorsement(certificate: &[u8], key: &EndorsementKey) -> Result<Link, TpmDenial> {
    let (padding, certificate) = X509Certificate::from_der(certificate).map_err(|_| {
        TpmDenial::EndorsementCertificateMalformed("it is not exactly one DER certificate")
    })?;
    ensure!(
        is_padding(padding),
        TpmDenial::EndorsementCertificateMalformed("it has trailing bytes")
    );
    ensure!(
        key_of(certificate.public_key()).as_ref() == Some(key.key()),
        TpmDenial::EndorsementCertificateOfAnotherKey
    );
    let unfit = |unfit: Unfit| TpmDenial::EndorsementCertificateUnfit(unfit.to_string());
    check_profile(&certificate).map_err(unfit)?;
    Ok(Link::of(&certificate))
}

/// Parses a single certificate. Bytes after the certificate are an error.
fn one(der: &[u8]) -> Result<X509Certificate<'_>, &'static str> {
    match X509Certificate::from_der(der) {
        Ok((&[], certificate)) => Ok(certificate),
        Ok(_) => Err("it has bytes after its certificate (`openssl x509` removes them)"),
        Err(_) => Err("it is not exactly one DER certificate"),
    }
}

/// Whether the bytes are padding. Vendors fill the TPM's memory after the certificate with padding.
fn is_padding(bytes: &[u8]) -> bool {
    [0x00, 0xff]
        .into_iter()
        .any(|filling| bytes.iter().all(|byte| *byte == filling))
}

fn asn1_time(time: SystemTime) -> Option<ASN1Time> {
    ASN1Time::from_timestamp(i64::try_from(unix_seconds(time)).ok()?).ok()
}

/// Returns the key in a certificate, if the key type is supported for endorsement keys.
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

/// Checks the certificate against the profile.
fn check_profile(certificate: &X509Certificate<'_>) -> Result<(), Unfit> {
    certificate
        .extensions_map()
        .map_err(|_| Unfit::DuplicateExtension)?;
    let (mut for_endorsement, mut names_tpm) = (false, false);
    for extension in certificate.extensions() {
        let parsed = extension.parsed_extension();
        if let ParsedExtension::BasicConstraints(constraints) = parsed {
            ensure!(!constraints.ca, Unfit::Authority);
        } else if let ParsedExtension::KeyUsage(usage) = parsed {
            ensure!(is_to_decrypt(*usage), Unfit::UsageOfEndorsementKey);
        } else if let ParsedExtension::ExtendedKeyUsage(usage) = parsed {
            for_endorsement = usage.other.contains(&EK_CERTIFICATE);
        } else if let ParsedExtension::SubjectAlternativeName(names) = parsed {
            names_tpm = names.general_names.iter().any(names_a_tpm);
        } else {
            pass_over(extension)?;
        }
    }
    ensure!(for_endorsement, Unfit::NotForEndorsementKeys);
    ensure!(names_tpm, Unfit::NoManufacturer);
    Ok(())
}

/// Whether the usage permits decryption. According to the profile, an RSA endorsement key has key encipherment, and an
/// ECC endorsement key has key agreement. Vendors have issued certificates with either usage for either type of key, so
/// both usages are accepted for both types. The challenge verifies that the key can decrypt. A key that can only sign
/// has neither usage.
fn is_to_decrypt(usage: KeyUsage) -> bool {
    (usage.key_encipherment() || usage.key_agreement()) && !usage.key_cert_sign()
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
