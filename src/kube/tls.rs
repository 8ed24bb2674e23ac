//! TLS with an API server, which trusts the cluster's CA and nothing else.

use std::error::Error;
use std::time::{Duration, UNIX_EPOCH};

use rustls::{CertificateError, RootCertStore};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::failure::causes;

/// The CA certificates that can be parsed, if any. The others are ignored, as in Go: one odd
/// certificate in a bundle must not cost the connection.
pub(super) fn roots(ca: &[CertificateDer<'static>]) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(ca.iter().cloned());
    (!roots.is_empty()).then_some(roots)
}

/// The TLS fault that caused `error`, if any, and its cure.
pub(super) fn fault(error: &(dyn Error + 'static), name: &str) -> Option<(String, &'static str)> {
    let error = causes(error).find_map(|cause| cause.downcast_ref())?;
    Some((classify(error, name), cure(error)))
}

fn cure(error: &rustls::Error) -> &'static str {
    if let rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { .. }) = error {
        "set this machine's clock by NTP"
    } else if let rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { .. }) = error
    {
        "renew the API server's certificate, or set this machine's clock by NTP"
    } else {
        "see that the kubeconfig names this cluster's server and CA"
    }
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
        CertificateError::ExpiredContext { time, not_after } => {
            let [end, now] = [*not_after, *time].map(at);
            format!("expired at {end}, and our clock says {now}")
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let [start, now] = [*not_before, *time].map(at);
            format!("is not valid before {start}, and our clock says {now}")
        }
        other => format!("is unusable: {other}"),
    }
}

fn at(time: UnixTime) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}
