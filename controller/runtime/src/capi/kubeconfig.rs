//! The kubeconfig of a workload cluster, which a tenant may have written: Secret
//! `<cluster>-kubeconfig`, key `value`.
//!
//! It names an API server and who we are there, and nothing else: whatever would have us run a
//! program, read a file, believe whoever answers, or connect where only we can, is refused,
//! wherever in the text it stands.
//!
//! No proxy is used, the environment's neither: what a proxy dials cannot be checked here.

use std::fmt;

use data_encoding::BASE64;
use hyper::Uri;
use kube::Config;
use kube::config::AuthInfo;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::client::{ClusterAccess, EgressPolicy};

mod document;
mod refused;

pub use refused::KubeconfigRefused;

use document::{Cluster, Document, User};

/// Ten times what Cluster API writes.
const MAX_LEN: usize = 64 * 1024;

/// A CA that is replaced has two certificates for a while, each of which may have a chain.
const MAX_CA_CERTIFICATES: usize = 16;

/// A workload cluster's API server, and who we are to it.
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
        if text.len() > MAX_LEN {
            return Err(KubeconfigRefused::TooLong);
        }
        let document = Document::parse(text)?;
        document.refuse_what_is_not_ours()?;
        let (cluster, user) = document.current()?;
        let mut config = Config::new(server(&cluster, reach)?);
        config.tls_server_name = server_name(&cluster)?;
        config.root_cert = Some(ca_certificates(&cluster)?);
        config.auth_info = credentials(user)?;
        Ok(Self { config, reach })
    }

    /// DER of the certificates that the API server's is checked against.
    pub fn ca_certificates(&self) -> &[Vec<u8>] {
        self.config.root_cert.as_deref().unwrap_or_default()
    }

    /// A client of the cluster. It connects directly, to no address out of reach whatever the
    /// server's name resolves to, and follows no redirection.
    ///
    /// # Errors
    ///
    /// Key and certificate that do not belong together, or a CA certificate that is none.
    pub fn access(&self) -> Result<ClusterAccess, KubeconfigRefused> {
        // The library's error may have a line of the key in it.
        let access = ClusterAccess::of_tenant(self.config.clone(), self.reach);
        access.map_err(|_| KubeconfigRefused::NoClient)
    }
}

impl fmt::Debug for TenantKubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantKubeconfig")
            .field("server", &self.config.cluster_url)
            .finish_non_exhaustive()
    }
}

fn server(cluster: &Cluster, reach: EgressPolicy) -> Result<Uri, KubeconfigRefused> {
    let text = cluster.server.as_deref().unwrap_or_default();
    // The URL's parser drops a fragment in silence.
    for (sign, part) in [('#', "a fragment"), ('?', "a query")] {
        if text.contains(sign) {
            return Err(KubeconfigRefused::Url { part });
        }
    }
    let server: Uri = text.parse().map_err(|_| KubeconfigRefused::Server)?;
    let (Some(scheme), Some(authority)) = (server.scheme_str(), server.authority()) else {
        return Err(KubeconfigRefused::Server);
    };
    if scheme != "https" {
        return Err(KubeconfigRefused::NotHttps);
    }
    if authority.as_str().contains('@') {
        return Err(KubeconfigRefused::Url { part: "a user" });
    }
    let host = authority.host().trim_matches(['[', ']']);
    if host.is_empty() {
        return Err(KubeconfigRefused::Server);
    }
    // A name is looked at when it is resolved.
    if let Ok(address) = host.parse()
        && let Some(neighbourhood) = reach.refuses(address)
    {
        return Err(KubeconfigRefused::Address {
            address,
            neighbourhood,
        });
    }
    Ok(server)
}

fn server_name(cluster: &Cluster) -> Result<Option<String>, KubeconfigRefused> {
    let name = cluster.tls_server_name.as_deref().unwrap_or_default();
    if name.is_empty() {
        return Ok(None);
    }
    ServerName::try_from(name).map_err(|_| KubeconfigRefused::ServerName)?;
    Ok(Some(name.to_owned()))
}

fn ca_certificates(cluster: &Cluster) -> Result<Vec<Vec<u8>>, KubeconfigRefused> {
    let data = cluster.ca_data.as_deref().unwrap_or_default();
    if data.is_empty() {
        return Err(KubeconfigRefused::NoCa);
    }
    let pem = decoded(data).ok_or(KubeconfigRefused::Ca)?;
    let certificates = certificates(&pem).ok_or(KubeconfigRefused::Ca)?;
    if certificates.len() > MAX_CA_CERTIFICATES {
        return Err(KubeconfigRefused::Ca);
    }
    Ok(certificates)
}

fn credentials(user: User) -> Result<AuthInfo, KubeconfigRefused> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let secret = |text: Option<Zeroizing<String>>| text.filter(|text| !text.is_empty());
    let chain = given(user.certificate_data);
    match (chain, secret(user.key_data), secret(user.token)) {
        (None, None, None) => Err(KubeconfigRefused::NoCredential),
        (Some(chain), Some(key), None) => certificate(chain, &key),
        (None, None, Some(token)) => {
            // What a header can have (RFC 6750 section 2.1 allows less).
            if token.bytes().all(|byte| byte.is_ascii_graphic()) {
                Ok(AuthInfo {
                    token: Some(token.as_str().into()),
                    ..AuthInfo::default()
                })
            } else {
                Err(KubeconfigRefused::Unreadable {
                    credential: "token",
                })
            }
        }
        (Some(_), None, None) | (None, Some(_), None) => Err(KubeconfigRefused::HalfACertificate),
        (Some(_), _, Some(_)) | (None, Some(_), Some(_)) => Err(KubeconfigRefused::TwoCredentials),
    }
}

fn certificate(chain: String, key: &str) -> Result<AuthInfo, KubeconfigRefused> {
    let unreadable = |credential| KubeconfigRefused::Unreadable { credential };
    decoded(&chain)
        .and_then(|pem| certificates(&pem))
        .ok_or_else(|| unreadable("client-certificate-data"))?;
    decoded(key)
        .and_then(|pem| PrivateKeyDer::from_pem_slice(&pem).ok())
        .ok_or_else(|| unreadable("client-key-data"))?;
    Ok(AuthInfo {
        client_certificate_data: Some(chain),
        client_key_data: Some(key.into()),
        ..AuthInfo::default()
    })
}

fn decoded(base64: &str) -> Option<Zeroizing<Vec<u8>>> {
    BASE64.decode(base64.as_bytes()).ok().map(Zeroizing::new)
}

/// DER of one certificate or more, and of nothing else.
fn certificates(pem: &[u8]) -> Option<Vec<Vec<u8>>> {
    let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .ok()?;
    let certificates: Vec<_> = certificates.iter().map(|der| der.to_vec()).collect();
    (!certificates.is_empty()).then_some(certificates)
}

#[cfg(test)]
mod tests;
