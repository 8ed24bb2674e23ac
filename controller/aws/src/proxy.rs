//! The connection to AWS, through the operator's proxy if one is configured.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::LazyLock;

pub use aws_sdk_ec2::config::SharedHttpClient;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder, ConnectorBuilder};
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns, ResolveDnsError};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::addresses_in;
use node_attestation_runtime::turns::{FairTurns, Line, Owner, Turn, TurnLimits};
use reqwest::NoProxy;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::document::Signers;
use crate::partition;

/// An HTTPS proxy, from the manager's environment. It is used for STS, for EC2, and for the sources of credentials.
///
/// The proxy receives host names and encrypted traffic. Only the operator can configure it. Calls without TLS do not
/// use the proxy, because it must not receive the traffic to the metadata service or to a container's credentials.
#[derive(derive_more::Debug, Clone, Default, PartialEq, Eq)]
#[debug("Proxy(https: {}, no: {no:?})", https.is_some())]
pub struct Proxy {
    /// `HTTPS_PROXY`, which can contain a password.
    pub https: Option<String>,
    /// `NO_PROXY`.
    pub no: Option<String>,
}

/// The error for an invalid proxy URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("HTTPS_PROXY is not a plain HTTP proxy of the form http://[user:password@]host[:port]")]
pub struct InvalidProxy;

/// The limits on concurrent lookups for one group of hosts. The system's resolver cannot be interrupted, and each
/// lookup occupies one of tokio's 512 blocking threads. All groups together occupy fewer than 128 threads. The lookups
/// of one host occupy at most half of the turns of its group, even if no other host waits for a lookup, because a name
/// server might not respond for the hosts of one region.
const LOOKUPS: TurnLimits = TurnLimits {
    all: 8,
    of_cluster: 4,
};

/// The limits on concurrent lookups for one published region in one domain, which are at most half of the turns of the
/// domain, even if several namespaces use the region. A namespace occupies at most half of these turns, even if no other
/// namespace waits for a lookup, because it keeps them while it waits for turns of the domain.
const OF_REGION: TurnLimits = TurnLimits {
    all: 4,
    of_cluster: 2,
};

/// The lookups of this process.
static PROCESS: LazyLock<Lookups> = LazyLock::new(Lookups::default);

tokio::task_local! {
    /// The namespace of the tenant that causes the lookups of this task.
    static CAUSE: String;
}

/// Runs a call that a tenant in this namespace causes. The lookups of the call take the turns of the namespace. A
/// connection does not belong to a tenant, but the first lookup for a connection runs in the task of the call.
pub(crate) fn caused_by<F: Future>(
    namespace: &str,
    call: F,
) -> impl Future<Output = F::Output> + use<F> {
    CAUSE.scope(namespace.to_owned(), call)
}

/// The turns for lookups.
///
/// A tenant can specify any number of regions, and therefore any number of hosts in each AWS domain. Name servers might
/// fail to respond for the domain of a partition that this network cannot reach, or for the names of unknown regions.
/// Therefore each domain has separate turns for the regions that AWS has published, and for all other regions. Only the
/// operator can specify other hosts.
///
/// The turns rotate through the namespaces of the tenants, and then through the hosts. A published region can also be
/// slow, and several namespaces can use it. Therefore a lookup in a published region first waits for a turn of this
/// region, without a turn of its domain.
#[derive(Debug)]
struct Lookups {
    domains: BTreeMap<&'static str, OfDomain>,
    of_operator: FairTurns,
}

/// The turns for one domain.
#[derive(Debug)]
struct OfDomain {
    /// The turns for each published region.
    regions: BTreeMap<String, FairTurns>,
    published: FairTurns,
    other: FairTurns,
}

/// The queues for the lookups of a host.
#[derive(Debug)]
struct Lines {
    of_region: Option<Line>,
    of_group: Line,
}

/// The turns for one lookup: of its published region, and of its group.
type Turns = (Option<Turn>, Turn);

impl Lines {
    async fn turn(&self) -> Turns {
        let of_region = match &self.of_region {
            Some(line) => Some(line.turn().await),
            None => None,
        };
        (of_region, self.of_group.turn().await)
    }
}

impl Default for Lookups {
    fn default() -> Self {
        let turns = || FairTurns::new(LOOKUPS);
        let signers = Signers::embedded();
        let of_domain = |domain| {
            let regions = signers.regions();
            let regions = regions.map(|region| (region.to_owned(), FairTurns::new(OF_REGION)));
            let of_domain = OfDomain {
                regions: regions.collect(),
                published: turns(),
                other: turns(),
            };
            (domain, of_domain)
        };
        Self {
            domains: partition::domains().map(of_domain).collect(),
            of_operator: turns(),
        }
    }
}

impl Lookups {
    /// The queues for lookups of a host.
    fn lines(&self, host: &str) -> Lines {
        let place = region_and_domain(host);
        let place = place.and_then(|(region, domain)| Some((region, self.domains.get(domain)?)));
        let Some((region, domain)) = place else {
            return Lines {
                of_region: None,
                of_group: self.of_operator.line(&Host(host)),
            };
        };
        // The namespace is empty for the controller's own calls.
        let cause = CAUSE.try_with(Clone::clone).unwrap_or_default();
        let owner = ObjectKey::new(cause.as_str(), host);
        // In a region, all hosts of a namespace together have one queue, and the limit of a Cluster.
        let of_namespace = ObjectKey::new(cause.as_str(), "");
        let of_region = domain.regions.get(region);
        let turns = match of_region {
            Some(_) => &domain.published,
            None => &domain.other,
        };
        Lines {
            of_region: of_region.map(|turns| turns.line(&of_namespace)),
            of_group: turns.line(&owner),
        }
    }
}

/// Returns the region and the domain of an AWS host, which has the form `SERVICE.REGION.DOMAIN`.
fn region_and_domain(host: &str) -> Option<(&str, &str)> {
    let (_, place) = host.split_once('.')?;
    place.split_once('.')
}

/// A host that only the operator can specify. The turns for these hosts rotate through the hosts.
#[derive(Debug)]
struct Host<'a>(&'a str);

impl Owner for Host<'_> {
    fn namespace(&self) -> &str {
        self.0
    }

    fn name(&self) -> &'static str {
        ""
    }
}

/// Resolves the host names of AWS and of the proxy, for the STS client and for the SDK.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names;

impl Names {
    async fn addresses(lines: Lines, host: &str) -> io::Result<Vec<SocketAddr>> {
        let turns = lines.turn().await;
        addresses_in(turns, host.to_owned()).await
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let lines = PROCESS.lines(name.as_str());
        Box::pin(async move {
            let found = Self::addresses(lines, name.as_str()).await?;
            let found: Addrs = Box::new(found.into_iter());
            Ok(found)
        })
    }
}

impl ResolveDns for Names {
    fn resolve_dns<'a>(&'a self, name: &'a str) -> DnsFuture<'a> {
        let lines = PROCESS.lines(name);
        DnsFuture::new(async move {
            let found = Self::addresses(lines, name).await;
            let found = found.map_err(ResolveDnsError::new)?;
            Ok(found.iter().map(SocketAddr::ip).collect())
        })
    }
}

impl Proxy {
    /// Returns the proxy for the STS client. `None` if no proxy is configured.
    pub(crate) fn for_sts(&self) -> Result<Option<reqwest::Proxy>, InvalidProxy> {
        let Some(https) = self.url()? else {
            return Ok(None);
        };
        let proxy = reqwest::Proxy::https(https).map_err(|_| InvalidProxy)?;
        let no = self.no.as_deref().and_then(NoProxy::from_string);
        Ok(Some(proxy.no_proxy(no)))
    }

    /// Returns the SDK's HTTP client, which uses the same proxy. By default, the SDK would read more environment
    /// variables, in a different order. It would also send calls without TLS to a proxy.
    pub(crate) fn http_client(&self) -> Result<SharedHttpClient, InvalidProxy> {
        self.client(None)
    }

    /// Returns the SDK's HTTP client, which also trusts these CA certificates (PEM), in addition to the system's CA
    /// certificates.
    ///
    /// # Errors
    ///
    /// Returns an error if the proxy URL is invalid.
    pub fn http_client_trusting(
        &self,
        authorities: Vec<u8>,
    ) -> Result<SharedHttpClient, InvalidProxy> {
        let trusted = TrustStore::default().with_pem_certificate(authorities);
        // This call can fail only if a feature is not compiled in.
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
    use super::*;

    impl Lines {
        fn try_turn(&self) -> Option<Turns> {
            let of_region = match &self.of_region {
                Some(line) => Some(line.try_turn()?),
                None => None,
            };
            Some((of_region, self.of_group.try_turn()?))
        }
    }

    /// The turns for lookups of these hosts.
    fn hanging(lookups: &Lookups, hosts: &[String]) -> Vec<Turns> {
        let turns = hosts
            .iter()
            .filter_map(|host| lookups.lines(host).try_turn());
        turns.collect()
    }

    /// The turns for lookups of these hosts that this namespace causes.
    fn hanging_of(lookups: &Lookups, namespace: &str, hosts: &[String]) -> Vec<Turns> {
        CAUSE.sync_scope(namespace.to_owned(), || hanging(lookups, hosts))
    }

    fn published(regions: &[&str]) -> Vec<String> {
        let hosts = regions
            .iter()
            .map(|region| format!("ec2.{region}.amazonaws.com"));
        hosts.cycle().take(100).collect()
    }

    fn invented_in(domain: &str) -> Vec<String> {
        let hosts = (0..100).map(|number| format!("ec2.us-x{number}-1.{domain}"));
        hosts.collect()
    }

    #[test]
    fn lookups_in_a_slow_domain_leave_turns_to_other_domains() {
        let lookups = Lookups::default();
        let slow: Vec<_> = partition::domains()
            .filter(|domain| *domain != "amazonaws.com")
            .flat_map(invented_in)
            .collect();

        let turns = hanging(&lookups, &slow);

        let domains = partition::domains().count() - 1;
        assert_eq!(turns.len(), LOOKUPS.all * domains);
        for host in ["ec2.us-x1-1.amazonaws.com", "proxy.example"] {
            let others = vec![host.to_owned(); 100];
            assert_eq!(
                hanging(&lookups, &others).len(),
                LOOKUPS.of_cluster,
                "{host}"
            );
        }
    }

    #[test]
    fn lookups_of_unknown_regions_leave_turns_to_published_regions() {
        let lookups = Lookups::default();

        let turns = hanging(&lookups, &invented_in("amazonaws.com"));

        assert_eq!(turns.len(), LOOKUPS.all);
        for host in [
            "ec2.eu-west-1.amazonaws.com",
            "sts.us-gov-west-1.amazonaws.com",
        ] {
            let others = vec![host.to_owned(); 100];
            assert_eq!(
                hanging(&lookups, &others).len(),
                OF_REGION.of_cluster,
                "{host}"
            );
        }
    }

    #[test]
    fn the_invented_regions_of_one_namespace_leave_a_turn_to_another() {
        let lookups = Lookups::default();
        let invented = invented_in("amazonaws.com");
        let other = CAUSE.sync_scope("tenant-b".to_owned(), || lookups.lines(&invented[0]));

        let first = hanging_of(&lookups, "tenant-a", &invented);

        assert_eq!(first.len(), LOOKUPS.all / 2);
        assert!(other.try_turn().is_some());
        // The published regions have other turns.
        for region in ["eu-west-1", "us-east-1"] {
            let turns = hanging_of(&lookups, "tenant-a", &published(&[region]));
            assert_eq!(turns.len(), OF_REGION.of_cluster, "{region}");
        }
    }

    #[test]
    fn the_published_regions_of_one_namespace_leave_turns_to_another() {
        let lookups = Lookups::default();
        let slow = published(&["eu-west-1", "us-east-1", "us-west-2"]);
        let other = CAUSE.sync_scope("tenant-b".to_owned(), || lookups.lines(&slow[0]));

        let first = hanging_of(&lookups, "tenant-a", &slow);

        assert_eq!(first.len(), LOOKUPS.all / 2);
        assert!(other.try_turn().is_some());
    }

    #[test]
    fn a_slow_region_of_several_namespaces_leaves_turns_to_other_regions() {
        let lookups = Lookups::default();
        let slow = published(&["us-east-1"]);

        let turns = ["tenant-a", "tenant-b", "tenant-c"]
            .map(|namespace| hanging_of(&lookups, namespace, &slow));

        let turns: usize = turns.iter().map(Vec::len).sum();
        assert_eq!(turns, LOOKUPS.all / 2);
        for namespace in ["tenant-a", "tenant-d"] {
            let turns = hanging_of(&lookups, namespace, &published(&["eu-west-1"]));
            assert!(!turns.is_empty(), "{namespace}");
        }
    }

    #[test]
    fn lookups_that_wait_for_the_domain_leave_turns_of_their_region() {
        let lookups = Lookups::default();
        let hosts = ["ec2.eu-west-1.amazonaws.com", "sts.eu-west-1.amazonaws.com"];
        let lines = |namespace: &str| {
            let lines = || hosts.map(|host| lookups.lines(host));
            CAUSE.sync_scope(namespace.to_owned(), lines)
        };
        // The turns of the domain are occupied by lookups of this namespace in slow regions.
        let waiting = lines("tenant-a");
        let regions = waiting.iter().filter_map(|lines| lines.of_region.as_ref());
        let held = regions.cycle().take(100).filter_map(Line::try_turn);
        let held: Vec<Turn> = held.collect();

        let other = lines("tenant-b").map(|lines| lines.try_turn());

        assert_eq!(held.len(), OF_REGION.all / 2);
        assert!(other[0].is_some());
    }

    #[test]
    fn all_lookups_of_aws_names_together_use_fewer_than_128_threads() {
        let groups = 2 * partition::domains().count() + 1;
        assert!(groups * LOOKUPS.all < 128, "{groups}");
    }

    #[test]
    fn the_domain_of_an_aws_host_begins_after_its_region() {
        for (host, place) in [
            (
                "sts.eu-west-1.amazonaws.com",
                Some(("eu-west-1", "amazonaws.com")),
            ),
            (
                "ec2.cn-north-1.amazonaws.com.cn",
                Some(("cn-north-1", "amazonaws.com.cn")),
            ),
            ("proxy.example", None),
            ("proxy", None),
        ] {
            assert_eq!(region_and_domain(host), place);
        }
    }
}
