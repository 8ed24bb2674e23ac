//! An API server, and the CA certificates that verify it.

use core::net::IpAddr;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::Policy;
use super::error::{InvalidKubeconfig, Refused};
use crate::ensure;
use crate::names::Audience;
use crate::secret::Secret;

/// The maximum number of CA certificates of a tenant. During a CA rotation, two CAs exist, and each of them can have a
/// chain.
const MAX_TENANT_CERTIFICATES: usize = 16;

/// The fields of an endpoint, before they are checked. The node stores an endpoint in this format in its state
/// directory.
///
/// Unknown fields are ignored, because a later release can add fields. `Debug` omits the proxy, whose URL can
/// contain a password.
#[derive(derive_more::Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[debug("EndpointFields({server:?}, {tls_server_name:?})")]
#[serde(rename_all = "camelCase")]
pub struct EndpointFields {
    /// The API server's URL.
    pub server: String,
    /// The cluster's CA certificates in PEM.
    pub ca_pem: String,
    /// The expected name in the server's certificate, if it differs from the URL's host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    /// The proxy's URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
}

/// An API server, and the CA certificates that verify it.
///
/// # Guarantees
///
/// The server uses HTTPS. Only the cluster's CA certificates, at least one, verify the server's certificate.
#[derive(Debug)]
pub struct ClusterEndpoint {
    server: Url,
    ca: Vec<CertificateDer<'static>>,
    ca_pem: String,
    tls_server_name: Option<String>,
    proxy: Option<Secret<String>>,
}

impl ClusterEndpoint {
    /// Creates an endpoint of this machine from stored fields. Errors name `document`.
    pub fn from_fields(fields: EndpointFields, document: &str) -> Result<Self, InvalidKubeconfig> {
        Self::check(fields, Policy::Machine, document, "caPem")
    }

    /// Checks the fields. Errors contain `place` and, for the CA, `ca_field`.
    pub(super) fn check(
        fields: EndpointFields,
        policy: Policy,
        place: &str,
        ca_field: &str,
    ) -> Result<Self, InvalidKubeconfig> {
        let at = |field| move |why| InvalidKubeconfig::new(place, field, why);
        let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let server = server(&fields.server).map_err(at("server"))?;
        let ca = certificates(&fields.ca_pem, policy).map_err(at(ca_field))?;
        if policy == Policy::Tenant && ca.len() > MAX_TENANT_CERTIFICATES {
            return Err(at(ca_field)(Refused::TooMany(MAX_TENANT_CERTIFICATES)));
        }
        let tls_server_name = non_empty(fields.tls_server_name);
        if let Some(name) = &tls_server_name {
            check_server_name(name).map_err(at("tls-server-name"))?;
        }
        let proxy = non_empty(fields.proxy_url).map(Secret::new);
        if let Some(proxy) = &proxy {
            proxy_url(proxy.expose()).map_err(at("proxy-url"))?;
        }
        Ok(Self {
            server,
            ca,
            ca_pem: fields.ca_pem,
            tls_server_name,
            proxy,
        })
    }

    /// The fields of the endpoint in the stored format.
    pub fn to_fields(&self) -> EndpointFields {
        EndpointFields {
            server: self.server().to_owned(),
            ca_pem: self.ca_pem.clone(),
            tls_server_name: self.tls_server_name.clone(),
            proxy_url: self.proxy.as_ref().map(|proxy| proxy.expose().clone()),
        }
    }

    /// Whether both endpoints belong to the same cluster. Two endpoints with different servers and without a common CA
    /// certificate belong to different clusters.
    pub fn is_of_same_cluster(&self, other: &Self) -> bool {
        self.server() == other.server() || self.has_ca_of(other)
    }

    /// Whether both endpoints have a common CA certificate.
    pub fn has_ca_of(&self, other: &Self) -> bool {
        self.ca().iter().any(|ca| other.ca().contains(ca))
    }

    /// The API server's URL, without a trailing slash.
    pub fn server(&self) -> &str {
        self.server.as_str().trim_end_matches('/')
    }

    /// The API server's URL.
    pub fn url(&self) -> &Url {
        &self.server
    }

    /// The API server's address, if the URL contains an address instead of a name.
    pub fn address(&self) -> Option<IpAddr> {
        match self.server.host()? {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(address.into()),
            Host::Ipv6(address) => Some(address.into()),
        }
    }

    /// The cluster's CA certificates in DER. There is at least one.
    pub fn ca(&self) -> &[CertificateDer<'static>] {
        &self.ca
    }

    /// The cluster's CA certificates in PEM, unchanged.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The default audience of evidence for this cluster, derived from the first CA certificate. A setting can replace
    /// it.
    pub fn audience(&self) -> Audience {
        let first = self.ca.first();
        Audience::of_ca(first.map(CertificateDer::as_ref).unwrap_or_default())
    }

    /// The expected name in the server's certificate, if it differs from the URL's host.
    pub fn tls_server_name(&self) -> Option<&str> {
        self.tls_server_name.as_deref()
    }

    /// The proxy's URL.
    pub fn proxy(&self) -> Option<&Secret<String>> {
        self.proxy.as_ref()
    }
}

/// Parses a URL with host, port and path. Rejects every '@', because the URL parser drops an empty user without an
/// error.
fn server(text: &str) -> Result<Url, Refused> {
    ensure!(!text.is_empty(), Refused::Missing);
    // client-go uses plain HTTP for a host without a scheme.
    let url = Url::parse(text).map_err(|_| Refused::NotAUrl)?;
    ensure!(url.scheme() == "https", Refused::NotHttps);
    if text.contains(['@', '?', '#']) || !url.has_host() {
        return Err(Refused::NotAUrl);
    }
    Ok(url)
}

fn check_server_name(name: &str) -> Result<(), Refused> {
    match ServerName::try_from(name) {
        Ok(_) => Ok(()),
        Err(_) => Err(Refused::NotAServerName),
    }
}

/// Parses the URL of a proxy that this machine uses.
pub fn proxy_url(text: &str) -> Result<Url, Refused> {
    let url = Url::parse(text).map_err(|_| Refused::NotAProxy)?;
    if !matches!(url.scheme(), "http" | "https" | "socks5" | "socks5h") {
        return Err(Refused::ProxyScheme);
    }
    ensure!(
        url.host_str().is_some_and(|host| !host.is_empty()),
        Refused::NotAProxy
    );
    Ok(url)
}

/// Parses all certificates in PEM. There must be at least one. With [`Policy::Machine`], blocks that cannot be decoded
/// are skipped, as in Go.
pub(super) fn certificates(
    pem: &str,
    policy: Policy,
) -> Result<Vec<CertificateDer<'static>>, Refused> {
    ensure!(!pem.trim().is_empty(), Refused::NoCa);
    let found: Vec<_> = match policy {
        Policy::Tenant => {
            let all: Result<_, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
            all.map_err(|_| Refused::NotCertificates)?
        }
        Policy::Machine => readable(pem),
    };
    if found.is_empty() {
        Err(Refused::NotCertificates)
    } else {
        Ok(found)
    }
}

/// The certificates that can be decoded. As in Go, a block without an end does not hide the next block, and tabs count as
/// spaces.
fn readable(pem: &str) -> Vec<CertificateDer<'static>> {
    let text = pem.replace('\t', " ");
    let starts = text.match_indices("\n-----BEGIN ").map(|(at, _)| at);
    let ends = starts.clone().chain([text.len()]);
    let parts = [0].into_iter().chain(starts).zip(ends);
    let parts = parts.filter_map(|(from, to)| text.get(from..to));
    parts
        .flat_map(|part| CertificateDer::pem_slice_iter(part.as_bytes()).filter_map(Result::ok))
        .collect()
}
