//! Errors for kubeconfigs.

/// A rejected kubeconfig, or a rejected field of it. The error never contains credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct InvalidKubeconfig {
    /// The document, the cluster or user in the document, and the field.
    pub place: String,
    /// The reason.
    pub why: Refused,
}

impl InvalidKubeconfig {
    /// Rejects the object at `place`.
    pub(super) fn at(place: impl Into<String>, why: Refused) -> Self {
        let place = place.into();
        Self { place, why }
    }

    /// Rejects a field of the object at `place`.
    pub fn new(place: &str, field: &str, why: Refused) -> Self {
        Self::at(format!("{place}: {field}"), why)
    }
}

/// The reason why a kubeconfig or a field is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The text exceeds this number of bytes.
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    /// The bytes are not UTF-8.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// The text is not YAML, a field has an unexpected type, or a tenant's text has anchors or is nested too deeply.
    #[error("it is not a kubeconfig")]
    Syntax,
    /// The document declares a different `apiVersion` or `kind`.
    #[error("it does not have apiVersion v1 and kind Config")]
    WrongType,
    /// A list exceeds this number of entries.
    #[error("it has more than {0} entries")]
    TooMany(usize),
    /// Two entries have the same name, so the choice is ambiguous.
    #[error("two entries have the same name")]
    Ambiguous,
    /// A field is missing, or an entry to which another entry refers is missing.
    #[error("it is missing")]
    Missing,
    /// `insecure-skip-tls-verify` is set.
    #[error(
        "the server is always verified, because it receives the credential; set the server's CA instead"
    )]
    SkipsVerification,
    /// The CA is missing.
    #[error("the cluster's CA is missing; the system's CA certificates are not used")]
    NoCa,
    /// The CA is not a list of certificates.
    #[error("it is not a list of PEM certificates")]
    NotCertificates,
    /// The key is invalid.
    #[error("it is not a PEM private key")]
    NotAKey,
    /// The base64 is invalid.
    #[error("it is not base64")]
    NotBase64,
    /// The URL of the server does not use https.
    #[error("the scheme of an API server must be https")]
    NotHttps,
    /// The URL is invalid, or has a user, a query or a fragment.
    #[error("invalid server URL (want https://HOST[:PORT][/PATH])")]
    NotAUrl,
    /// The text is not valid as the name of a server.
    #[error("invalid server name")]
    NotAServerName,
    /// A proxy is set, and the policy does not accept one.
    #[error("a proxy is not accepted")]
    Proxy,
    /// The proxy has an unsupported scheme.
    #[error("only http, https and socks5 proxies are supported")]
    ProxyScheme,
    /// The proxy's URL is invalid.
    #[error(
        "invalid proxy URL (want http://[USER:PASSWORD@]HOST:PORT, with percent-encoded special characters in USER and \
         PASSWORD)"
    )]
    NotAProxy,
    /// The kubeconfig refers to a file, and the policy does not accept files.
    #[error("a file is not accepted; embed its content")]
    File,
    /// The user's credential comes from an exec plugin.
    #[error("exec plugins are not accepted in this kubeconfig")]
    Exec,
    /// The user's credential comes from a legacy plugin (`auth-provider`).
    #[error("auth-provider plugins are not supported")]
    AuthProvider,
    /// The user has a user name or a password.
    #[error("API servers have not accepted passwords since Kubernetes 1.19")]
    Password,
    /// The user impersonates another user.
    #[error("impersonation is not accepted")]
    Impersonation,
    /// The user has no credential.
    #[error("it does not have a token, a tokenFile, or a client-certificate with client-key")]
    NoCredential,
    /// The user has both a client certificate and a token.
    #[error("a client certificate is also set")]
    TwoCredentials,
    /// Either the client certificate or its key is missing.
    #[error("it is missing; client-certificate and client-key must both be set")]
    Half,
    /// The token contains characters that are not valid in a header.
    #[error("invalid token (want printable ASCII without spaces)")]
    NotAToken,
}
