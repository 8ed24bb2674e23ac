//! TLS with an API server, which trusts the cluster's CA and nothing else.

use std::error::Error;

use rustls::{CertificateError, RootCertStore};
use rustls_pki_types::CertificateDer;

use crate::failure::causes;

/// The CA certificates that can be parsed, if any. The others are ignored, as in Go: one odd
/// certificate in a bundle must not cost the connection.
pub(super) fn roots(ca: &[CertificateDer<'static>]) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(ca.iter().cloned());
    (!roots.is_empty()).then_some(roots)
}

/// The TLS fault that caused `error`, if any.
pub(super) fn fault(error: &(dyn Error + 'static), name: &str) -> Option<String> {
    causes(error).find_map(|cause| Some(classify(cause.downcast_ref()?, name)))
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls knows far more faults than people can do something about"
)]
fn classify(error: &rustls::Error, name: &str) -> String {
    match error {
        rustls::Error::InvalidCertificate(why) => {
            format!("the server's certificate {}", certificate_fault(why, name))
        }
        // As a rule because the server rejects the client certificate.
        rustls::Error::AlertReceived(alert) => {
            format!("the server broke off with the alert {alert:?}")
        }
        other => other.to_string(),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "as above")]
fn certificate_fault(error: &CertificateError, name: &str) -> String {
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not signed by the cluster's CA".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("is not for {name:?}")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired, or our clock is ahead".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet, or our clock is behind".to_owned()
        }
        other => format!("is unusable: {other}"),
    }
}
