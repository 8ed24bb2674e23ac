//! Messages for TLS errors, written for operators.

use std::error::Error;
use std::time::{Duration, UNIX_EPOCH};

use kubelet_attestation::page_url;
use rustls::{AlertDescription, CertificateError, OtherError, PeerIncompatible};
use rustls_pki_types::UnixTime;

use super::verifier::TlsFault;
use crate::failure::causes;

const CHECK_CLUSTER: &str = "check the server and the CA in the kubeconfig";
const SET_CLOCK: &str = "set the clock of this machine with NTP";
const RENEW: &str = "renew the API server's certificate, or set the clock of this machine with NTP";
const RENEW_CA: &str = "renew the cluster's CA, or set the clock of this machine with NTP";
const SEE_SUPPORT: &str = concat!(
    "for supported certificates and cipher suites, see ",
    page_url!("support.md#kubeconfigs-certificates-and-proxies-of-nodes")
);

const CIPHERS: &str = "no TLS version or cipher suite in common: TLS 1.3, or TLS 1.2 with ECDHE and \
                       AES-GCM or ChaCha20-Poly1305, is required";

/// The TLS error that caused `error`, if any, and the hint.
pub(in crate::kube) fn fault(
    error: &(dyn Error + 'static),
    name: &str,
) -> Option<(String, &'static str)> {
    let error = causes(error).find_map(|cause| cause.downcast_ref())?;
    Some(of_handshake(error, name))
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls has far more errors than operators can act on"
)]
fn of_handshake(error: &rustls::Error, name: &str) -> (String, &'static str) {
    match error {
        rustls::Error::InvalidCertificate(why) => {
            let (why, cure) = of_certificate(why, name);
            (format!("the server's certificate {why}"), cure)
        }
        rustls::Error::AlertReceived(alert) => of_alert(*alert, name),
        rustls::Error::InvalidMessage(_) => (
            "the server does not respond with TLS; the port might be for plain HTTP".to_owned(),
            CHECK_CLUSTER,
        ),
        rustls::Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
            (CIPHERS.to_owned(), SEE_SUPPORT)
        }
        rustls::Error::PeerIncompatible(why) => (
            format!("the server's TLS configuration is not supported ({why:?})"),
            SEE_SUPPORT,
        ),
        rustls::Error::PeerMisbehaved(why) => (
            format!("the server violates the TLS protocol ({why:?})"),
            CHECK_CLUSTER,
        ),
        rustls::Error::DecryptError => (
            "cannot decrypt the server's data; a device on the path might change it".to_owned(),
            CHECK_CLUSTER,
        ),
        other => (other.to_string(), CHECK_CLUSTER),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "as above")]
fn of_alert(alert: AlertDescription, name: &str) -> (String, &'static str) {
    use AlertDescription as Alert;
    match alert {
        Alert::HandshakeFailure | Alert::InsufficientSecurity | Alert::ProtocolVersion => {
            (format!("{CIPHERS} (TLS alert: {alert:?})"), SEE_SUPPORT)
        }
        Alert::UnrecognisedName => (
            format!("the server does not serve the name {name:?}"),
            CHECK_CLUSTER,
        ),
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
        | Alert::CertificateRequired => (
            format!("the server rejected the client certificate (TLS alert: {alert:?})"),
            CHECK_CLUSTER,
        ),
        other => (
            format!("the server ended the connection with the TLS alert {other:?}"),
            CHECK_CLUSTER,
        ),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "as above")]
fn of_certificate(error: &CertificateError, name: &str) -> (String, &'static str) {
    let (what, cure) = match error {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            return (format!("is not for {name:?}"), CHECK_CLUSTER);
        }
        CertificateError::ExpiredContext { time, not_after } => {
            return (expired(*not_after, *time), RENEW);
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            return (not_yet_valid(*not_before, *time), SET_CLOCK);
        }
        CertificateError::Other(OtherError(why)) => {
            return of_other(why.as_ref());
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            ("is not signed by the cluster's CA", CHECK_CLUSTER)
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => (
            "has an extended key usage without server authentication",
            "use a server certificate with the extended key usage serverAuth",
        ),
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => (
            "or its CA has an unsupported type of signature or key, such as SHA-1",
            SEE_SUPPORT,
        ),
        CertificateError::UnhandledCriticalExtension => (
            "or its CA has a critical extension that is not supported",
            SEE_SUPPORT,
        ),
        CertificateError::BadEncoding => ("or its CA is not valid X.509", SEE_SUPPORT),
        other => return (format!("cannot be verified: {other}"), SEE_SUPPORT),
    };
    (what.to_owned(), cure)
}

/// An error of this program's verifier, or of webpki.
fn of_other(error: &(dyn Error + Send + Sync + 'static)) -> (String, &'static str) {
    if let Some(fault) = error.downcast_ref() {
        return of_ours(fault);
    }
    let (what, cure) = match error.downcast_ref() {
        Some(webpki::Error::CaUsedAsEndEntity) => (
            "is itself a CA certificate",
            "use a server certificate that is not a CA certificate, or list this certificate in the \
             kubeconfig's CA certificates",
        ),
        Some(webpki::Error::EndEntityUsedAsCa) => (
            "is signed with a certificate that is not a CA certificate",
            "use the cluster's CA to sign the API server's certificate",
        ),
        Some(webpki::Error::NameConstraintViolation) => (
            "has a name that its CA is not allowed to issue",
            SEE_SUPPORT,
        ),
        Some(webpki::Error::MaximumPathDepthExceeded) => {
            ("has more than 6 intermediate certificates", SEE_SUPPORT)
        }
        Some(webpki::Error::PathLenConstraintViolated) => {
            ("has a longer chain than one of its CAs allows", SEE_SUPPORT)
        }
        Some(webpki::Error::UnsupportedCriticalExtension) => (
            "or its CA has a critical extension that is not supported",
            SEE_SUPPORT,
        ),
        Some(webpki::Error::UnsupportedCertVersion) => (
            "or its CA is not an X.509 version 3 certificate",
            SEE_SUPPORT,
        ),
        Some(_) | None => return (format!("cannot be verified: {error}"), SEE_SUPPORT),
    };
    (what.to_owned(), cure)
}

fn of_ours(fault: &TlsFault) -> (String, &'static str) {
    match fault {
        TlsFault::ShortKey(bits) => (
            format!("or its CA has an RSA key of {bits} bits (minimum: 2048)"),
            SEE_SUPPORT,
        ),
        TlsFault::Authority(CertificateError::ExpiredContext { time, not_after }) => {
            let expired = expired(*not_after, *time);
            (
                format!("is signed by a CA certificate that {expired}"),
                RENEW_CA,
            )
        }
        TlsFault::Authority(CertificateError::NotValidYetContext { time, not_before }) => {
            let early = not_yet_valid(*not_before, *time);
            (
                format!("is signed by a CA certificate that {early}"),
                SET_CLOCK,
            )
        }
        TlsFault::Authority(other) => (
            format!("is signed by a CA certificate that is not valid: {other}"),
            RENEW_CA,
        ),
    }
}

/// The reason why TLS cannot use a client certificate and its key.
#[expect(clippy::wildcard_enum_match_arm, reason = "as above")]
pub(in crate::kube) fn of_identity(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            "the client key does not match the client certificate".to_owned()
        }
        rustls::Error::General(_) => {
            "the type or format of the client key is not supported".to_owned()
        }
        other => other.to_string(),
    }
}

fn expired(not_after: UnixTime, now: UnixTime) -> String {
    let [end, now] = [not_after, now].map(at);
    format!("expired at {end} (clock of this machine: {now})")
}

fn not_yet_valid(not_before: UnixTime, now: UnixTime) -> String {
    let [start, now] = [not_before, now].map(at);
    format!("is not valid before {start} (clock of this machine: {now})")
}

fn at(time: UnixTime) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustls::InvalidMessage;

    use super::*;

    fn words(error: rustls::Error) -> String {
        let wrapped = io::Error::other(error);
        let (what, cure) = fault(&wrapped, "api.example").unwrap();
        format!("{what}; {cure}")
    }

    #[test]
    fn tls_errors_contain_no_library_names() {
        let of = |error: CertificateError| rustls::Error::InvalidCertificate(error);
        let other = |error: webpki::Error| {
            let error: std::sync::Arc<dyn Error + Send + Sync> = std::sync::Arc::new(error);
            of(CertificateError::Other(OtherError(error)))
        };
        for (error, expected) in [
            (
                rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "plain HTTP",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::HandshakeFailure),
                "cipher suite",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::ProtocolVersion),
                "TLS 1.3",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::CertificateRequired),
                "rejected the client certificate",
            ),
            (other(webpki::Error::CaUsedAsEndEntity), "itself a CA"),
            (other(webpki::Error::EndEntityUsedAsCa), "not a CA"),
            (other(webpki::Error::NameConstraintViolation), "not allowed"),
            (
                other(webpki::Error::MaximumPathDepthExceeded),
                "6 intermediate certificates",
            ),
            (
                other(webpki::Error::UnsupportedCriticalExtension),
                "critical extension",
            ),
            (
                of(CertificateError::InvalidPurpose),
                "server authentication",
            ),
            (of(CertificateError::BadEncoding), "not valid X.509"),
            (
                of(CertificateError::UnhandledCriticalExtension),
                "critical extension",
            ),
            (TlsFault::ShortKey(1024).into(), "1024 bits"),
            (
                TlsFault::Authority(CertificateError::Expired).into(),
                "CA certificate that is not valid",
            ),
        ] {
            let words = words(error);
            assert!(words.contains(expected), "{words}");
            for foreign in ["Other(", "webpki", "rustls", "InvalidContentType", "CaUsed"] {
                assert!(!words.contains(foreign), "{words}");
            }
        }
    }
}
