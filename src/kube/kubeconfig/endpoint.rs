//! An API server, and the CA certificates that verify it.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::names::Audience;
use reqwest::Url;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};

use super::error::{KubeconfigError, Place, Refused};
use crate::exec::{EXEC_INFO, ExecCluster};
use crate::secret::Secret;

/// The fields of an endpoint, not checked yet. The store keeps an endpoint in this form.
///
/// `Debug` omits the proxy: its URL may contain a password.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointFields {
    /// The API server's URL.
    pub server: String,
    /// The cluster's CA certificates in PEM.
    pub ca_pem: String,
    /// The expected name in the server's certificate, if it is not the URL's host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    /// The proxy's URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
}

impl EndpointFields {
    /// The endpoint in the form of the exec info's cluster.
    pub fn exec_cluster(&self) -> ExecCluster<'_> {
        ExecCluster {
            server: Cow::Borrowed(&self.server),
            tls_server_name: self.tls_server_name.as_deref().map(Cow::Borrowed),
            insecure_skip_tls_verify: false,
            certificate_authority_data: Some(Cow::Owned(STANDARD.encode(&self.ca_pem))),
            proxy_url: self.proxy_url.as_deref().map(Cow::Borrowed),
            config: None,
        }
    }
}

impl fmt::Debug for EndpointFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointFields")
            .field("server", &self.server)
            .field("tls_server_name", &self.tls_server_name)
            .finish_non_exhaustive()
    }
}

/// An API server, and the CA certificates that verify it.
///
/// # Guarantees
///
/// The server is on https. Its certificate is verified against the cluster's CA alone, which has at
/// least one certificate.
#[derive(Debug)]
pub struct ClusterEndpoint {
    server: Url,
    ca: Vec<CertificateDer<'static>>,
    ca_pem: String,
    tls_server_name: Option<String>,
    proxy: Option<Proxy>,
}

/// A proxy's URL. It may contain a password.
pub(in crate::kube) type Proxy = Secret<String>;

impl ClusterEndpoint {
    /// The endpoint of the cluster in the exec info.
    pub fn from_exec_info(cluster: &ExecCluster<'_>) -> Result<Self, KubeconfigError> {
        let origin = Origin {
            document: format!("{EXEC_INFO}: spec.cluster"),
            object: None,
        };
        if cluster.insecure_skip_tls_verify {
            return Err(origin.refuse("insecure-skip-tls-verify", Refused::SkipsVerification));
        }
        let field = "certificate-authority-data";
        let data = cluster
            .certificate_authority_data
            .as_deref()
            .unwrap_or_default();
        let fields = EndpointFields {
            server: cluster.server.clone().into_owned(),
            ca_pem: origin.text_from_base64(field, data, Refused::NotCertificates)?,
            tls_server_name: cluster.tls_server_name.as_deref().map(str::to_owned),
            proxy_url: cluster.proxy_url.as_deref().map(str::to_owned),
        };
        Self::check(fields, &origin, field)
    }

    /// An endpoint from stored fields. Errors name `document`.
    pub fn from_fields(fields: EndpointFields, document: &str) -> Result<Self, KubeconfigError> {
        let origin = Origin {
            document: document.to_owned(),
            object: None,
        };
        Self::check(fields, &origin, "caPem")
    }

    /// The fields of the endpoint, to be stored.
    pub fn to_fields(&self) -> EndpointFields {
        EndpointFields {
            server: self.server().to_owned(),
            ca_pem: self.ca_pem.clone(),
            tls_server_name: self.tls_server_name.clone(),
            proxy_url: self.proxy.as_ref().map(|proxy| proxy.expose().clone()),
        }
    }

    /// Whether both are of one cluster. Another server without a common CA certificate is another
    /// cluster, and not the same one at another address.
    pub fn is_of_same_cluster(&self, other: &Self) -> bool {
        self.server() == other.server() || self.ca().iter().any(|ca| other.ca().contains(ca))
    }

    pub(super) fn check(
        fields: EndpointFields,
        origin: &Origin,
        ca_field: &'static str,
    ) -> Result<Self, KubeconfigError> {
        let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let server = server(&fields.server).map_err(|why| origin.refuse("server", why))?;
        let ca = certificates(&fields.ca_pem).map_err(|why| origin.refuse(ca_field, why))?;
        let tls_server_name = non_empty(fields.tls_server_name);
        if let Some(name) = &tls_server_name {
            match ServerName::try_from(name.as_str()) {
                Ok(ServerName::DnsName(_)) => {}
                // The name goes into the URL, so the client would connect to an address.
                Ok(_) => return Err(origin.refuse("tls-server-name", Refused::AddressAsServerName)),
                Err(_) => return Err(origin.refuse("tls-server-name", Refused::NotAServerName)),
            }
        }
        let proxy = non_empty(fields.proxy_url).map(Secret::new);
        if let Some(proxy) = &proxy {
            check_proxy(proxy, tls_server_name.is_some())
                .map_err(|why| origin.refuse("proxy-url", why))?;
        }
        Ok(Self {
            server,
            ca,
            ca_pem: fields.ca_pem,
            tls_server_name,
            proxy,
        })
    }

    /// The API server's URL.
    pub fn server(&self) -> &str {
        self.server.as_str().trim_end_matches('/')
    }

    /// The cluster's CA certificates in DER, at least one.
    pub fn ca(&self) -> &[CertificateDer<'static>] {
        &self.ca
    }

    /// The cluster's CA certificates in PEM, unchanged.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The audience of evidence for this cluster, unless the settings set one. It depends on the
    /// first CA certificate.
    pub fn audience(&self) -> Audience {
        Audience::of_ca(
            self.ca
                .first()
                .map(CertificateDer::as_ref)
                .unwrap_or_default(),
        )
    }

    pub(in crate::kube) fn url(&self) -> &Url {
        &self.server
    }

    pub(in crate::kube) fn tls_server_name(&self) -> Option<&str> {
        self.tls_server_name.as_deref()
    }

    pub(in crate::kube) fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }
}

/// The place of a field, for errors.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) document: String,
    pub(super) object: Option<(&'static str, String)>,
}

impl Origin {
    pub(super) fn refuse(&self, field: &'static str, why: Refused) -> KubeconfigError {
        let place = Place {
            document: self.document.clone(),
            object: self.object.clone(),
            field,
        };
        KubeconfigError::Refused { place, why }
    }

    /// Decodes base64. Content that is not UTF-8 is refused with `otherwise`.
    pub(super) fn text_from_base64(
        &self,
        field: &'static str,
        data: &str,
        otherwise: Refused,
    ) -> Result<String, KubeconfigError> {
        let bytes = STANDARD
            .decode(data)
            .map_err(|_| self.refuse(field, Refused::NotBase64))?;
        String::from_utf8(bytes).map_err(|error| {
            // The content may be a key, so its memory is zeroed.
            drop(Secret::new(error.into_bytes()));
            self.refuse(field, otherwise)
        })
    }
}

fn server(text: &str) -> Result<Url, Refused> {
    if text.is_empty() {
        return Err(Refused::NoServer);
    }
    // client-go takes a bare host for http, from the days of the insecure port.
    let url = Url::parse(text).map_err(|_| Refused::NotAUrl)?;
    if url.scheme() != "https" {
        return Err(Refused::NotHttps);
    }
    let plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if plain && url.has_host() {
        Ok(url)
    } else {
        Err(Refused::NotAUrl)
    }
}

fn check_proxy(proxy: &Proxy, named_otherwise: bool) -> Result<(), Refused> {
    let url = Url::parse(proxy.expose()).map_err(|_| Refused::NotAUrl)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Refused::ProxyScheme);
    }
    if !url.has_host() {
        return Err(Refused::NotAUrl);
    }
    if named_otherwise {
        Err(Refused::ProxyWithServerName)
    } else {
        Ok(())
    }
}

/// All certificates in PEM, at least one.
pub(in crate::kube) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Refused> {
    if pem.trim().is_empty() {
        return Err(Refused::NoCa);
    }
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| Refused::NotCertificates)?;
    if found.is_empty() {
        Err(Refused::NotCertificates)
    } else {
        Ok(found)
    }
}
