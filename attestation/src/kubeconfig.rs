//! Kubeconfigs: an API server with its CA certificates, and a login.
//!
//! client-go defines the format of kubeconfigs (`tools/clientcmd/api/v1/types.go`). Like client-go, this parser ignores
//! unknown keys. It rejects a field that would change the connection or the login, and reports the reason. The author
//! of the kubeconfig determines whether the parser rejects more: see [`Policy`].
//!
//! The parser reads only the text. The caller reads the files to which the text refers.

mod document;
mod endpoint;
mod error;
mod login;
mod source;

pub use document::{Cluster, Kubeconfig, first_document};
pub use endpoint::{ClusterEndpoint, EndpointFields, proxy_url};
pub use error::{InvalidKubeconfig, Refused};
pub use login::{Exec, Identity, Login, identity};
pub use source::no_files;

/// The rules for a kubeconfig. The rules depend on the author of the kubeconfig.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The author is the administrator of this machine. The kubeconfig can refer to files and a proxy. Only the current
    /// context is checked. The parser accepts the same encodings as client-go.
    Machine,
    /// The author is a tenant. All content is inline. The kubeconfig cannot run a program, read a file, or connect
    /// through another host. Every entry is checked, and errors do not contain any text of the kubeconfig.
    Tenant,
}

impl Policy {
    /// The maximum size of a kubeconfig, or of a file to which it refers, in bytes. The limit is ten times the size of
    /// a usual kubeconfig, which contains a CA bundle, a certificate and a key in base64.
    pub fn max_len(self) -> usize {
        match self {
            Self::Machine => 1024 * 1024,
            Self::Tenant => 64 * 1024,
        }
    }
}

#[cfg(test)]
mod tests;
