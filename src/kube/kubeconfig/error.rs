//! Why a kubeconfig cannot be used.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where in what is written something is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The file, or what else was read.
    pub document: String,
    /// The cluster or user in it, with its name.
    pub object: Option<(&'static str, String)>,
    /// The field.
    pub field: &'static str,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.document)?;
        if let Some((kind, name)) = &self.object {
            write!(f, ": {kind} {name:?}")?;
        }
        write!(f, ": {}", self.field)
    }
}

/// Why a field is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// `insecure-skip-tls-verify`.
    #[error(
        "whoever answers would get the credential, so the server is always verified; give its CA instead"
    )]
    SkipsVerification,
    /// No CA.
    #[error("the cluster's CA is missing; the machine's own list of CAs is not used")]
    NoCa,
    /// A CA that is no certificate.
    #[error("it is not a list of certificates in PEM")]
    NotCertificates,
    /// A key that is no key.
    #[error("it is not a private key in PEM")]
    NotAKey,
    /// Base64 that is none.
    #[error("it is not base64")]
    NotBase64,
    /// No server.
    #[error("the server is missing")]
    NoServer,
    /// A server that is not on https.
    #[error("only https is spoken with an API server")]
    NotHttps,
    /// Not a URL, or one with a user, a query or a fragment.
    #[error("it is not the URL of a server")]
    NotAUrl,
    /// A name that no certificate can have.
    #[error("it is not the name of a server")]
    NotAServerName,
    /// An address where a name is needed.
    #[error(
        "an address is no name to verify a server by; leave it out, and the URL's host is verified"
    )]
    AddressAsServerName,
    /// A proxy that is not spoken to.
    #[error("only http and https proxies are spoken to")]
    ProxyScheme,
    /// A proxy in front of a server that has another name in its certificate.
    #[error("a proxy cannot be used together with tls-server-name")]
    ProxyWithServerName,
    /// A user whose credential comes from another program.
    #[error("this program is what gives credentials, so it does not run another for its own")]
    Exec,
    /// A user whose credential comes from a plugin of old.
    #[error("auth-provider plugins are not supported")]
    AuthProvider,
    /// A user name and password.
    #[error("API servers have not accepted passwords since Kubernetes 1.19")]
    Password,
    /// A request in another user's name.
    #[error("a node enrols in its own name, so nobody is impersonated")]
    Impersonation,
    /// No credential.
    #[error("it has none of token, tokenFile and client-certificate with client-key")]
    NoCredential,
    /// Half a credential.
    #[error("it is missing, and its other half is there")]
    Half,
    /// A token that no header can carry.
    #[error("it is not a token: printable ASCII without spaces")]
    NotAToken,
}

/// A kubeconfig cannot be used. Contents of credentials are never repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeconfigError {
    /// The file, or one that it names, cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file, or one that it names, is too long.
    #[error("{} is longer than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The file is not YAML, or has something else where a field is expected.
    #[error("{}: line {line}, column {column}: not a kubeconfig (at {field})", path.display())]
    NotAKubeconfig {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: u64,
        /// The field, as a path.
        field: String,
    },
    /// No context is chosen.
    #[error("{}: current-context is missing", path.display())]
    NoContext {
        /// The file.
        path: PathBuf,
    },
    /// Something is named and not there.
    #[error("{}: there is no {kind} {name:?}, which {by} names", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Context, cluster or user.
        kind: &'static str,
        /// The name.
        name: String,
        /// Who names it.
        by: String,
    },
    /// Two have one name, so nobody can say which is meant.
    #[error("{}: there are two of {kind} {name:?}", path.display())]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// Context, cluster or user.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A field is refused.
    #[error("{place}: {why}")]
    Refused {
        /// Where.
        place: Place,
        /// The reason.
        why: Refused,
    },
}

impl KubeconfigError {
    /// Whether the file, or one that it names, is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
