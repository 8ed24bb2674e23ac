//! The server side of TLS.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use tokio_rustls::TlsAcceptor;

use super::auth::AnyClient;
use super::faults::ConnectionFault;
use crate::pki::{CertificateAuthority, Contents, KeyAndCertificate};

/// The only name in the certificate of [`ConnectionFault::AnotherName`].
pub const OTHER_NAME: &str = "another-server.test";

/// The ALPN protocol names.
pub(super) const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

/// The names of the server's own certificate.
const NAMES: [&str; 4] = [
    "127.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default.svc",
];

/// A TLS acceptor for each certificate.
pub(super) struct Acceptors {
    good: TlsAcceptor,
    another_authority: TlsAcceptor,
    another_name: TlsAcceptor,
    expired: TlsAcceptor,
    not_yet_valid: TlsAcceptor,
    only_http1: TlsAcceptor,
}

impl Acceptors {
    pub(super) fn new(authority: &CertificateAuthority, provider: &Arc<CryptoProvider>) -> Self {
        let speaking = |pair: &KeyAndCertificate, protocols: &[&[u8]]| {
            let clients = AnyClient::new(&authority.certificate_der(), provider);
            let mut config = ServerConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_client_cert_verifier(Arc::new(clients))
                .with_single_cert(vec![pair.certificate_der()], pair.key_der())
                .unwrap();
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            TlsAcceptor::from(Arc::new(config))
        };
        let acceptor = |pair: &KeyAndCertificate| speaking(pair, &[HTTP_2, HTTP_1]);
        let contents = Contents::server(&NAMES);
        let good = authority.issue(&contents);
        Self {
            good: acceptor(&good),
            only_http1: speaking(&good, &[HTTP_1]),
            another_authority: acceptor(&CertificateAuthority::new("another").issue(&contents)),
            another_name: acceptor(&authority.issue(&Contents::server(&[OTHER_NAME]))),
            not_yet_valid: acceptor(&authority.issue(&contents.clone().not_yet_valid())),
            expired: acceptor(&authority.issue(&contents.expired())),
        }
    }

    /// The acceptor for the next connection. `None` if the server must never answer the handshake.
    pub(super) fn choose(&self, fault: Option<ConnectionFault>) -> Option<&TlsAcceptor> {
        match fault {
            None | Some(ConnectionFault::NotHttp | ConnectionFault::Slow) => Some(&self.good),
            Some(ConnectionFault::AnotherAuthority) => Some(&self.another_authority),
            Some(ConnectionFault::AnotherName) => Some(&self.another_name),
            Some(ConnectionFault::ExpiredCertificate) => Some(&self.expired),
            Some(ConnectionFault::NotYetValidCertificate) => Some(&self.not_yet_valid),
            Some(ConnectionFault::OnlyHttp1) => Some(&self.only_http1),
            Some(
                ConnectionFault::SilentAtTcp
                | ConnectionFault::SilentAtTls
                | ConnectionFault::NotTls
                | ConnectionFault::TlsAlert
                | ConnectionFault::Close,
            ) => None,
        }
    }
}
