//! Access to a cluster.
//!
//! This module reads kubeconfigs from the controller's operator, who can use every feature: files, `exec` and proxies.
//! For a tenant's kubeconfig, see [`TenantKubeconfig`](crate::capi::TenantKubeconfig).

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use kubelet_attestation::kubeconfig::{InvalidKubeconfig, Refused};

use super::egress::EgressPolicy;
use super::server_time::ServerTime;
use crate::object_key::ObjectKey;

/// The maximum file size, which is enough for hundreds of clusters with their certificates. The limit prevents reading
/// all of a large file that was specified by mistake.
const MAX_FILE_LEN: u64 = 1024 * 1024;

/// A kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterAccessError {
    /// The kubeconfig does not use https, disables the server's verification, or has no CA.
    #[error(transparent)]
    Refused(#[from] InvalidKubeconfig),
    /// The file cannot be read, is too long, is incomplete, or contains credentials that cannot be used.
    #[error("cannot use the kubeconfig {}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The process does not run in a Pod.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InClusterAccessError {
    /// The service account's files or the environment variables are missing.
    #[error("not in a cluster: no service account was found")]
    ServiceAccount(#[from] InClusterError),
    /// The service account cannot be used.
    #[error("cannot create a client for the service account")]
    Client(#[from] Box<kube::Error>),
}

/// A client for one cluster, and the CA certificates that it trusts.
#[derive(derive_more::Debug, Clone)]
#[debug("ClusterAccess({server})")]
pub struct ClusterAccess {
    pub(super) client: Client,
    pub(super) lease_client: Option<Client>,
    pub(super) server: String,
    pub(super) ca_certificates: Vec<Vec<u8>>,
    pub(super) server_time: ServerTime,
}

impl ClusterAccess {
    /// Reads the kubeconfig. Does not connect to the cluster.
    ///
    /// The client limits the size of responses, and does not follow redirects.
    pub async fn from_kubeconfig(path: &Path) -> Result<Self, ClusterAccessError> {
        Self::from_kubeconfigs(&[path.to_owned()], None).await
    }

    /// Reads kubeconfigs and merges them as kubectl does with `KUBECONFIG`: the first file that defines a name or the
    /// current context takes precedence.
    ///
    /// `context` overrides the current context.
    ///
    /// The client has the same properties as in [`from_kubeconfig`](Self::from_kubeconfig).
    pub async fn from_kubeconfigs(
        paths: &[PathBuf],
        context: Option<&str>,
    ) -> Result<Self, ClusterAccessError> {
        let joined = env::join_paths(paths).map_or_else(|_| PathBuf::new(), PathBuf::from);
        let path = match paths {
            [path] => path,
            _ => &joined,
        };
        let unusable = |source: Box<dyn Error + Send + Sync>| ClusterAccessError::Unusable {
            path: path.clone(),
            source,
        };
        let mut kubeconfig = Kubeconfig::default();
        for path in paths {
            // A missing file causes an error in a later step.
            if fs::metadata(path).is_ok_and(|file| !file.is_file() || file.len() > MAX_FILE_LEN) {
                let why = format!("it is not a regular file of at most {MAX_FILE_LEN} bytes");
                return Err(unusable(why.into()));
            }
            let read = Kubeconfig::read_from(path).and_then(|next| kubeconfig.merge(next));
            kubeconfig = read.map_err(|error| unusable(error.into()))?;
        }
        let options = KubeConfigOptions {
            context: context.map(str::to_owned),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options);
        let config = config.await.map_err(|error| unusable(error.into()))?;
        let place = format!("the kubeconfig {}", path.display());
        let refuse = |field, why| Err(InvalidKubeconfig::new(&place, field, why).into());
        if config.cluster_url.scheme_str() != Some("https") {
            return refuse("server", Refused::NotHttps);
        }
        if config.accept_invalid_certs {
            return refuse("insecure-skip-tls-verify", Refused::SkipsVerification);
        }
        if config.root_cert.as_ref().is_none_or(Vec::is_empty) {
            return refuse("certificate-authority-data", Refused::NoCa);
        }
        Self::of_operator(config).map_err(|error| unusable(error))
    }

    /// Creates access to the cluster in which this process runs, with the Pod's service account.
    pub fn in_cluster() -> Result<Self, InClusterAccessError> {
        Ok(Self::of_operator(Config::incluster()?)?)
    }

    fn of_operator(config: Config) -> Result<Self, Box<kube::Error>> {
        let server_time = ServerTime::default();
        let client = || super::of_operator(config.clone(), &server_time).map_err(Box::new);
        Ok(Self {
            client: client()?,
            lease_client: Some(client()?),
            server: config.cluster_url.to_string(),
            ca_certificates: config.root_cert.unwrap_or_default(),
            server_time,
        })
    }

    /// Creates access to a cluster that a tenant described, if the policy `egress` allows its API server. The client
    /// uses the turns and memory of this Cluster.
    pub(crate) fn of_tenant(
        config: Config,
        egress: EgressPolicy,
        cluster: &ObjectKey,
    ) -> Result<Self, kube::Error> {
        let server = config.cluster_url.to_string();
        let ca_certificates = config.root_cert.clone().unwrap_or_default();
        Ok(Self {
            client: super::of_tenant(config, egress, cluster)?,
            lease_client: None,
            server,
            ca_certificates,
            server_time: ServerTime::default(),
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

    /// A client that is reserved for the Lease. It has separate connections and call limits, so that other calls never
    /// delay a renewal.
    pub(crate) fn lease_client(&self) -> &Client {
        self.lease_client.as_ref().unwrap_or(&self.client)
    }

    /// The time on the API server. The time is unknown for a tenant's API server, because that server can report any
    /// time.
    pub fn server_time(&self) -> &ServerTime {
        &self.server_time
    }

    /// The URL of the API server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The certificates in the kubeconfig's CA data, as DER.
    pub fn ca_certificates(&self) -> &[Vec<u8>] {
        &self.ca_certificates
    }
}
