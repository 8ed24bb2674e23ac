//! The verification of an API server's certificate.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter};
use x509_parser::certificate::X509Certificate;
use x509_parser::parse_x509_certificate;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Version;

use super::names;

/// The shortest RSA key that this program's cryptography accepts for verification, in bits.
const SHORTEST_RSA: usize = 2048;

const SERVER_AUTH: &[usize] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];
const ANY_PURPOSE: &[usize] = &[2, 5, 29, 37, 0];

/// An error in a server's certificate that the TLS library does not define.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum Fault {
    /// The only CA certificate that verifies it has expired or is not valid yet.
    #[error("its CA has expired or is not valid yet")]
    Authority(CertificateError),
    /// A key in the chain is too short.
    #[error("an RSA key of {0} bits")]
    ShortKey(usize),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        CertificateError::Other(OtherError(Arc::new(fault))).into()
    }
}

/// A name to verify instead of the URL's host.
#[derive(Debug)]
pub(in crate::kube) struct InsteadOf {
    /// The URL's host.
    pub(in crate::kube) host: ServerName<'static>,
    /// The name in the certificate.
    pub(in crate::kube) name: ServerName<'static>,
}

/// Verifies a server's certificate as Go does, with the cluster's CA certificates as the only roots.
///
/// # Guarantees
///
/// A certificate is accepted if all of the following conditions are met:
///
/// - It is one of the listed certificates, or signed by a listed CA certificate that is valid now,
///   directly or through CA certificates that the server sends.
/// - It is valid now, and is a server certificate: its extended key usage is absent, `serverAuth` or `any`.
/// - It has the expected name.
#[derive(Debug)]
pub(in crate::kube) struct Verifier {
    listed: Vec<CertificateDer<'static>>,
    authorities: Vec<Authority>,
    name: Option<InsteadOf>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// A CA certificate of the cluster.
#[derive(Debug)]
struct Authority {
    anchor: TrustAnchor<'static>,
    validity: Validity,
}

/// The first and the last second of a certificate's validity period.
#[derive(Debug, Clone, Copy)]
struct Validity {
    not_before: UnixTime,
    not_after: UnixTime,
}

impl Verifier {
    /// A verifier with the certificates that can be parsed; `None` if no certificate can be parsed. As in Go, one
    /// invalid certificate in a bundle must not prevent the connection.
    pub(in crate::kube) fn new(
        certificates: &[CertificateDer<'static>],
        name: Option<InsteadOf>,
    ) -> Option<Self> {
        let is_readable = |der: &&CertificateDer<'_>| parse_x509_certificate(der).is_ok();
        let listed: Vec<_> = certificates.iter().filter(is_readable).cloned().collect();
        (!listed.is_empty()).then(|| Self {
            authorities: listed.iter().filter_map(Authority::new).collect(),
            listed,
            name,
            algorithms: aws_lc_rs::default_provider().signature_verification_algorithms,
        })
    }

    /// The CA certificates that are valid at this time; without a time, all CA certificates.
    fn roots(&self, now: Option<UnixTime>) -> RootCertStore {
        let is_valid = |it: &&Authority| now.is_none_or(|now| it.validity.check(now).is_ok());
        let valid = self.authorities.iter().filter(is_valid);
        RootCertStore {
            roots: valid.map(|it| it.anchor.clone()).collect(),
        }
    }

    fn verify_chain(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let end_entity = EndEntityCert::try_from(certificate);
        let signed_by = |roots: &RootCertStore| {
            let end_entity = end_entity.as_ref().ok()?;
            let algorithms = self.algorithms.all;
            let path = end_entity.verify_for_usage(
                algorithms,
                &roots.roots,
                intermediates,
                now,
                ForServers,
                None,
                None,
            );
            Some(path.ok()?.anchor().to_owned())
        };
        let roots = self.roots(Some(now));
        if signed_by(&roots).is_some() {
            return Ok(());
        }
        if let Some(anchor) = signed_by(&self.roots(None)) {
            let signers = self.authorities.iter().filter(|it| it.anchor == anchor);
            let mut faults = signers.filter_map(|it| it.validity.check(now).err());
            return Err(faults
                .next()
                .map_or(CertificateError::Expired.into(), |fault| {
                    Fault::Authority(fault).into()
                }));
        }
        let algorithms = self.algorithms.all;
        let error = verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &roots,
            intermediates,
            now,
            algorithms,
        );
        // With a short key, every signature verification fails, so report the key's length.
        let mut chain = intermediates.iter().chain(&self.listed);
        match (error, chain.find_map(short_key)) {
            (Err(Error::InvalidCertificate(CertificateError::BadSignature)), Some(bits)) => {
                Err(Fault::ShortKey(bits).into())
            }
            (error, _) => error,
        }
    }
}

impl Authority {
    /// The CA certificate; `None` if it is not allowed to sign certificates.
    fn new(der: &CertificateDer<'static>) -> Option<Self> {
        let (_, certificate) = parse_x509_certificate(der).ok()?;
        let anchor = webpki::anchor_from_trusted_cert(der).ok()?.to_owned();
        signs_certificates(&certificate).then(|| Self {
            anchor,
            validity: Validity::of(&certificate),
        })
    }
}

impl Validity {
    fn of(certificate: &X509Certificate<'_>) -> Self {
        let [not_before, not_after] = [
            certificate.validity.not_before,
            certificate.validity.not_after,
        ]
        .map(|time| {
            let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
            UnixTime::since_unix_epoch(Duration::from_secs(seconds))
        });
        Self {
            not_before,
            not_after,
        }
    }

    fn check(self, time: UnixTime) -> Result<(), CertificateError> {
        let Self {
            not_before,
            not_after,
        } = self;
        if time < not_before {
            return Err(CertificateError::NotValidYetContext { time, not_before });
        }
        if time > not_after {
            return Err(CertificateError::ExpiredContext { time, not_after });
        }
        Ok(())
    }
}

/// As in Go, a certificate before version 3 can sign certificates, although it has no extensions.
fn signs_certificates(certificate: &X509Certificate<'_>) -> bool {
    if certificate.version != X509Version::V3 {
        return true;
    }
    let constraints = certificate.basic_constraints().ok().flatten();
    let usage = certificate.key_usage().ok().flatten();
    constraints.is_some_and(|it| it.value.ca) && usage.is_none_or(|it| it.value.key_cert_sign())
}

/// The length of an RSA key that is too short, in bits.
fn short_key(der: &CertificateDer<'_>) -> Option<usize> {
    let (_, certificate) = parse_x509_certificate(der).ok()?;
    if let PublicKey::RSA(key) = certificate.public_key().parsed().ok()? {
        return Some(key.key_size()).filter(|bits| *bits < SHORTEST_RSA);
    }
    None
}

/// Performs the checks of a listed certificate, which does not need a signature.
fn verify_listed(der: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let unreadable = || Error::from(CertificateError::BadEncoding);
    let (_, certificate) = parse_x509_certificate(der).map_err(|_| unreadable())?;
    Validity::of(&certificate).check(now)?;
    match certificate.extended_key_usage().map_err(|_| unreadable())? {
        Some(usage) if !usage.value.any && !usage.value.server_auth => {
            Err(CertificateError::InvalidPurpose.into())
        }
        Some(_) | None => Ok(()),
    }
}

/// The extended key usages of server certificates.
struct ForServers;

impl ExtendedKeyUsageValidator for ForServers {
    fn validate(&self, usages: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let mut is_limited = false;
        for usage in usages {
            let usage = usage?.to_decoded_oid();
            if usage == SERVER_AUTH || usage == ANY_PURPOSE {
                return Ok(());
            }
            is_limited = true;
        }
        if is_limited {
            Err(webpki::Error::UnknownIssuer)
        } else {
            Ok(())
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        if self.listed.iter().any(|listed| listed == end_entity) {
            verify_listed(end_entity, now)?;
        } else {
            self.verify_chain(end_entity, intermediates, now)?;
        }
        let name = match &self.name {
            Some(instead) if instead.host == *server_name => &instead.name,
            Some(_) | None => server_name,
        };
        verify_server_name(&certificate, name).or_else(|error| {
            if names::are_for(end_entity, name) {
                Ok(())
            } else {
                Err(error)
            }
        })?;
        match short_key(end_entity) {
            Some(bits) => Err(Fault::ShortKey(bits).into()),
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
