//! Kubeconfigs: an API server with its CA certificates, and a login.
//!
//! A kubeconfig is a foreign format (client-go's `tools/clientcmd/api/v1/types.go`), so unknown keys
//! are ignored, as there. A field that would make the connection or the login differ from what the
//! text says is refused, with a reason. What else is refused depends on who wrote it: [`Policy`].
//!
//! Nothing is read but the text. The caller reads the files that it names.

mod document;
mod endpoint;
mod error;
mod login;
mod source;

pub use document::{Cluster, Kubeconfig};
pub use endpoint::{ClusterEndpoint, EndpointFields, proxy_url};
pub use error::{InvalidKubeconfig, Refused};
pub use login::{Exec, Identity, Login, identity};
pub use source::no_files;

/// The policy on a kubeconfig, by its author.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The administrator of this machine. It may name files, and a proxy. Only the current context
    /// counts. Encodings are those that client-go accepts.
    Machine,
    /// A tenant. Everything is inline, and nothing runs a program, reads a file, or connects by way
    /// of another host. Every entry is checked, and errors repeat nothing of the text.
    Tenant,
}

impl Policy {
    /// The most bytes of a kubeconfig, or of a file that it names. Ten times what is usual: a CA
    /// bundle, a certificate and a key in base64, or what Cluster API writes.
    pub fn max_len(self) -> usize {
        match self {
            Self::Machine => 1024 * 1024,
            Self::Tenant => 64 * 1024,
        }
    }
}

#[cfg(test)]
mod tests;
