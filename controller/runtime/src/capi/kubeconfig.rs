//! The kubeconfig of a workload cluster: Secret `<cluster>-kubeconfig`, key `value`.
//!
//! A tenant can write this Secret. The kubeconfig is allowed to contain only an API server and a credential. The
//! controller rejects a kubeconfig that would make it run a program, read a file, or skip the verification of the
//! server. It also rejects an address that only the controller can reach.
//!
//! The controller does not use a proxy, and ignores proxy variables in its environment, because it cannot check the
//! addresses to which a proxy connects.

use std::net::IpAddr;

use data_encoding::BASE64;
use k8s_openapi::api::core::v1::Secret;
use kube::Config;
use kube::config::AuthInfo;
use kubelet_attestation::kubeconfig::{
    InvalidKubeconfig, Kubeconfig, Login, Policy, Refused, identity, no_files,
};
use node_attestation_core::signer::{InvalidPrivateKey, PrivateKey, PrivateKeyForm};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::ObjectKey;
use super::secret_values::KUBECONFIG_KEY;
use super::workload_access::{TokenClaims, kubeconfig_text};
use crate::client::{ClusterAccess, EgressPolicy, LocalRange};

/// The name of the document in error messages: the key of the kubeconfig in the Secret.
const DOCUMENT: &str = "value";

/// The name of the Secret that contains Cluster API's kubeconfig for the Cluster with this name.
pub(crate) fn kubeconfig_secret_name(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

/// The first reason to reject a tenant's kubeconfig.
///
/// `Display` contains only an address from the kubeconfig, so it is safe in a condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KubeconfigRefused {
    /// The kubeconfig contains a field that tenants are not allowed to use, or a required field is missing.
    #[error(transparent)]
    Invalid(#[from] InvalidKubeconfig),
    /// Only the controller can reach the server's address.
    #[error("server address {address} is not accepted: it is {local_range}")]
    Address {
        /// The address.
        address: IpAddr,
        /// The address range.
        local_range: LocalRange,
    },
    /// The client key is rejected.
    #[error("{}: user: client-key-data is not accepted", DOCUMENT)]
    ClientKey(#[from] InvalidPrivateKey),
    /// The client certificate does not match the key, or a certificate or the URL cannot be used.
    #[error("the client certificate does not match the client key, or a certificate is invalid")]
    NoClient,
}

/// The API server of a workload cluster, with the controller's credential for it.
#[derive(derive_more::Debug)]
#[debug("TenantKubeconfig({})", config.cluster_url)]
pub struct TenantKubeconfig {
    config: Config,
    egress: EgressPolicy,
    /// The claims of the service account token, if the user has such a token.
    claims: Option<TokenClaims>,
}

impl TenantKubeconfig {
    /// Parses the kubeconfig in the Secret. A missing kubeconfig counts as an empty text.
    ///
    /// # Errors
    ///
    /// Like [`parse`](Self::parse).
    pub(crate) fn from_secret(
        secret: &Secret,
        egress: EgressPolicy,
    ) -> Result<Self, KubeconfigRefused> {
        let values = secret.data.as_ref();
        let text = values.and_then(|values| values.get(KUBECONFIG_KEY));
        let text = text.map(|text| text.0.as_slice()).unwrap_or_default();
        Self::parse(text, egress)
    }

    /// Parses the kubeconfig and uses its current context. Does not connect to the cluster.
    ///
    /// # Errors
    ///
    /// Returns the first reason to reject it. The error does not contain any part of the text except an address.
    pub fn parse(text: &[u8], egress: EgressPolicy) -> Result<Self, KubeconfigRefused> {
        let kubeconfig = Kubeconfig::parse(DOCUMENT, text, Policy::Tenant)?;
        let endpoint = kubeconfig.endpoint(no_files)?;
        // If the server is a host name, its addresses are checked when the name is resolved.
        if let Some(address) = endpoint.address()
            && let Some(local_range) = egress.refuses(address)
        {
            return Err(KubeconfigRefused::Address {
                address,
                local_range,
            });
        }
        let url = endpoint.url().as_str().parse();
        let mut config = Config::new(url.map_err(|_| KubeconfigRefused::NoClient)?);
        config.tls_server_name = endpoint.tls_server_name().map(str::to_owned);
        config.root_cert = Some(endpoint.ca().iter().map(|der| der.to_vec()).collect());
        let login = kubeconfig.login(no_files)?;
        let claims = match &login {
            Login::Token(token) => TokenClaims::of(token.expose()),
            Login::ClientCertificate { .. } => None,
        };
        config.auth_info = auth_info(&login)?;
        Ok(Self {
            config,
            egress,
            claims,
        })
    }

    /// The claims of the user's token. `None` if the user has no service account token that expires.
    pub fn claims(&self) -> Option<&TokenClaims> {
        self.claims.as_ref()
    }

    /// The kubeconfig for the same API server with another token, as text that is wiped when it is dropped. `None` if
    /// the text is not a token.
    pub(crate) fn with_token(&self, token: &str) -> Option<Zeroizing<String>> {
        let server = self.config.cluster_url.to_string();
        let name = self.config.tls_server_name.as_deref();
        kubeconfig_text(&server, name, self.ca_certificates(), token)
    }

    /// The CA certificates for the API server, as DER.
    pub fn ca_certificates(&self) -> &[Vec<u8>] {
        self.config.root_cert.as_deref().unwrap_or_default()
    }

    /// Creates a client for the cluster, with this Cluster's turns and memory limits.
    ///
    /// The client connects directly and does not follow redirects. It never connects to a rejected address, even if the
    /// server's name resolves to that address.
    ///
    /// # Errors
    ///
    /// Returns an error if the key does not match the certificate, or if a CA certificate is invalid.
    pub fn access(&self, cluster: &ObjectKey) -> Result<ClusterAccess, KubeconfigRefused> {
        #[cfg(test)]
        tests::CLIENTS.set(tests::CLIENTS.get() + 1);
        // The library's error might contain a line of the key, so it is dropped.
        let access = ClusterAccess::of_tenant(self.config.clone(), self.egress, cluster);
        access.map_err(|_| KubeconfigRefused::NoClient)
    }
}

fn auth_info(login: &Login) -> Result<AuthInfo, KubeconfigRefused> {
    Ok(match login {
        Login::Token(token) => AuthInfo {
            token: Some(token.expose().as_str().into()),
            ..AuthInfo::default()
        },
        Login::ClientCertificate { chain_pem, key_pem } => {
            let read = identity(chain_pem, key_pem, Policy::Tenant);
            let (chain, key) = read.map_err(|(field, why)| refused(field, why))?;
            // kube uses the last key that it finds in the certificate data and in the key data. Therefore kube gets
            // only the certificates and the key that were checked here.
            let chain: String = chain.iter().map(certificate_pem).collect();
            let key = checked(&key)?.to_pem();
            let key = Zeroizing::new(BASE64.encode(key.as_bytes()));
            AuthInfo {
                client_certificate_data: Some(BASE64.encode(chain.as_bytes())),
                client_key_data: Some(key.as_str().into()),
                ..AuthInfo::default()
            }
        }
    })
}

fn refused(field: &str, why: Refused) -> InvalidKubeconfig {
    InvalidKubeconfig::new(DOCUMENT, field, why)
}

fn certificate_pem(der: &CertificateDer<'_>) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", der.to_vec()))
}

/// Checks the client key before a library parses it.
fn checked(key: &PrivateKeyDer<'_>) -> Result<PrivateKey, KubeconfigRefused> {
    let form = match key {
        PrivateKeyDer::Pkcs8(_) => PrivateKeyForm::Pkcs8,
        PrivateKeyDer::Pkcs1(_) => PrivateKeyForm::Pkcs1,
        PrivateKeyDer::Sec1(_) => PrivateKeyForm::Sec1,
        _ => return Err(refused("client-key", Refused::NotAKey).into()),
    };
    let der = Zeroizing::new(key.secret_der().to_vec());
    Ok(PrivateKey::new(form, der)?)
}

#[cfg(test)]
pub(crate) use tests::created_clients;

#[cfg(test)]
mod tests;
