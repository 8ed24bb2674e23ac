//! The authorities for endorsement key certificates.

use kubelet_attestation::ensure;
use x509_parser::certificate::Validity;
use x509_parser::time::ASN1Time;

use super::checks::{Checks, TooManyChecks};
use super::link::{Link, key_id};
use super::name::{date, name, text};
use super::signature::{AuthorityKey, NotSigned, SUPPORTED};
use super::unfit::Unfit;

/// A vendor's certificate authority, whose subject must match the issuer of a certificate byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) subject: Vec<u8>,
    /// The subject as text.
    pub(super) name: String,
    /// The identifier of the authority's key, if its certificate contains one.
    pub(super) key_id: Option<Vec<u8>>,
    pub(super) key: AuthorityKey,
    pub(super) validity: Validity,
    /// The maximum number of authorities between this authority and an endorsement key.
    pub(super) path_len: Option<u32>,
}

/// The reason why an authority did not issue a certificate whose issuer has the authority's name. In the order of the
/// enum, reasons from later checks are greater. [`Expired`](Self::Expired) means that all other checks passed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(super) enum NotIssued {
    /// The authority's certificate, which is in the evidence, is not acceptable as a CA certificate.
    #[error("{0}")]
    Unfit(Unfit),
    /// The authority did not sign the certificate.
    #[error("{0}")]
    NotSigned(NotSigned),
    /// The authority's certificate is not valid yet.
    #[error("its own certificate is not valid before {0}")]
    NotYetValid(String),
    /// The authority's path length constraint does not permit this many authorities below it.
    #[error("its path length permits {most} CAs below it, but the chain has {below}")]
    PathLength { most: u32, below: u32 },
    /// The authority's certificate has expired.
    #[error("its own certificate expired on {0}")]
    Expired(String),
}

impl Authority {
    /// Parses the certificate of an authority in an operator's list.
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
        let usage = usage.map_err(|_| "its certificate has a duplicate extension")?;
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err("its key usage does not allow it to sign certificates".to_owned());
        }
        let key = AuthorityKey::read(certificate.public_key()).map_err(|kind| {
            let name = name(certificate.subject());
            format!("the key of {name} is {kind}, and cannot verify signatures: {SUPPORTED}")
        })?;
        let constraints = certificate.basic_constraints().ok().flatten();
        Ok(Self {
            subject: certificate.subject().as_raw().to_vec(),
            name: text(certificate.subject()),
            key_id: key_id(&certificate).map(<[u8]>::to_vec),
            key,
            validity: certificate.validity().clone(),
            path_len: constraints.and_then(|constraints| constraints.value.path_len_constraint),
        })
    }

    /// Whether this authority has the name that the certificate contains as its issuer.
    pub(super) fn is_named_by(&self, certificate: &Link) -> bool {
        self.subject == certificate.issuer
    }

    /// Checks that this authority, which has the issuer's name in `certificate`, signed the certificate and was allowed
    /// to sign it. `below` is the number of authorities between this authority and the endorsement key.
    ///
    /// # Errors
    ///
    /// Returns an error if the request needs too many signature checks.
    pub(super) async fn issued(
        &self,
        certificate: &Link,
        (below, now): (u32, ASN1Time),
        checks: &mut Checks<'_>,
    ) -> Result<Result<(), NotIssued>, TooManyChecks> {
        let signed = self.key.signed(&certificate.signature, checks).await?;
        Ok(signed
            .map_err(NotIssued::NotSigned)
            .and_then(|()| begun(&self.validity, now))
            .and_then(|()| permits(self.path_len, below))
            .and_then(|()| not_ended(&self.validity, now)))
    }
}

/// Checks that `authority`, which is in the evidence and has the issuer's name, signed `certificate` and was allowed to
/// sign it.
///
/// # Errors
///
/// Returns an error if the request needs too many signature checks.
pub(super) async fn issued(
    authority: &Link,
    certificate: &Link,
    (below, now): (u32, ASN1Time),
    checks: &mut Checks<'_>,
) -> Result<Result<(), NotIssued>, TooManyChecks> {
    // These checks precede the signature check, because they are cheaper.
    let permitted = usable(authority)
        .map_err(NotIssued::Unfit)
        .and_then(|(key, most)| permits(most, below).map(|()| key))
        .and_then(|key| begun(&authority.validity, now).map(|()| key));
    let key = match permitted {
        Ok(key) => key,
        Err(why) => return Ok(Err(why)),
    };
    let signed = key.signed(&certificate.signature, checks).await?;
    Ok(signed
        .map_err(NotIssued::NotSigned)
        .and_then(|()| not_ended(&authority.validity, now)))
}

/// Returns the key and the path length constraint of an authority in the evidence.
fn usable(authority: &Link) -> Result<(AuthorityKey, Option<u32>), Unfit> {
    let most = authority.path_len.clone()?;
    Ok((authority.key()?, most))
}

fn permits(most: Option<u32>, below: u32) -> Result<(), NotIssued> {
    let most = most.filter(|most| below > *most);
    most.map_or(Ok(()), |most| Err(NotIssued::PathLength { most, below }))
}

/// Checks that the validity period of an authority's certificate has begun.
fn begun(validity: &Validity, now: ASN1Time) -> Result<(), NotIssued> {
    if now < validity.not_before {
        return Err(NotIssued::NotYetValid(date(validity.not_before)));
    }
    Ok(())
}

/// Checks that the validity period of an authority's certificate has not ended.
fn not_ended(validity: &Validity, now: ASN1Time) -> Result<(), NotIssued> {
    if now > validity.not_after {
        return Err(NotIssued::Expired(date(validity.not_after)));
    }
    Ok(())
}
