//! Why a tenant's kubeconfig is not used.

use std::net::IpAddr;

use crate::client::LocalRange;

/// A tenant's kubeconfig is refused, for the first of these that is found.
///
/// `Display` repeats nothing of the text but an address, so it can go into a condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KubeconfigRefused {
    /// It is longer than any kubeconfig.
    #[error("it is longer than {} bytes", super::MAX_LEN)]
    TooLong,
    /// It is no text.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// It is no YAML, has another form, uses anchors, or is nested too deep.
    #[error("it is no kubeconfig: see line {line}, column {column}")]
    Syntax {
        /// Where, from 1.
        line: u64,
        /// Where in the line, from 1.
        column: u64,
    },
    /// It says that it is something else.
    #[error("it is not of apiVersion v1 and kind Config")]
    WrongType,
    /// It has more than a few entries.
    #[error("it has more than {max} {listed}")]
    TooMany {
        /// Of what.
        listed: &'static str,
        /// The most it may have.
        max: usize,
    },
    /// Two entries have one name, and programs differ in which of them they take.
    #[error("two of its {listed} have the same name")]
    Duplicate {
        /// The kind of the list.
        listed: &'static str,
    },
    /// It does not say which of its contexts counts.
    #[error("current-context is missing")]
    NoCurrentContext,
    /// What the current context names is not there.
    #[error("what its current context needs is not among its {listed}")]
    Unknown {
        /// Where it should be.
        listed: &'static str,
    },
    /// It would have a program run.
    #[error("exec is not accepted")]
    Exec,
    /// It would have a program run.
    #[error("auth-provider is not accepted")]
    AuthProvider,
    /// It would have a file read.
    #[error("{field} is not accepted: it names a file")]
    File {
        /// The field.
        field: &'static str,
    },
    /// It would have us speak to the API server by way of another.
    #[error("proxy-url is not accepted")]
    Proxy,
    /// Whoever answers would be believed to be the API server.
    #[error("insecure-skip-tls-verify is not accepted")]
    SkipsVerification,
    /// It would have us act as somebody else.
    #[error("{field} is not accepted")]
    Impersonates {
        /// The field.
        field: &'static str,
    },
    /// Kubernetes has no passwords.
    #[error("username and password are not accepted")]
    Password,
    /// It names no API server, or none that can be spoken to.
    #[error("server is no URL with a host")]
    Server,
    /// The API server is spoken to without TLS.
    #[error("server is not an https URL")]
    NotHttps,
    /// The URL has more than a host, a port and a path.
    #[error("server has {part}, which is not accepted")]
    Url {
        /// What it has.
        part: &'static str,
    },
    /// Only we can reach what answers there.
    #[error("server's address {address} is not accepted: it is {neighbourhood}")]
    Address {
        /// The address.
        address: IpAddr,
        /// The error.
        neighbourhood: LocalRange,
    },
    /// The name to check the API server's certificate against is none.
    #[error("tls-server-name is neither a DNS name nor an IP address")]
    ServerName,
    /// It has no CA.
    #[error("certificate-authority-data is missing")]
    NoCa,
    /// Its CA cannot be used.
    #[error(
        "certificate-authority-data is not the base64 of one to {} PEM certificates",
        super::MAX_CA_CERTIFICATES
    )]
    Ca,
    /// It does not say who we are.
    #[error("there is neither a client certificate nor a token")]
    NoCredential,
    /// It has a certificate without its key, or a key without its certificate.
    #[error("of client-certificate-data and client-key-data, one is missing")]
    HalfACertificate,
    /// It says twice who we are.
    #[error("there are a client certificate and a token")]
    TwoCredentials,
    /// A credential is not in the form that it should have.
    #[error("{credential} cannot be read")]
    Unreadable {
        /// The credential.
        credential: &'static str,
    },
    /// The client certificate is not the key's, or a CA certificate is none.
    #[error(
        "the client certificate and key do not belong together, or a certificate cannot be used"
    )]
    NoClient,
}
