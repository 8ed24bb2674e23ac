//! The connection to AWS: through the operator's proxy, if there is one.

use std::io;
use std::net::SocketAddr;
use std::sync::LazyLock;

pub use aws_sdk_ec2::config::SharedHttpClient;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder, ConnectorBuilder};
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns, ResolveDnsError};
use node_attestation_runtime::client::addresses_in;
use node_attestation_runtime::turns::{FairTurns, Line, Owner, TurnLimits};
use reqwest::NoProxy;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A proxy for HTTPS, from the environment of the manager: for STS, for EC2, and for the sources of credentials.
///
/// The proxy sees host names and encrypted traffic. Only the operator configures it. Calls without TLS do not use the
/// proxy, because a proxy must not see the traffic to the metadata service or to a container's credentials.
#[derive(derive_more::Debug, Clone, Default, PartialEq, Eq)]
#[debug("Proxy(https: {}, no: {no:?})", https.is_some())]
pub struct Proxy {
    /// `HTTPS_PROXY`, which can contain a password.
    pub https: Option<String>,
    /// `NO_PROXY`.
    pub no: Option<String>,
}

/// The proxy URL is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("HTTPS_PROXY is not a plain HTTP proxy of the form http://[user:password@]host[:port]")]
pub struct InvalidProxy;

/// The limits of concurrent lookups: for all names, and for one. The system's resolver cannot be interrupted, and each
/// lookup occupies one of tokio's 512 blocking threads. One name can have all turns of its domain: all tenants use it.
const LOOKUPS: TurnLimits = TurnLimits {
    all: 128,
    of_cluster: 64,
};

/// The lookups of this process.
static PROCESS: LazyLock<Lookups> = LazyLock::new(Lookups::default);

/// The turns of lookups.
///
/// A tenant can name any number of regions, and so of hosts. Name servers can fail to respond for the domain of a
/// partition that this network does not reach. So one domain has at most half of the turns.
#[derive(Debug)]
struct Lookups {
    turns: FairTurns,
    /// The line of another domain: a domain with all lines would have all turns.
    _other: Line,
}

impl Default for Lookups {
    fn default() -> Self {
        let turns = FairTurns::new(LOOKUPS);
        let other = turns.line(&Host::of(""));
        Self {
            turns,
            _other: other,
        }
    }
}

impl Lookups {
    /// The line of a host.
    fn line(&self, host: &str) -> Line {
        self.turns.line(&Host::of(host))
    }
}

/// A host, and its domain. A host of AWS has the form `SERVICE.REGION.DOMAIN`.
#[derive(Debug)]
struct Host<'a> {
    domain: &'a str,
    name: &'a str,
}

impl<'a> Host<'a> {
    fn of(name: &'a str) -> Self {
        Self {
            domain: name.splitn(3, '.').nth(2).unwrap_or(name),
            name,
        }
    }
}

impl Owner for Host<'_> {
    fn namespace(&self) -> &str {
        self.domain
    }

    fn name(&self) -> &str {
        self.name
    }
}

/// Lookups of the names of AWS and of the proxy, for the STS client and for the SDK.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names;

impl Names {
    async fn addresses(host: &str) -> io::Result<Vec<SocketAddr>> {
        let turn = PROCESS.line(host).turn().await;
        addresses_in(turn, host.to_owned()).await
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = Self::addresses(name.as_str()).await?;
            let found: Addrs = Box::new(found.into_iter());
            Ok(found)
        })
    }
}

impl ResolveDns for Names {
    fn resolve_dns<'a>(&'a self, name: &'a str) -> DnsFuture<'a> {
        DnsFuture::new(async move {
            let found = Self::addresses(name).await;
            let found = found.map_err(ResolveDnsError::new)?;
            Ok(found.iter().map(SocketAddr::ip).collect())
        })
    }
}

impl Proxy {
    /// The proxy for the STS client, if there is one.
    pub(crate) fn for_sts(&self) -> Result<Option<reqwest::Proxy>, InvalidProxy> {
        let Some(https) = self.url()? else {
            return Ok(None);
        };
        let proxy = reqwest::Proxy::https(https).map_err(|_| InvalidProxy)?;
        let no = self.no.as_deref().and_then(NoProxy::from_string);
        Ok(Some(proxy.no_proxy(no)))
    }

    /// The SDK's client, through the same proxy. By default, the SDK would read more environment variables in a
    /// different order. It would also send calls without TLS to a proxy.
    pub(crate) fn http_client(&self) -> Result<SharedHttpClient, InvalidProxy> {
        self.client(None)
    }

    /// The SDK's client, which also trusts these CA certificates (PEM), in addition to the system's.
    ///
    /// # Errors
    ///
    /// The proxy URL is invalid.
    pub fn http_client_trusting(
        &self,
        authorities: Vec<u8>,
    ) -> Result<SharedHttpClient, InvalidProxy> {
        let trusted = TrustStore::default().with_pem_certificate(authorities);
        // This call fails only if a feature is not compiled in.
        let context = TlsContext::builder().with_trust_store(trusted).build();
        self.client(context.ok())
    }

    fn client(&self, context: Option<TlsContext>) -> Result<SharedHttpClient, InvalidProxy> {
        let config = self.config()?;
        Ok(
            Builder::new().build_with_connector_fn(move |settings, components| {
                let mut connector =
                    ConnectorBuilder::default().tls_provider(Provider::Rustls(CryptoMode::AwsLc));
                if let Some(context) = &context {
                    connector.set_tls_context(context.clone());
                }
                connector.set_connector_settings(settings.cloned());
                if let Some(components) = components {
                    connector.set_sleep_impl(components.sleep_impl());
                }
                connector.set_proxy_config(Some(config.clone()));
                connector.build_with_resolver(Names)
            }),
        )
    }

    fn config(&self) -> Result<ProxyConfig, InvalidProxy> {
        let Some(https) = self.url()? else {
            return Ok(ProxyConfig::disabled());
        };
        let config = ProxyConfig::https(https).map_err(|_| InvalidProxy)?;
        Ok(config.no_proxy(self.no.as_deref().unwrap_or_default()))
    }

    fn url(&self) -> Result<Option<String>, InvalidProxy> {
        let Some(https) = self.https.as_deref().filter(|https| !https.is_empty()) else {
            return Ok(None);
        };
        let address = https.strip_prefix("http://").unwrap_or(https);
        if address.contains("://") {
            return Err(InvalidProxy);
        }
        Ok(Some(format!("http://{address}")))
    }
}

#[cfg(test)]
mod tests {
    use node_attestation_runtime::turns::Turn;

    use super::*;

    #[test]
    fn lookups_in_a_slow_domain_leave_turns_to_other_domains() {
        let lookups = Lookups::default();
        let slow = (0..1000).map(|number| format!("ec2.us-isob-x{number}-1.sc2s.sgov.gov"));
        let slow: Vec<Line> = slow.map(|host| lookups.line(&host)).collect();

        let hanging: Vec<Turn> = slow.iter().filter_map(Line::try_turn).collect();

        assert_eq!(hanging.len(), LOOKUPS.all / 2);
        let other = lookups.line("ec2.eu-west-1.amazonaws.com");
        let turns: Vec<_> = (0..100).map(|_| other.try_turn()).collect();
        assert_eq!(turns.iter().flatten().count(), LOOKUPS.all / 2);
    }

    #[test]
    fn the_domain_of_an_aws_host_begins_after_its_region() {
        for (host, domain) in [
            ("sts.eu-west-1.amazonaws.com", "amazonaws.com"),
            ("ec2.cn-north-1.amazonaws.com.cn", "amazonaws.com.cn"),
            ("proxy.example", "proxy.example"),
            ("proxy", "proxy"),
        ] {
            assert_eq!(Host::of(host).domain, domain);
        }
    }
}
