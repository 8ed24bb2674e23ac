//! Errors of kubeconfigs.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The place of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, or another source.
    pub document: String,
    /// The kind and name of a cluster or user in it.
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
pub enum Refused {
    /// `insecure-skip-tls-verify` is set.
    #[error(
        "whoever answers would get the credential, so the server is always verified; give its CA instead"
    )]
    SkipsVerification,
    /// The CA is missing.
    #[error("the cluster's CA is missing; the machine's own list of CAs is not used")]
    NoCa,
    /// The CA is no list of certificates.
    #[error("it is not a list of certificates in PEM")]
    NotCertificates,
    /// The key is invalid.
    #[error("it is not a private key in PEM")]
    NotAKey,
    /// The base64 is invalid.
    #[error("it is not base64")]
    NotBase64,
    /// The server is missing.
    #[error("the server is missing")]
    NoServer,
    /// The server is not on https.
    #[error("only https is spoken with an API server")]
    NotHttps,
    /// The URL is invalid, or has a user, a query or a fragment.
    #[error("it is not the URL of a server")]
    NotAUrl,
    /// No certificate can have this name.
    #[error("it is not the name of a server")]
    NotAServerName,
    /// An address is in the place of a name.
    #[error(
        "an address is no name to verify a server by; leave it out, and the URL's host is verified"
    )]
    AddressAsServerName,
    /// The proxy is neither http nor https.
    #[error("only http and https proxies are spoken to")]
    ProxyScheme,
    /// A proxy is in front of a server with another name in its certificate.
    #[error("a proxy cannot be used together with tls-server-name")]
    ProxyWithServerName,
    /// The user's credential comes from another program.
    #[error("this program is what gives credentials, so it does not run another for its own")]
    Exec,
    /// The user's credential comes from a plugin of the old kind.
    #[error("auth-provider plugins are not supported")]
    AuthProvider,
    /// The user has a user name or a password.
    #[error("API servers have not accepted passwords since Kubernetes 1.19")]
    Password,
    /// The user impersonates another one.
    #[error("a node enrols in its own name, so nobody is impersonated")]
    Impersonation,
    /// The user has no credential.
    #[error("it has none of token, tokenFile and client-certificate with client-key")]
    NoCredential,
    /// Half of the credential is missing.
    #[error("it is missing, and its other half is there")]
    Half,
    /// The token does not fit into a header.
    #[error("it is not a token: printable ASCII without spaces")]
    NotAToken,
}

/// A kubeconfig cannot be used. Errors never contain credentials.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file, or one that it names, cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file, or one that it names, exceeds the limit.
    #[error("{} is longer than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The file is not YAML, or a field has another type.
    #[error("{}: line {line}, column {column}: not a kubeconfig (at {field})", path.display())]
    NotAKubeconfig {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: u64,
        /// The path of the field.
        field: String,
    },
    /// There is no current context.
    #[error("{}: current-context is missing", path.display())]
    NoContext {
        /// The file.
        path: PathBuf,
    },
    /// A context, cluster or user is named and does not exist.
    #[error("{}: there is no {kind} {name:?}, which {by} names", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// `context`, `cluster` or `user`.
        kind: &'static str,
        /// The name.
        name: String,
        /// The source of the name.
        by: String,
    },
    /// Two contexts, clusters or users have the same name, so the choice is ambiguous.
    #[error("{}: there are two of {kind} {name:?}", path.display())]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// `context`, `cluster` or `user`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A field is refused.
    #[error("{place}: {why}")]
    Refused {
        /// The place of the field.
        place: Place,
        /// The reason.
        why: Refused,
    },
}

impl KubeconfigError {
    /// Whether the file, or one that it names, does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
