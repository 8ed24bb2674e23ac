//! The kubeconfig of a workload cluster, which a tenant may have written: Secret
//! `<cluster>-kubeconfig`, key `value`.
//!
//! It names an API server and who we are there, and nothing else: whatever would have us run a
//! program, read a file, believe whoever answers, or connect where only we can, is refused,
//! wherever in the text it stands.
//!
//! No proxy is used, the environment's neither: what a proxy dials cannot be checked here.

use std::net::IpAddr;

use data_encoding::BASE64;
use kube::Config;
use kube::config::AuthInfo;
use kubelet_attestation::kubeconfig::{InvalidKubeconfig, Kubeconfig, Login, Policy, no_files};
use zeroize::Zeroizing;

use super::ObjectKey;
use crate::client::{ClusterAccess, EgressPolicy, LocalRange};

/// The name of the text in errors: its key in the Secret.
const DOCUMENT: &str = "value";

/// A tenant's kubeconfig is refused, for the first of these that is found.
///
/// `Display` repeats nothing of the text but an address, so it can go into a condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KubeconfigRefused {
    /// It has what a tenant's kubeconfig may not have, or lacks what it must have.
    #[error(transparent)]
    Invalid(#[from] InvalidKubeconfig),
    /// Only we can reach what answers there.
    #[error("server's address {address} is not accepted: it is {neighbourhood}")]
    Address {
        /// The address.
        address: IpAddr,
        /// The range that it is in.
        neighbourhood: LocalRange,
    },
    /// The client certificate is not the key's, or a certificate or the URL cannot be used.
    #[error(
        "the client certificate and key do not belong together, or a certificate cannot be used"
    )]
    NoClient,
}

/// A workload cluster's API server, and who we are to it.
#[derive(derive_more::Debug)]
#[debug("TenantKubeconfig({})", config.cluster_url)]
pub struct TenantKubeconfig {
    config: Config,
    reach: EgressPolicy,
}

impl TenantKubeconfig {
    /// Reads the text, whose current context counts; nothing is asked of the cluster.
    ///
    /// # Errors
    ///
    /// The first thing that is refused. No error repeats anything of the text but an address.
    pub fn parse(text: &[u8], reach: EgressPolicy) -> Result<Self, KubeconfigRefused> {
        let kubeconfig = Kubeconfig::parse(DOCUMENT, text, Policy::Tenant)?;
        let endpoint = kubeconfig.endpoint(no_files)?;
        // A name is looked at when it is resolved.
        if let Some(address) = endpoint.address()
            && let Some(neighbourhood) = reach.refuses(address)
        {
            return Err(KubeconfigRefused::Address {
                address,
                neighbourhood,
            });
        }
        let url = endpoint.url().as_str().parse();
        let mut config = Config::new(url.map_err(|_| KubeconfigRefused::NoClient)?);
        config.tls_server_name = endpoint.tls_server_name().map(str::to_owned);
        config.root_cert = Some(endpoint.ca().iter().map(|der| der.to_vec()).collect());
        config.auth_info = auth_info(&kubeconfig.login(no_files)?);
        Ok(Self { config, reach })
    }

    /// DER of the certificates that the API server's is checked against.
    pub fn ca_certificates(&self) -> &[Vec<u8>] {
        self.config.root_cert.as_deref().unwrap_or_default()
    }

    /// A client of the cluster, with the turns and the memory of this Cluster. It connects directly, to no address out of reach whatever the
    /// server's name resolves to, and follows no redirection.
    ///
    /// # Errors
    ///
    /// Key and certificate that do not belong together, or a CA certificate that is none.
    pub fn access(&self, cluster: &ObjectKey) -> Result<ClusterAccess, KubeconfigRefused> {
        // The library's error may have a line of the key in it.
        let access = ClusterAccess::of_tenant(self.config.clone(), self.reach, cluster);
        access.map_err(|_| KubeconfigRefused::NoClient)
    }
}

fn auth_info(login: &Login) -> AuthInfo {
    match login {
        Login::Token(token) => AuthInfo {
            token: Some(token.expose().as_str().into()),
            ..AuthInfo::default()
        },
        Login::ClientCertificate { chain_pem, key_pem } => {
            let key = Zeroizing::new(BASE64.encode(key_pem.expose().as_bytes()));
            AuthInfo {
                client_certificate_data: Some(BASE64.encode(chain_pem.as_bytes())),
                client_key_data: Some(key.as_str().into()),
                ..AuthInfo::default()
            }
        }
    }
}

#[cfg(test)]
mod tests;
