//! Limits on the memory that clusters share, so that neither a single cluster nor all clusters in a namespace together
//! can use all of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use crate::shared::{Lock, Shared};

mod container;
mod limit;

pub use limit::KeptLimit;

use limit::Limit;

/// The container's memory limit divided by this number is the memory that all clusters share for data from their API
/// servers, in addition to their own shares: 64 MiB of 1 GiB.
const COMMON_PART: usize = 16;

/// The container's memory limit divided by this number is the memory for the own shares of all clusters together: 128
/// MiB of 1 GiB.
const OWN_PART: usize = 8;

static PROCESS: LazyLock<Common> = LazyLock::new(|| {
    let limit = container::limit();
    Common::new(limit / OWN_PART, limit / COMMON_PART)
});

/// The container's memory limit divided by this number is the memory for connections within their own shares: 256 MiB
/// of 1 GiB. Half of this memory is sufficient for 1,024 connections. By default, a namespace has up to 1,000 clusters,
/// each with one connection that remains open.
const CONNECTIONS_PART: usize = 4;

/// The container's memory limit divided by this number is the memory for connections that exceed their own shares: 32
/// MiB of 1 GiB.
const MORE_CONNECTIONS_PART: usize = 32;

/// Connections have separate memory, so that other uses of memory do not close or prevent connections.
static CONNECTIONS: LazyLock<Common> = LazyLock::new(|| {
    let limit = container::limit();
    Common::of_kept(limit / CONNECTIONS_PART, limit / MORE_CONNECTIONS_PART)
});

/// The container's memory limit divided by this number is the memory for `ConfigMaps` in own shares, and also the
/// shared memory for `ConfigMaps`: 128 MiB of 1 GiB for each of the two.
const LISTS_PART: usize = 8;

static LISTS: LazyLock<Common> = LazyLock::new(|| {
    let bytes = container::limit() / LISTS_PART;
    Common::of_kept(bytes, bytes)
});

/// The container's memory limit divided by this number is the memory for management cluster responses to calls that a
/// tenant causes: 64 MiB of 1 GiB. A watch holds the memory for its longest event until the watch ends. Each served
/// Cluster has two watches of Secrets, which use up to 3 MiB.
const CALLS_PART: usize = 16;

/// The memory that is reserved for each of these calls. Most responses are shorter.
const OWN_CALL: usize = STEP;

static CALLS: LazyLock<Common> = LazyLock::new(|| {
    // Other namespaces can make calls at any time, so a single namespace can use at most half of the memory.
    Common::of_kept(usize::MAX, container::limit() / CALLS_PART)
});

/// The container's memory limit divided by this number is the limit for the values of all Clusters' Secrets: 64 MiB of
/// 1 GiB. The values are kept as long as their Clusters exist, and a tenant with 1,000 Clusters could otherwise use
/// more than 200 MiB.
const SECRETS_PART: usize = 16;

/// The memory that is reserved for the values of each Secret. Normal Secrets and their parsed forms use less.
const OWN_SECRET: usize = STEP;

static SECRETS: LazyLock<Common> =
    LazyLock::new(|| Common::of_kept(usize::MAX, container::limit() / SECRETS_PART));

/// The memory that is reserved for a cluster's `ConfigMaps`, which is enough for more than 10,000 hosts.
const OWN_LISTS: usize = 2 * 1024 * 1024;

/// The unit in which memory is counted, so that not every byte changes a counter.
const STEP: usize = 16 * 1024;

/// The number of free bytes.
#[derive(Debug)]
struct Pool(AtomicUsize);

impl Pool {
    const fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    /// Takes up to `bytes`, and returns the number of bytes taken.
    fn take_some(&self, bytes: usize) -> usize {
        let taken = |left: usize| left.checked_sub(bytes.min(left));
        let before = self
            .0
            .try_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        before.map_or(0, |before| bytes.min(before))
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The memory that all namespaces share.
#[derive(Debug)]
struct Common {
    own: Limit,
    rest: Limit,
    /// The minimum number of namespaces for which memory is reserved, even if fewer namespaces have a share.
    least: usize,
    taken: Shared<Taken>,
}

#[derive(Debug)]
struct Taken {
    /// The number of bytes in the own shares of all tenants.
    own: usize,
    common: usize,
    /// The namespaces with a share.
    namespaces: BTreeMap<String, OfNamespace>,
}

impl Taken {
    /// The number of namespaces, excluding the operator's namespace.
    fn tenants(&self) -> usize {
        self.namespaces.len() - usize::from(self.namespaces.contains_key(""))
    }
}

/// The memory that all clusters in one namespace use together.
#[derive(Debug, Default)]
struct OfNamespace {
    /// The number of shares.
    shares: usize,
    /// The number of bytes in the own shares of the clusters.
    own: usize,
    common: usize,
}

impl Common {
    const fn new(own: usize, common: usize) -> Self {
        Self::for_at_least(1, own, common)
    }

    /// Creates memory that remains in use as long as clusters are served. A single namespace can use at most half of
    /// it, because other namespaces can get only unused memory.
    const fn of_kept(own: usize, common: usize) -> Self {
        Self::for_at_least(2, own, common)
    }

    const fn for_at_least(least: usize, own: usize, common: usize) -> Self {
        Self {
            own: Limit(own),
            rest: Limit(common),
            least,
            taken: Shared::new(
                Lock::Memory,
                Taken {
                    own: 0,
                    common: 0,
                    namespaces: BTreeMap::new(),
                },
            ),
        }
    }

    /// Takes bytes from own shares and from the shared memory for this namespace. If there are not enough bytes,
    /// returns `false` and does not change anything.
    fn take(&self, namespace: &str, own: usize, common: usize) -> bool {
        self.taken.write(|taken| {
            let is_operator = namespace.is_empty();
            let namespaces = if is_operator {
                0
            } else {
                taken.tenants().max(self.least)
            };
            let Taken {
                own: all_own,
                common: all_common,
                namespaces: known,
            } = taken;
            let Some(of_namespace) = known.get_mut(namespace) else {
                return false;
            };
            let own_before = (of_namespace.own, *all_own);
            let has_own = is_operator || own <= self.own.room(own_before, namespaces);
            let before = (of_namespace.common, *all_common);
            if !has_own || common > self.rest.room(before, namespaces) {
                return false;
            }
            of_namespace.own = of_namespace.own.saturating_add(own);
            of_namespace.common += common;
            *all_common += common;
            if !is_operator {
                *all_own += own;
            }
            true
        })
    }

    /// The bytes beyond half of the own shares, and beyond half of the shared memory, that this namespace uses while
    /// another namespace has a share.
    fn excess(&self, namespace: &str) -> (usize, usize) {
        self.taken.read(|taken| {
            let used = taken.namespaces.get(namespace);
            let used = used.filter(|_| !namespace.is_empty() && taken.tenants() > 1);
            used.map_or((0, 0), |used| {
                let own = used.own.saturating_sub(self.own.half());
                (own, used.common.saturating_sub(self.rest.half()))
            })
        })
    }

    fn give_back(&self, namespace: &str, own: usize, common: usize) {
        self.taken.write(|taken| {
            taken.common = taken.common.saturating_sub(common);
            if !namespace.is_empty() {
                taken.own = taken.own.saturating_sub(own);
            }
            if let Some(of_namespace) = taken.namespaces.get_mut(namespace) {
                of_namespace.own = of_namespace.own.saturating_sub(own);
                of_namespace.common = of_namespace.common.saturating_sub(common);
            }
        });
    }
}

/// A share in the common memory. It counts for its namespace until it is dropped.
#[derive(Debug)]
struct Member {
    common: &'static Common,
    /// The namespace. Empty for the operator, whose share is not limited further.
    namespace: String,
}

impl Member {
    fn new(common: &'static Common, namespace: &str) -> Self {
        common.taken.write(|taken| {
            let of_namespace = taken.namespaces.entry(namespace.to_owned());
            of_namespace.or_default().shares += 1;
        });
        Self {
            common,
            namespace: namespace.to_owned(),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.common.taken.write(|taken| {
            if let Some(of_namespace) = taken.namespaces.get_mut(&self.namespace) {
                of_namespace.shares = of_namespace.shares.saturating_sub(1);
                if of_namespace.shares == 0 {
                    taken.namespaces.remove(&self.namespace);
                }
            }
        });
    }
}

/// The memory that one cluster can use: its own share, and a part of the shared memory.
///
/// # Guarantees
///
/// - Other clusters in the namespace never use a cluster's own share.
/// - The own shares of all tenants together are limited. The shared memory is also limited.
/// - While another namespace has a share, the clusters in one namespace can use at most half of each kind of shared
///   memory. If a namespace used more before, its queues drop kept requests until it uses half. For connections, calls
///   and `ConfigMaps`, this limit always applies. The last quarter is divided equally among at least
///   three namespaces. Therefore, a new namespace gets memory even while the other namespaces use as much memory as
///   possible.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    own: Arc<Pool>,
    member: Arc<Member>,
}

impl Share {
    /// Creates a share for a cluster in this namespace, with `own` reserved bytes. The operator's namespace is empty.
    pub(crate) fn new(namespace: &str, own: usize) -> Self {
        Self::of(&PROCESS, namespace, own)
    }

    /// Creates a share for connections to the API server of a cluster in this namespace, with `own` reserved bytes. The
    /// operator's namespace is empty.
    pub(crate) fn of_connections(namespace: &str, own: usize) -> Self {
        Self::of(&CONNECTIONS, namespace, own)
    }

    /// Creates a share for the `ConfigMaps` of a cluster in this namespace.
    pub(crate) fn of_lists(namespace: &str) -> Self {
        Self::of(&LISTS, namespace, OWN_LISTS)
    }

    /// Creates a share for the management cluster's response to one call that this namespace causes.
    pub(crate) fn of_call(namespace: &str) -> Self {
        Self::of(&CALLS, namespace, OWN_CALL)
    }

    /// Creates a share for the values of a Secret of a Cluster in this namespace.
    pub(crate) fn of_secret(namespace: &str) -> Self {
        Self::of(&SECRETS, namespace, OWN_SECRET)
    }

    fn of(common: &'static Common, namespace: &str, own: usize) -> Self {
        Self {
            own: Arc::new(Pool::new(own)),
            member: Arc::new(Member::new(common, namespace)),
        }
    }

    /// Creates an empty holding.
    pub(crate) fn holding(&self) -> Holding {
        Holding {
            share: self.clone(),
            own: 0,
            common: 0,
        }
    }
}

/// Bytes that are in use until this value is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    share: Share,
    own: usize,
    common: usize,
}

impl Holding {
    /// Grows or shrinks to at least `bytes`. If there are not enough bytes, returns `false` and does not change the
    /// size.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let Some(wanted) = bytes.checked_next_multiple_of(STEP) else {
            return false;
        };
        let held = self.own + self.common;
        match wanted.checked_sub(held) {
            Some(0) => true,
            Some(more) => {
                let own = self.share.own.take_some(more);
                let common = more - own;
                let Member {
                    common: all,
                    namespace,
                } = &*self.share.member;
                if !all.take(namespace, own, common) {
                    self.share.own.give_back(own);
                    return false;
                }
                self.own += own;
                self.common += common;
                true
            }
            None => {
                let less = held - wanted;
                let common = less.min(self.common);
                self.give_back(less - common, common);
                true
            }
        }
    }

    /// The number of bytes in this holding that its namespace uses beyond half, while another namespace has a share.
    pub(crate) fn excess(&self) -> usize {
        let Member { common, namespace } = &*self.share.member;
        let (own, common) = common.excess(namespace);
        own.min(self.own) + common.min(self.common)
    }

    fn give_back(&mut self, own: usize, common: usize) {
        self.own -= own;
        self.common -= common;
        let Share { own: pool, member } = &self.share;
        pool.give_back(own);
        member.common.give_back(&member.namespace, own, common);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.give_back(self.own, self.common);
    }
}

#[cfg(test)]
mod tests;
