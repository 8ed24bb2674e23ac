//! The policy for certificates: the signer signs only node certificates that have the controller's format.
//!
//! An attacker who can access the socket can get any certificate that this policy permits. The certificate is valid for
//! at most [`LONGEST`] from now, and does not expire later than its CA.

use std::time::{Duration, SystemTime};

use node_attestation_signer_api::SignatureAlgorithm;
use x509_cert::TbsCertificate;
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::ext::pkix::{
    BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectAltName,
};

use crate::authority::Authority;
use crate::server_names::{self, Reserved};

/// The maximum validity, starting now: 365 days, which the controller grants to machines without evidence, and one more
/// day.
const LONGEST: Duration = Duration::from_hours(366 * 24);

/// The maximum difference between the start of a certificate's validity and the clock. The controller backdates
/// certificates by 5 minutes. Without this limit, an attacker could get certificates whose validity starts years later.
const MAX_SKEW: Duration = Duration::from_mins(10);

const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The subject attribute that contains a Kubernetes user's UID.
const USER_UID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57683.2");

const SUBJECT_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");

/// The permitted extensions: basic constraints, key usage, extended key usage, authority key identifier, subject key
/// identifier, and provider ID. Serving certificates can also have [`SUBJECT_ALT_NAME`].
const EXTENSIONS: [ObjectIdentifier; 6] = [
    ObjectIdentifier::new_unwrap("2.5.29.19"),
    ObjectIdentifier::new_unwrap("2.5.29.15"),
    ObjectIdentifier::new_unwrap("2.5.29.37"),
    ObjectIdentifier::new_unwrap("2.5.29.35"),
    ObjectIdentifier::new_unwrap("2.5.29.14"),
    ObjectIdentifier::new_unwrap("1.3.6.1.4.1.11129.2.1.21"),
];

const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");
const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");

const NODES_GROUP: &str = "system:nodes";
const NODE_USER_PREFIX: &str = "system:node:";

/// A certificate that the signer is allowed to sign.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeCertificate {
    /// The user name in the certificate: `system:node:<name>`.
    pub(crate) user: String,
    /// The serial number, in lower-case hexadecimal.
    pub(crate) serial: String,
}

/// The reason why the signer refuses to sign a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(&'static str);

/// Parses and checks a certificate before it is signed.
pub(crate) fn check(
    to_be_signed: &[u8],
    authority: &Authority,
    algorithm: SignatureAlgorithm,
    now: SystemTime,
) -> Result<NodeCertificate, Refused> {
    let certificate = TbsCertificate::from_der(to_be_signed)
        .map_err(|_| Refused("it is not a TBSCertificate in DER"))?;
    require(
        certificate.signature().oid.to_string() == identifier(algorithm),
        "its algorithm does not match the request",
    )?;
    let ca = authority.certificate.tbs_certificate();
    require(
        certificate.issuer() == ca.subject(),
        "its issuer is not the CA",
    )?;
    let end = certificate.validity().not_after.to_unix_duration();
    let begin = certificate.validity().not_before.to_unix_duration();
    #[expect(
        clippy::disallowed_methods,
        reason = "1970 is not a clock reading: this is the time as a number"
    )]
    let now = now.duration_since(SystemTime::UNIX_EPOCH);
    require(
        now.is_ok_and(|now| begin.abs_diff(now) <= MAX_SKEW),
        "its validity does not begin now",
    )?;
    let lives = end.checked_sub(begin);
    require(
        lives.is_some_and(|lives| lives <= LONGEST + MAX_SKEW),
        "its validity is too long",
    )?;
    let end_of_ca = ca.validity().not_after.to_unix_duration();
    require(end <= end_of_ca, "it expires after its CA")?;
    let user = user(&certificate)?;
    check_extensions(&certificate, &authority.reserved)?;
    Ok(NodeCertificate {
        user,
        serial: data_encoding::HEXLOWER.encode(certificate.serial_number().as_bytes()),
    })
}

/// Returns the common name from a node's subject, which must consist of `O=system:nodes`, `CN=system:node:<name>` and
/// an optional UID, without duplicates.
fn user(certificate: &TbsCertificate) -> Result<String, Refused> {
    let (mut users, mut groups, mut uids) = (Vec::new(), Vec::new(), 0_u8);
    for attribute in certificate.subject().iter() {
        let text = || std::str::from_utf8(attribute.value.value()).unwrap_or_default();
        match attribute.oid {
            COMMON_NAME => users.push(text().to_owned()),
            ORGANIZATION => groups.push(text().to_owned()),
            USER_UID => uids = uids.saturating_add(1),
            _ => {
                return Err(Refused(
                    "its subject has an attribute that is not allowed for a node",
                ));
            }
        }
    }
    require(groups == [NODES_GROUP], "its group is not system:nodes")?;
    require(uids <= 1, "its subject has two UIDs")?;
    match users.as_slice() {
        [user] if user.len() > NODE_USER_PREFIX.len() && user.starts_with(NODE_USER_PREFIX) => {
            Ok(user.clone())
        }
        _ => Err(Refused("its user is not a node")),
    }
}

fn check_extensions(certificate: &TbsCertificate, reserved: &Reserved) -> Result<(), Refused> {
    const UNREADABLE: Refused = Refused("it has a malformed extension");
    let constraints = certificate.get_extension::<BasicConstraints>();
    let constraints = constraints.map_err(|_| UNREADABLE)?;
    require(
        constraints.is_some_and(|(_, constraints)| !constraints.ca),
        "it is a CA certificate",
    )?;
    let usage = certificate.get_extension::<KeyUsage>();
    let usage = usage.map_err(|_| UNREADABLE)?;
    require(
        usage.is_some_and(|(_, usage)| usage.0 == KeyUsages::DigitalSignature),
        "its key usage is not allowed for a node",
    )?;
    let extended = certificate.get_extension::<ExtendedKeyUsage>();
    let extended = extended.map_err(|_| UNREADABLE)?.map(|(_, usage)| usage.0);
    let is_server = match extended.as_deref() {
        Some([CLIENT_AUTH]) => false,
        Some([SERVER_AUTH]) => true,
        Some(_) | None => {
            return Err(Refused("its extended key usage is not allowed for a node"));
        }
    };
    let extensions = certificate.extensions().into_iter().flatten();
    let is_known = |oid: &ObjectIdentifier| {
        EXTENSIONS.contains(oid) || (is_server && *oid == SUBJECT_ALT_NAME)
    };
    let mut seen = Vec::new();
    for extension in extensions {
        let oid = extension.extn_id;
        require(
            is_known(&oid),
            "it has an extension that is not allowed for a node",
        )?;
        require(!seen.contains(&oid), "it has a duplicate extension")?;
        seen.push(oid);
    }
    let names = certificate.get_extension::<SubjectAltName>();
    match names.map_err(|_| UNREADABLE)? {
        Some((_, names)) => server_names::check(&names, reserved).map_err(Refused),
        None => Ok(()),
    }
}

fn require(holds: bool, refusal: &'static str) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(Refused(refusal)) }
}

fn identifier(algorithm: SignatureAlgorithm) -> &'static str {
    match algorithm {
        SignatureAlgorithm::Unspecified => "",
        SignatureAlgorithm::EcdsaP256Sha256 => "1.2.840.10045.4.3.2",
        SignatureAlgorithm::EcdsaP384Sha384 => "1.2.840.10045.4.3.3",
        SignatureAlgorithm::EcdsaP521Sha512 => "1.2.840.10045.4.3.4",
        SignatureAlgorithm::RsaPkcs1Sha256 => "1.2.840.113549.1.1.11",
    }
}

#[cfg(test)]
pub(crate) mod tests;
