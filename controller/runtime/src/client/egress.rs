//! Connections to a tenant's API server.
//!
//! The [`EgressPolicy`] is applied to the resolved address of each connection. Therefore a host name cannot bypass the
//! policy by resolving to a different address later.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tower::BoxError;

use crate::object_key::ObjectKey;
use crate::shared::{Lock, Shared, Swept};
use crate::turns::{FairTurns, Line, TurnLimits};

/// The deadline for connecting to one address. A name can have several addresses, and a handshake follows.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// The maximum number of addresses for one host. An API server has one address for each replica, or the address of a
/// load balancer.
const MAX_ADDRESSES: usize = 16;

const HTTPS_PORT: u16 = 443;

/// The time after which a lookup counts as slow. A slow lookup delays only other slow lookups. The system's resolver
/// retries after 5 s.
const SLOW_LOOKUP: Duration = Duration::from_secs(2);

/// The limit on concurrent lookups in this process. The system's resolver cannot be interrupted, and each lookup
/// occupies one of tokio's 512 blocking threads.
const LOOKUPS: TurnLimits = TurnLimits {
    all: 128,
    of_cluster: 1,
};

/// The limit on concurrent lookups for namespaces that recently had a slow lookup, because their name servers might not
/// respond.
const SLOW_LOOKUPS: TurnLimits = TurnLimits {
    all: 32,
    of_cluster: 1,
};

/// The time for which a namespace counts as slow after a slow lookup. This affects all Clusters in the namespace.
const SLOW_FOR: Duration = Duration::from_mins(1);

static PROCESS: LazyLock<Arc<Lookups>> = LazyLock::new(Arc::default);

/// The lookups for the API servers of all tenants.
#[derive(Debug)]
struct Lookups {
    quick: FairTurns,
    slow: FairTurns,
    /// The namespaces that had a slow lookup, and the time until which they count as slow.
    slow_until: Shared<Swept<String, Instant>>,
}

impl Default for Lookups {
    fn default() -> Self {
        Self {
            quick: FairTurns::new(LOOKUPS),
            slow: FairTurns::new(SLOW_LOOKUPS),
            slow_until: Shared::new(Lock::SlowLookups, Swept::default()),
        }
    }
}

impl Lookups {
    fn is_slow(&self, namespace: &str) -> bool {
        let until = self
            .slow_until
            .read(|slow_until| slow_until.get(namespace).copied());
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Records the duration of a lookup.
    fn took(&self, namespace: &str, time: Duration) {
        if time > SLOW_LOOKUP {
            let now = Instant::now();
            self.slow_until.write(|slow_until| {
                let is_over = |_: &_, until: &mut Instant| *until <= now;
                slow_until.insert(namespace.to_owned(), now + SLOW_FOR, is_over);
            });
        }
    }
}

/// Address ranges on this host or its network. Services in these ranges often trust all clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum LocalRange {
    /// This host: `127.0.0.0/8` and `::1` (RFC 1122 section 3.2.1.3, RFC 4291 section 2.5.3).
    #[error("a loopback address")]
    Loopback,
    /// Unspecified addresses, which systems treat as this host: `0.0.0.0/8` and `::`.
    #[error("an unspecified address")]
    Unspecified,
    /// The local link: `169.254.0.0/16` (RFC 3927) and `fe80::/10` (RFC 4291 section 2.5.6), and `fd00:ec2::/32`, which
    /// Amazon EC2 uses for the same purpose. Cloud metadata services provide credentials in these ranges.
    #[error("a link-local address")]
    LinkLocal,
    /// Multicast and broadcast addresses.
    #[error("a multicast address")]
    Multicast,
}

/// The policy for connection addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EgressPolicy {
    /// Whether loopback addresses are allowed. Only for tests.
    pub insecure_allow_loopback: bool,
}

impl EgressPolicy {
    /// The policy that allows only other hosts.
    pub const STRICT: Self = Self {
        insecure_allow_loopback: false,
    };

    /// The local range that makes the policy reject this address. `None` if the policy allows the address.
    pub fn refuses(self, address: IpAddr) -> Option<LocalRange> {
        let refused = local_range(address)?;
        (refused != LocalRange::Loopback || !self.insecure_allow_loopback).then_some(refused)
    }
}

/// The local range that contains this address, or the IPv4 address that is embedded in it.
fn local_range(address: IpAddr) -> Option<LocalRange> {
    let (is_unspecified, is_link_local, carried) = match address {
        IpAddr::V4(v4) => (v4.octets().starts_with(&[0]), v4.is_link_local(), None),
        IpAddr::V6(v6) => {
            let is_ec2 = v6.segments().starts_with(&[0xfd00, 0xec2]);
            let is_link_local = v6.is_unicast_link_local() || is_ec2;
            (v6.is_unspecified(), is_link_local, carried_v4(v6))
        }
    };
    let is_for_many = address.is_multicast() || address == Ipv4Addr::BROADCAST;
    let ranges = [
        (address.is_loopback(), LocalRange::Loopback),
        (is_unspecified, LocalRange::Unspecified),
        (is_link_local, LocalRange::LinkLocal),
        (is_for_many, LocalRange::Multicast),
    ];
    let own = ranges.into_iter().find(|(is_in, _)| *is_in);
    own.map(|(_, range)| range)
        .or_else(|| local_range(carried?.into()))
}

/// The IPv4 address that is embedded in this address: IPv4-mapped or IPv4-compatible (RFC 4291 section 2.5.5),
/// translated (RFC 6052 section 2.1, RFC 8215), or 6to4 (RFC 3056).
fn carried_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        [0x64, 0xff9b, .., high, low] | [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => address.to_ipv4(),
    }
}

/// Resolves a name, and blocks until the result is available.
type Lookup = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// Connects to the hosts that the policy allows. Resolves one name at a time.
#[derive(Debug, Clone)]
pub(super) struct Dialler {
    egress: EgressPolicy,
    lookup: Lookup,
    namespace: String,
    lookups: Arc<Lookups>,
    quick: Line,
    slow: Line,
}

impl Dialler {
    /// Creates a dialer for the API server of this Cluster. Its lookups compete for turns with the lookups of all
    /// Clusters.
    pub(super) fn new(egress: EgressPolicy, cluster: &ObjectKey) -> Self {
        Self::among(PROCESS.clone(), egress, cluster)
    }

    fn among(lookups: Arc<Lookups>, egress: EgressPolicy, cluster: &ObjectKey) -> Self {
        Self {
            egress,
            lookup: kubelet_attestation_resolver::addresses,
            namespace: cluster.namespace.clone(),
            quick: lookups.quick.line(cluster),
            slow: lookups.slow.line(cluster),
            lookups,
        }
    }

    pub(super) async fn dial(self, server: Uri) -> Result<TokioIo<TcpStream>, BoxError> {
        let host = server.host().ok_or("the URL has no host")?;
        let port = server.port_u16().unwrap_or(HTTPS_PORT);
        let addresses = self
            .resolve(host, port)
            .await
            .map_err(|error| format!("cannot resolve the host name of the API server: {error}"))?;
        let addresses = screened(addresses, self.egress)?;
        let mut last = "the host name of the API server does not resolve to an address".to_owned();
        for address in addresses {
            match connect(address).await {
                Ok(stream) => return Ok(TokioIo::new(stream)),
                Err(error) => last = format!("cannot connect to {address}: {error}"),
            }
        }
        Err(last.into())
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        // A literal IPv6 address has brackets.
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        if let Ok(address) = host.parse() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let line = if self.lookups.is_slow(&self.namespace) {
            &self.slow
        } else {
            &self.quick
        };
        let turn = line.turn().await;
        let (lookup, lookups) = (self.lookup, self.lookups.clone());
        let (host, namespace) = (host.to_owned(), self.namespace.clone());
        // The caller can be dropped long before the lookup ends. Therefore the lookup itself holds the turn.
        let found = spawn_blocking(move || {
            let begun = Instant::now();
            let found = lookup(&host);
            lookups.took(&namespace, begun.elapsed());
            drop(turn);
            found
        });
        let found = found.await??.into_iter().take(MAX_ADDRESSES);
        Ok(found
            .map(|address| SocketAddr::new(address.ip(), port))
            .collect())
    }
}

/// Returns the addresses if the policy allows all of them. One rejected address rejects the whole name, because the
/// name of an API server never has both local and other addresses.
fn screened(addresses: Vec<SocketAddr>, egress: EgressPolicy) -> Result<Vec<SocketAddr>, BoxError> {
    for address in addresses.iter().map(SocketAddr::ip) {
        if let Some(range) = egress.refuses(address) {
            let why = format!("the API server's address {address} is refused: it is {range}");
            return Err(why.into());
        }
    }
    Ok(addresses)
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT_DEADLINE, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // No delay for small packets: requests are small, and the sender waits for the response.
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::shared::testing::most_visited;

    fn cluster(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(namespace, name)
    }

    fn dialler(egress: EgressPolicy) -> Dialler {
        Dialler::among(Arc::default(), egress, &cluster("tenant-a", "prod-1"))
    }

    const STRICT: EgressPolicy = EgressPolicy::STRICT;
    const TEST: EgressPolicy = EgressPolicy {
        insecure_allow_loopback: true,
    };

    #[test]
    fn a_local_address_is_refused_in_every_notation() {
        use LocalRange::{LinkLocal, Loopback, Multicast, Unspecified};
        for (address, expected) in [
            ("127.0.0.1", Loopback),
            ("127.255.0.9", Loopback),
            ("::1", Loopback),
            ("::ffff:127.0.0.1", Loopback),
            ("::127.0.0.1", Loopback),
            ("64:ff9b::7f00:1", Loopback),
            ("64:ff9b:1::7f00:1", Loopback),
            ("2002:7f00:1::", Loopback),
            ("0.0.0.0", Unspecified),
            ("0.1.2.3", Unspecified),
            ("::", Unspecified),
            ("::ffff:0.0.0.0", Unspecified),
            ("169.254.169.254", LinkLocal),
            ("169.254.0.1", LinkLocal),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("::ffff:169.254.169.254", LinkLocal),
            ("64:ff9b::a9fe:a9fe", LinkLocal),
            ("2002:a9fe:a9fe::1", LinkLocal),
            ("fd00:ec2::254", LinkLocal),
            ("224.0.0.1", Multicast),
            ("255.255.255.255", Multicast),
            ("ff02::1", Multicast),
        ] {
            let parsed: IpAddr = address.parse().unwrap();
            assert_eq!(STRICT.refuses(parsed), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_address_of_another_host_is_accepted() {
        for address in [
            "10.0.0.1",
            "192.168.7.1",
            "172.16.0.1",
            "100.64.0.1",
            "203.0.113.7",
            "170.254.0.1",
            "2001:db8::1",
            "fd00::1",
            "fec0::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::1",
        ] {
            assert_eq!(STRICT.refuses(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn the_loopback_exception_allows_only_loopback_addresses() {
        assert_eq!(TEST.refuses("127.0.0.1".parse().unwrap()), None);
        assert_eq!(TEST.refuses("::1".parse().unwrap()), None);
        for address in [
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "::ffff:169.254.0.1",
        ] {
            assert!(
                TEST.refuses(address.parse().unwrap()).is_some(),
                "{address}"
            );
        }
    }

    #[test]
    fn a_name_with_one_local_address_is_refused() {
        let there = SocketAddr::from(([203, 0, 113, 7], 6443));
        let here = SocketAddr::from(([127, 0, 0, 1], 6443));
        assert_eq!(screened(vec![there], STRICT).unwrap(), [there]);

        let error = screened(vec![there, here], STRICT).unwrap_err();

        let expected = "the API server's address 127.0.0.1 is refused: it is a loopback address";
        assert_eq!(error.to_string(), expected);
    }

    #[tokio::test]
    async fn no_request_is_sent_to_a_name_with_a_local_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in [
            "localhost",
            "127.0.0.1",
            "[::ffff:127.0.0.1]",
            "127.1",
            "2130706433",
        ] {
            let server: Uri = format!("https://{host}:{port}").parse().unwrap();

            let error = dialler(STRICT).dial(server).await.unwrap_err();

            let error = error.to_string();
            assert!(error.contains(" is refused: it is "), "{host}: {error}");
        }
        let server: Uri = format!("https://localhost:{port}").parse().unwrap();
        let reached = dialler(TEST).dial(server).await.unwrap();
        let (_, from) = listener.accept().await.unwrap();
        assert_eq!(from, reached.inner().local_addr().unwrap());
    }

    #[tokio::test]
    async fn a_host_name_resolves_to_a_few_addresses_with_the_port_of_the_url() {
        let many = Dialler {
            lookup: |_| {
                Ok(vec![
                    SocketAddr::from(([203, 0, 113, 7], 0));
                    2 * MAX_ADDRESSES
                ])
            },
            ..dialler(STRICT)
        };

        let found = many.resolve("a", 6443).await.unwrap();

        let expected = SocketAddr::from(([203, 0, 113, 7], 6443));
        assert_eq!(found, [expected; MAX_ADDRESSES]);
    }

    /// The number of lookups that are in progress.
    static HANGING: AtomicUsize = AtomicUsize::new(0);
    static RELEASED: AtomicBool = AtomicBool::new(false);

    /// Ends the hanging lookups, even if the test fails, because a runtime waits for its threads.
    struct Release;

    impl Drop for Release {
        fn drop(&mut self) {
            RELEASED.store(true, Ordering::Relaxed);
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "a lookup can fail")]
    fn hang(_: &str) -> io::Result<Vec<SocketAddr>> {
        HANGING.fetch_add(1, Ordering::Relaxed);
        while !RELEASED.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        HANGING.fetch_sub(1, Ordering::Relaxed);
        Ok(Vec::new())
    }

    #[expect(clippy::unnecessary_wraps, reason = "a lookup can fail")]
    fn hanging_never(_: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![SocketAddr::from(([203, 0, 113, 7], 0))])
    }

    #[test]
    fn a_slow_lookup_marks_only_its_namespace_as_slow() {
        let lookups = Lookups::default();
        lookups.took("tenant-a", SLOW_LOOKUP + Duration::from_millis(1));
        lookups.took("tenant-a", Duration::ZERO);
        lookups.took("tenant-b", SLOW_LOOKUP);

        assert!(lookups.is_slow("tenant-a"));
        assert!(!lookups.is_slow("tenant-b"));
    }

    #[test]
    fn a_slow_lookup_visits_few_of_many_namespaces() {
        let lookups = Lookups::default();
        let slow = |number: usize| lookups.took(&number.to_string(), 2 * SLOW_LOOKUP);
        (0..1000).for_each(slow);

        let most = most_visited(|| slow(1000));

        assert!(most[&Lock::SlowLookups] < 20, "{most:?}");
    }

    #[tokio::test]
    async fn a_hanging_name_server_gets_one_lookup_at_a_time() {
        let release = Release;
        let hanging = Dialler {
            lookup: hang,
            ..dialler(STRICT)
        };
        let lookup = || timeout(Duration::from_millis(100), hanging.resolve("a", 1));
        let (one, other, later) = (lookup().await, lookup().await, lookup().await);
        assert!(one.is_err() && other.is_err() && later.is_err());
        // On a busy machine, the thread of the lookup can start later.
        while HANGING.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(HANGING.load(Ordering::Relaxed), 1);

        // Neither a new kubeconfig nor another Cluster in the same namespace can take turns from another namespace.
        let lookups = hanging.lookups.clone();
        let of = |namespace: &str, name: &str| Dialler {
            lookup: hang,
            ..Dialler::among(lookups.clone(), STRICT, &cluster(namespace, name))
        };
        let victim = Dialler {
            lookup: hanging_never,
            ..of("tenant-b", "prod-1")
        };
        let again = of("tenant-a", "prod-1");
        assert!(again.quick.try_turn().is_none());
        let crowd = (2..200).map(|number| of("tenant-a", &number.to_string()));
        let crowd: Vec<_> = crowd.collect();
        let held = crowd.iter().filter_map(|one| one.quick.try_turn());
        assert_eq!(held.collect::<Vec<_>>().len(), LOOKUPS.all / 2 - 1);
        assert!(!victim.resolve("a", 1).await.unwrap().is_empty());

        drop(release);
        assert!(hanging.resolve("a", 1).await.unwrap().is_empty());
    }
}
