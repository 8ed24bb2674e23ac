//! The operator's settings of STS: flags of the manager, never of a tenant's resource.

use std::collections::BTreeMap;
use std::error::Error;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::client::Client;
use super::principal::ProfileRole;
use crate::partition::{EndpointHost, of_region};
use crate::proxy::{InvalidProxy, Proxy};

/// Settings of [`Sts`](super::Sts). The default is the public endpoint of each region, the
/// authorities of the system, no proxy, and the instance identity role alone.
#[derive(Debug, Clone, Default)]
pub struct StsSettings {
    /// Endpoints to use in place of the public ones, by region: FIPS, or of a VPC. Nodes of the
    /// region must be told the same, for the host is signed.
    pub endpoints: BTreeMap<String, EndpointHost>,
    /// Certificates of authorities, PEM, that are believed beside the system's about
    /// [`endpoints`](Self::endpoints), and about nothing else.
    pub authorities: Option<Vec<u8>>,
    /// Roles of instance profiles that prove an instance as its instance identity role does. Whoever
    /// may assume one of them can be each of its instances.
    pub roles: Vec<ProfileRole>,
    /// The proxy that leads to STS, if there is one.
    pub proxy: Proxy,
}

/// Settings that cannot hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidStsSettings {
    /// An endpoint is for a region of no partition that is known.
    #[error("{0} is no region of a partition that is known")]
    Region(String),
    /// The authorities are not certificates in PEM.
    #[error("the authorities of STS endpoints are not certificates in PEM")]
    Authorities,
    /// No certificate of an authority is there at all.
    #[error("the system has no certificates of authorities, and none were given")]
    NoAuthorities,
    /// The proxy cannot be used.
    #[error("the proxy for AWS")]
    Proxy(#[source] InvalidProxy),
    /// TLS cannot be set up so.
    #[error("TLS towards STS cannot be set up")]
    Tls(#[source] Box<dyn Error + Send + Sync>),
}

impl StsSettings {
    pub(super) fn client(&self) -> Result<Client, InvalidStsSettings> {
        let mut regions = self.endpoints.keys();
        if let Some(region) = regions.find(|region| of_region(region).is_none()) {
            return Err(InvalidStsSettings::Region(region.clone()));
        }
        let own = self.authorities()?;
        let system = rustls_native_certs::load_native_certs().certs;
        if system.is_empty() && own.is_empty() {
            return Err(InvalidStsSettings::NoAuthorities);
        }
        let proxy = self.proxy.for_sts().map_err(InvalidStsSettings::Proxy)?;
        Client::new(system, own, proxy.as_ref()).map_err(InvalidStsSettings::Tls)
    }

    fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, InvalidStsSettings> {
        let Some(pem) = &self.authorities else {
            return Ok(Vec::new());
        };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            Ok(_) | Err(_) => Err(InvalidStsSettings::Authorities),
        }
    }
}
