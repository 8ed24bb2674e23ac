//! The rate limit for responses from tenants' API servers. Processing responses takes processor time that other
//! clusters need. The budget in [`super::decoding`] does not cover the work after decoding, such as adding an object to
//! a queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use node_attestation_core::unshared::Unshared;
use tokio::time::Instant;

use crate::shared::{Lock, Shared};

/// The rate for each API server: about 25 joins per second, with bursts of 100.
const OWN: Rate = Rate {
    bytes_a_second: 1024 * 1024,
    burst: Duration::from_secs(4),
};

/// The rate that all API servers share in addition to their own rates: about 200 joins per second, with bursts of
/// 1,000.
const COMMON: Rate = Rate {
    bytes_a_second: 8 * 1024 * 1024,
    burst: Duration::from_secs(4),
};

/// The share of one namespace's API servers while other namespaces exist: half of the shared rate.
const NAMESPACE: Rate = Rate {
    bytes_a_second: COMMON.bytes_a_second / 2,
    burst: COMMON.burst,
};

/// The minimum number of bytes for which a chunk is charged. For a smaller chunk, the fixed work takes longer than
/// processing the bytes. A normal event is longer.
const MIN_PIECE: usize = 2048;

/// The number of bytes for which a list page is charged, in addition to its length. Therefore each API server can send
/// 64 pages per second, with bursts of 256.
const PAGE: usize = 16 * 1024;

static PROCESS: Common = Common::new();

/// The traffic that all API servers share.
#[derive(Debug)]
struct Common {
    /// The time at which the shared budget will be full again.
    whole_at: Shared<Option<Instant>>,
    /// The namespaces that have API servers.
    namespaces: Shared<BTreeMap<String, Weak<OfNamespace>>>,
}

impl Common {
    const fn new() -> Self {
        Self {
            whole_at: Shared::new(Lock::Traffic, None),
            namespaces: Shared::new(Lock::TrafficNamespaces, BTreeMap::new()),
        }
    }
}

/// The traffic of one namespace's API servers.
#[derive(Debug)]
struct OfNamespace {
    common: &'static Common,
    name: String,
    whole_at: Shared<Option<Instant>>,
}

impl OfNamespace {
    fn new(common: &'static Common, name: &str) -> Arc<Self> {
        common.namespaces.write(|namespaces| {
            if let Some(known) = namespaces.get(name).and_then(Weak::upgrade) {
                return known;
            }
            let new = Arc::new(Self {
                common,
                name: name.to_owned(),
                whole_at: Shared::new(Lock::Traffic, None),
            });
            namespaces.insert(name.to_owned(), Arc::downgrade(&new));
            new
        })
    }
}

impl Drop for OfNamespace {
    fn drop(&mut self) {
        self.common.namespaces.write(|namespaces| {
            // The namespace might already have a new entry.
            let is_gone = |known: &Weak<Self>| known.strong_count() == 0;
            if namespaces.get(&self.name).is_some_and(is_gone) {
                namespaces.remove(&self.name);
            }
        });
    }
}

#[derive(Debug, Clone, Copy)]
struct Rate {
    bytes_a_second: u32,
    burst: Duration,
}

impl Rate {
    /// Takes this number of bytes from the budget that will be full at `whole_at`.
    ///
    /// If the number of bytes exceeds the burst, takes them only if `must` is set, and returns the time to wait as the
    /// error.
    fn take(self, whole_at: &mut Option<Instant>, bytes: u32, must: bool) -> Result<(), Duration> {
        let now = Instant::now();
        let missing = whole_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let missing = missing + Duration::from_secs(1) * bytes / self.bytes_a_second;
        let wait = missing.saturating_sub(self.burst);
        if must || wait.is_zero() {
            *whole_at = Some(now + missing);
        }
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }
}

/// The response traffic of one API server.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    /// Not shared: only the calls to this API server use it.
    own: Arc<Unshared<Option<Instant>>>,
    namespace: Arc<OfNamespace>,
}

impl Flow {
    /// Creates the flow for an API server in this namespace.
    pub(super) fn new(namespace: &str) -> Self {
        Self::among(&PROCESS, namespace)
    }

    fn among(common: &'static Common, namespace: &str) -> Self {
        Self {
            own: Arc::default(),
            namespace: OfNamespace::new(common, namespace),
        }
    }

    /// Charges a list page, without its bytes.
    ///
    /// # Errors
    ///
    /// Returns the time to wait before the page can be read.
    pub(super) fn count_page(&self) -> Result<(), Duration> {
        self.count(PAGE)
    }

    /// Charges a chunk that was read.
    ///
    /// # Errors
    ///
    /// Returns the time to wait before the next chunk can be read.
    pub(super) fn count(&self, bytes: usize) -> Result<(), Duration> {
        let bytes = u32::try_from(bytes.max(MIN_PIECE)).unwrap_or(u32::MAX);
        let take = |whole_at: &Shared<_>, rate: Rate, must| {
            whole_at.write(|whole_at| rate.take(whole_at, bytes, must))
        };
        let take_own = |must| OWN.take(&mut self.own.lock(), bytes, must);
        let OfNamespace {
            common, whole_at, ..
        } = &*self.namespace;
        let taken = take_own(false)
            .or_else(|_| take(&common.whole_at, COMMON, false))
            .or_else(|_| take_own(true));
        let is_alone = common.namespaces.read(|namespaces| namespaces.len() < 2);
        let of_namespace = if is_alone {
            Ok(())
        } else {
            take(whole_at, NAMESPACE, true)
        };
        match (taken, of_namespace) {
            (Err(own), Err(of_namespace)) => Err(own.max(of_namespace)),
            (taken, of_namespace) => taken.and(of_namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::shared::testing::most_visited;

    const MIB: usize = 1024 * 1024;

    fn flow(common: &'static Common) -> Flow {
        Flow::among(common, "tenant-a")
    }

    /// Reads for this duration, as fast as the limit permits. Returns the number of bytes that were read.
    async fn flood(flow: &Flow, time: Duration) -> usize {
        let end = Instant::now() + time;
        let mut read = 0;
        while Instant::now() < end {
            read += 1;
            if let Err(wait) = flow.count(MIB) {
                sleep(wait).await;
            }
        }
        read
    }

    #[tokio::test(start_paused = true)]
    async fn one_flooding_client_does_not_reduce_the_rate_of_others() {
        static ALL: Common = Common::new();
        let (greedy, other) = (flow(&ALL), flow(&ALL));

        let minute = Duration::from_mins(1);
        let read = flood(&greedy, minute).await;
        // The total is the two bursts, the server's own rate, and the whole shared rate, because no other server uses
        // the shared rate.
        let most = 4 + 32 + 60 * (1 + 8) + 1;
        assert!((most * 9 / 10..=most).contains(&read), "{read}");

        while greedy.count(MIB).is_ok() {}
        for _ in 0..4 {
            assert_eq!(other.count(MIB), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_flooding_clients_get_the_shared_rate_plus_their_shares() {
        static ALL: Common = Common::new();
        let all: Vec<Flow> = (0..50).map(|_| flow(&ALL)).collect();
        for one in &all {
            while one.count(MIB).is_ok() {}
        }
        let begun = Instant::now();
        let minute = Duration::from_mins(1);
        let read = futures::future::join_all(all.iter().map(|one| flood(one, minute))).await;

        assert!(begun.elapsed() >= minute);
        let read: usize = read.iter().sum();
        assert!(read <= 60 * (50 + 8) + 2 * 50, "{read}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flooding_namespace_gets_half_of_the_shared_rate() {
        static ALL: Common = Common::new();
        let minute = Duration::from_mins(1);
        let flood = || async {
            let all: Vec<Flow> = (0..50).map(|_| flow(&ALL)).collect();
            let read = all.iter().map(|one| flood(one, minute));
            futures::future::join_all(read).await.iter().sum::<usize>()
        };
        let victim = Flow::among(&ALL, "tenant-b");

        let read = flood().await;

        // Each server reads its burst, four chunks per second, and its last chunk.
        assert!((60 * 4..=64 * 4 + 50).contains(&read), "{read}");
        for _ in 0..4 {
            assert_eq!(victim.count(MIB), Ok(()));
        }
        drop(victim);
        let read = flood().await;
        assert!(read > 60 * 50, "it is without another: {read}");
        assert!(ALL.namespaces.read(BTreeMap::is_empty));
    }

    #[tokio::test(start_paused = true)]
    async fn small_chunks_count_with_a_minimum_size() {
        static ALL: Common = Common::new();
        let flow = flow(&ALL);
        let most = 37 * MIB / MIN_PIECE;
        let pieces = (0..=most).take_while(|_| flow.count(1).is_ok()).count();
        assert!(pieces <= most, "{pieces}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_from_an_api_server_visits_no_other_namespace() {
        static ALL: Common = Common::new();
        let names = (0..1000).map(|number| number.to_string());
        let mut flows: Vec<Flow> = names.map(|name| Flow::among(&ALL, &name)).collect();

        let visited = most_visited(|| {
            while flows[0].count(MIB).is_ok() {}
            drop(flows.pop());
            flows.push(Flow::among(&ALL, "another"));
        });

        assert_eq!(visited[&Lock::Traffic], 0);
        assert_eq!(visited[&Lock::TrafficNamespaces], 0);
    }
}
