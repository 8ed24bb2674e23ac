//! Access to a cluster.
//!
//! A kubeconfig that is read here is one that the operator of this controller wrote: it may do what
//! a kubeconfig can, with files, `exec`, a proxy. A tenant's is read by
//! [`TenantKubeconfig`](crate::capi::TenantKubeconfig).

use std::fmt::{self, Debug};
use std::fs;
use std::path::{Path, PathBuf};

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::egress::EgressPolicy;

/// Some hundred clusters with their certificates; a limit, so that a wrong file is not read whole.
const MAX_FILE_LEN: u64 = 1024 * 1024;

/// A kubeconfig could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterAccessError {
    /// It could not be read.
    #[error("cannot read the kubeconfig {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<KubeconfigError>,
    },
    /// It is no file, or longer than any kubeconfig.
    #[error("the kubeconfig {} is no file of at most {MAX_FILE_LEN} bytes", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Its current context is no access to a cluster.
    #[error("the kubeconfig {} is incomplete", path.display())]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// The missing part.
        source: Box<KubeconfigError>,
    },
    /// The server is spoken to without TLS.
    #[error("the kubeconfig {}: server is not an https URL", path.display())]
    NotHttps {
        /// The file.
        path: PathBuf,
    },
    /// Whoever answers is believed to be the API server.
    #[error("the kubeconfig {}: insecure-skip-tls-verify is not accepted", path.display())]
    SkipsVerification {
        /// The file.
        path: PathBuf,
    },
    /// It names no CA.
    #[error("the kubeconfig {}: certificate-authority and certificate-authority-data are missing", path.display())]
    NoCa {
        /// The file.
        path: PathBuf,
    },
    /// The credentials in it cannot be used.
    #[error("the kubeconfig {} gives no client", path.display())]
    Client {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<kube::Error>,
    },
}

/// We do not run in a cluster, or not as a Pod runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InClusterAccessError {
    /// The service account's files or the environment.
    #[error("not in a cluster: there is no service account")]
    ServiceAccount(#[from] InClusterError),
    /// They cannot be used.
    #[error("the service account gives no client")]
    Client(#[from] Box<kube::Error>),
}

/// A client of one cluster, and the CA certificates that it trusts.
#[derive(Clone)]
pub struct ClusterAccess {
    pub(super) client: Client,
    pub(super) lease_client: Option<Client>,
    pub(super) server: String,
    pub(super) ca_certificates: Vec<Vec<u8>>,
}

impl ClusterAccess {
    /// Reads the kubeconfig; nothing is asked of the cluster.
    ///
    /// The client reads no answer without a bound, and follows no redirection.
    pub async fn from_kubeconfig(path: &Path) -> Result<Self, ClusterAccessError> {
        let here = || path.to_owned();
        // What is not there is told of below.
        if fs::metadata(path).is_ok_and(|file| !file.is_file() || file.len() > MAX_FILE_LEN) {
            return Err(ClusterAccessError::NotAFile { path: here() });
        }
        let kubeconfig = Kubeconfig::read_from(path).map_err(|error| ClusterAccessError::Read {
            path: here(),
            source: Box::new(error),
        })?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|error| ClusterAccessError::Incomplete {
                path: here(),
                source: Box::new(error),
            })?;
        if config.cluster_url.scheme_str() != Some("https") {
            return Err(ClusterAccessError::NotHttps { path: here() });
        }
        if config.accept_invalid_certs {
            return Err(ClusterAccessError::SkipsVerification { path: here() });
        }
        let ca_certificates = config.root_cert.clone().unwrap_or_default();
        if ca_certificates.is_empty() {
            return Err(ClusterAccessError::NoCa { path: here() });
        }
        let server = config.cluster_url.to_string();
        let client = || {
            super::of_operator(config.clone()).map_err(|error| ClusterAccessError::Client {
                path: here(),
                source: Box::new(error),
            })
        };
        Ok(Self {
            client: client()?,
            lease_client: Some(client()?),
            server,
            ca_certificates,
        })
    }

    /// The cluster that we run in, with our Pod's service account.
    pub fn in_cluster() -> Result<Self, InClusterAccessError> {
        let config = Config::incluster()?;
        let server = config.cluster_url.to_string();
        let ca_certificates = config.root_cert.clone().unwrap_or_default();
        let client = || super::of_operator(config.clone()).map_err(Box::new);
        Ok(Self {
            client: client()?,
            lease_client: Some(client()?),
            server,
            ca_certificates,
        })
    }

    /// A cluster as somebody else describes it, if its API server is in `reach`.
    pub(crate) fn of_tenant(config: Config, reach: EgressPolicy) -> Result<Self, kube::Error> {
        let server = config.cluster_url.to_string();
        let ca_certificates = config.root_cert.clone().unwrap_or_default();
        Ok(Self {
            client: super::of_tenant(config, reach)?,
            lease_client: None,
            server,
            ca_certificates,
        })
    }

    /// The host of the API server: a name, or an address without brackets.
    pub fn server_host(&self) -> Option<String> {
        let url: hyper::Uri = self.server.parse().ok()?;
        let host = url.host()?;
        Some(host.trim_matches(['[', ']']).to_owned())
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A client for the Lease alone, with connections and calls of its own: renewing it waits behind nothing.
    pub(crate) fn lease_client(&self) -> &Client {
        self.lease_client.as_ref().unwrap_or(&self.client)
    }

    /// The API server's URL.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// DER of the certificates in the kubeconfig's CA data.
    pub fn ca_certificates(&self) -> &[Vec<u8>] {
        &self.ca_certificates
    }
}

impl Debug for ClusterAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterAccess")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
