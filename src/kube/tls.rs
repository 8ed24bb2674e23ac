//! TLS with an API server, which trusts the cluster's CA and nothing else.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;

use super::error::TlsFault;
use super::kubeconfig::Identity;

/// The CA certificates that can be parsed, if any. The others are ignored, as in Go: one odd
/// certificate in a bundle must not cost the connection.
pub(super) fn roots(ca: &[CertificateDer<'static>]) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(ca.iter().cloned());
    (!roots.is_empty()).then_some(roots)
}

/// A configuration that trusts `roots` and presents `identity`.
pub(crate) fn configure(
    roots: RootCertStore,
    identity: Option<Identity>,
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// The TLS fault that caused `error`, if any.
pub(super) fn fault(error: &(dyn Error + 'static), name: &str) -> Option<TlsFault> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(classify(error, name));
        }
        // The source of an I/O error is not the wrapped error, but that error's source.
        next = match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls knows far more faults than people can do something about"
)]
fn classify(error: &rustls::Error, name: &str) -> TlsFault {
    match error {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                TlsFault::UnknownAuthority
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsFault::WrongName {
                    name: name.to_owned(),
                }
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                TlsFault::Expired
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TlsFault::NotYetValid
            }
            other => TlsFault::Other {
                why: format!("the server's certificate is unusable: {other}"),
            },
        },
        rustls::Error::AlertReceived(alert) => TlsFault::Alert {
            alert: format!("{alert:?}"),
        },
        other => TlsFault::Other {
            why: other.to_string(),
        },
    }
}
