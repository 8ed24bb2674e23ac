//! The operator's STS settings, which come from the manager's flags, and never from a tenant's resource.

use std::collections::BTreeMap;
use std::error::Error;

use kubelet_attestation::ensure;
use rustls::pki_types::CertificateDer;

use super::client::Client;
use super::principal::ProfileRole;
use crate::partition::{EndpointHost, of_region};
use crate::proxy::{InvalidProxy, Proxy};

/// Settings for [`Sts`](super::Sts). The defaults are each region's public endpoint, the system's CA certificates, no
/// proxy, and only the instance identity role.
#[derive(Debug, Clone, Default)]
pub struct StsSettings {
    /// FIPS or VPC endpoints that replace the public endpoints, keyed by region. The nodes in the region must use
    /// the same host, because the signature covers the host.
    pub endpoints: BTreeMap<String, EndpointHost>,
    /// CA certificates (PEM) that are trusted only for [`endpoints`](Self::endpoints), in addition to the system's.
    pub authorities: Option<Vec<u8>>,
    /// Instance profile roles that identify an instance in the same way as its instance identity role. A principal that
    /// is allowed to assume one of these roles can impersonate each of its instances.
    pub roles: Vec<ProfileRole>,
    /// The proxy for STS, if one is configured.
    pub proxy: Proxy,
}

/// The reason why the settings for STS are invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidStsSettings {
    /// The endpoint's region is not in a known partition.
    #[error("{0} is not a region of a known partition")]
    Region(String),
    /// The CA certificates are not PEM certificates.
    #[error("the CA certificates for STS endpoints are not PEM certificates")]
    Authorities,
    /// The system has no CA certificates, and none were configured.
    #[error("the system has no CA certificates, and none were configured")]
    NoAuthorities,
    /// The proxy is invalid.
    #[error("the proxy for AWS")]
    Proxy(#[source] InvalidProxy),
    /// TLS cannot be set up with these settings.
    #[error("cannot set up TLS for STS")]
    Tls(#[source] Box<dyn Error + Send + Sync>),
}

impl StsSettings {
    pub(super) fn client(&self) -> Result<Client, InvalidStsSettings> {
        self.client_with(rustls_native_certs::load_native_certs().certs)
    }

    /// Creates the client on a system that has these CA certificates.
    pub(super) fn client_with(
        &self,
        system: Vec<CertificateDer<'static>>,
    ) -> Result<Client, InvalidStsSettings> {
        let mut regions = self.endpoints.keys();
        if let Some(region) = regions.find(|region| of_region(region).is_none()) {
            return Err(InvalidStsSettings::Region(region.clone()));
        }
        let own = self.authorities()?;
        if system.is_empty() && own.is_empty() {
            return Err(InvalidStsSettings::NoAuthorities);
        }
        let proxy = self.proxy.for_sts().map_err(InvalidStsSettings::Proxy)?;
        Client::new(system, own, proxy.as_ref()).map_err(InvalidStsSettings::Tls)
    }

    fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, InvalidStsSettings> {
        let Some(text) = &self.authorities else {
            return Ok(Vec::new());
        };
        let mut blocks = pem::parse_many(text).map_err(|_| InvalidStsSettings::Authorities)?;
        blocks.retain(|block| block.tag() == "CERTIFICATE");
        ensure!(!blocks.is_empty(), InvalidStsSettings::Authorities);
        let certificates = blocks
            .into_iter()
            .map(|block| CertificateDer::from(block.into_contents()));
        Ok(certificates.collect())
    }
}
