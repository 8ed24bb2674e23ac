//! Limits for the memory that clusters share, so that neither one cluster nor the clusters of one namespace can use all
//! of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use crate::shared::{Lock, Shared};

mod container;
mod limit;

pub(crate) use limit::KeptLimit;

use limit::Limit;

/// The part of the container's limit that all clusters share for data from their API servers, in addition to their own
/// shares: 64 MiB of 1 GiB.
const COMMON_PART: usize = 16;

/// The part for the own shares of all clusters together: 256 MiB of 1 GiB, which 2,000 connections reserve.
const OWN_PART: usize = 4;

static PROCESS: LazyLock<Common> = LazyLock::new(|| {
    let limit = container::limit();
    Common::new(limit / OWN_PART, limit / COMMON_PART)
});

/// The part for `ConfigMaps`, once for the own shares and once for the shared memory: 128 MiB each.
const LISTS_PART: usize = 8;

static LISTS: LazyLock<Common> = LazyLock::new(|| {
    let bytes = container::limit() / LISTS_PART;
    Common::new(bytes, bytes)
});

/// The memory that is reserved for the `ConfigMaps` of a cluster: more than 10,000 hosts.
const OWN_LISTS: usize = 2 * 1024 * 1024;

/// The unit of counting, so that not every byte changes a counter.
const STEP: usize = 16 * 1024;

/// The number of free bytes.
#[derive(Debug)]
struct Pool(AtomicUsize);

impl Pool {
    const fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    /// Takes up to `bytes`.
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

/// The memory that the clusters of all namespaces share.
#[derive(Debug)]
struct Common {
    own: Limit,
    rest: Limit,
    taken: Shared<Taken>,
}

#[derive(Debug)]
struct Taken {
    /// The bytes of all tenants' own shares.
    own: usize,
    common: usize,
    /// The namespaces with a share.
    namespaces: BTreeMap<String, OfNamespace>,
}

impl Taken {
    /// The number of namespaces without the operator's.
    fn tenants(&self) -> usize {
        self.namespaces.len() - usize::from(self.namespaces.contains_key(""))
    }
}

/// The memory that the clusters of one namespace use together.
#[derive(Debug, Default)]
struct OfNamespace {
    /// The number of shares.
    shares: usize,
    /// The bytes of the clusters' own shares.
    own: usize,
    common: usize,
}

impl Common {
    const fn new(own: usize, common: usize) -> Self {
        Self {
            own: Limit(own),
            rest: Limit(common),
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

    /// Takes bytes of own shares and of the shared memory for this namespace. Returns `false` without a change if there
    /// are not enough.
    fn take(&self, namespace: &str, own: usize, common: usize) -> bool {
        self.taken.write(|taken| {
            let is_operator = namespace.is_empty();
            let namespaces = if is_operator { 1 } else { taken.tenants() };
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

/// A share of the common memory. It counts for its namespace until it is dropped.
#[derive(Debug)]
struct Member {
    common: &'static Common,
    /// The namespace. Empty for the operator, whose share has no other limit.
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
/// - Other clusters of its namespace never use its own share.
/// - The own shares of all tenants have a common limit, and so does the shared memory.
/// - While another namespace has a share, the clusters of one namespace use at most half of each. With three or more
///   namespaces, each has an equal part of the last quarter. A single namespace can use everything.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    own: Arc<Pool>,
    member: Arc<Member>,
}

impl Share {
    /// Creates a share for a cluster of this namespace, with `own` reserved bytes. The operator's namespace is empty.
    pub(crate) fn new(namespace: &str, own: usize) -> Self {
        Self::of(&PROCESS, namespace, own)
    }

    /// Creates a share for the `ConfigMaps` of a cluster of this namespace.
    pub(crate) fn of_lists(namespace: &str) -> Self {
        Self::of(&LISTS, namespace, OWN_LISTS)
    }

    fn of(common: &'static Common, namespace: &str, own: usize) -> Self {
        Self {
            own: Arc::new(Pool::new(own)),
            member: Arc::new(Member::new(common, namespace)),
        }
    }

    /// An empty holding.
    pub(crate) fn holding(&self) -> Holding {
        Holding {
            share: self.clone(),
            own: 0,
            common: 0,
        }
    }
}

/// Bytes that are in use until this is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    share: Share,
    own: usize,
    common: usize,
}

impl Holding {
    /// Grows or shrinks to at least `bytes`. Returns `false` without a change if there are not enough.
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
mod tests {
    use super::*;
    use crate::shared::testing::most_visited;

    impl Share {
        /// A share without a common limit.
        pub(crate) fn alone(own: usize) -> Self {
            Self::of(common(0, 0), "", own)
        }
    }

    fn common(own: usize, common: usize) -> &'static Common {
        Box::leak(Box::new(Common::new(own, common)))
    }

    #[test]
    fn the_operator_share_is_separate_from_namespace_shares() {
        let common = common(STEP, 4 * STEP);
        let operator = Share::of(common, "", 8 * STEP);
        let tenant = Share::of(common, "tenant-a", STEP);
        assert!(tenant.holding().resize(5 * STEP));
        assert!(operator.holding().resize(12 * STEP));
    }

    fn shares(own: usize, all: usize) -> [Share; 2] {
        let common = common(2 * own * STEP, all * STEP);
        [(); 2].map(|()| Share::of(common, "tenant-a", own * STEP))
    }

    #[test]
    fn a_namespace_gets_half_of_the_memory_while_another_has_a_share() {
        let common = common(8 * STEP, 8 * STEP);
        let tenant_a: Vec<_> = (0..5)
            .map(|_| Share::of(common, "tenant-a", STEP))
            .collect();
        let take = |share: &Share, steps: usize| {
            let mut holding = share.holding();
            let has_room = holding.resize(steps * STEP);
            has_room.then_some(holding)
        };
        let (first, second) = (&tenant_a[0], &tenant_a[1]);
        assert!(take(first, 9).is_some(), "it is alone");
        assert!(take(first, 10).is_none());

        let tenant_b = Share::of(common, "tenant-b", STEP);
        assert!(take(first, 6).is_none(), "half and its own are 5");
        let half = take(first, 5);
        assert!(half.is_some());
        assert!(take(second, 2).is_none());
        let own = take(second, 1);
        assert!(own.is_some(), "its own share is left");
        let victim = take(&tenant_b, 5);
        assert!(victim.is_some());
        drop((half, own, victim));

        let own: Vec<_> = tenant_a.iter().map(|share| take(share, 1)).collect();
        assert_eq!(
            own.iter().flatten().count(),
            4,
            "own shares have a limit too"
        );
        drop((own, tenant_b));

        assert!(take(first, 9).is_some(), "it is alone again");
    }

    #[test]
    fn a_dropped_share_is_released() {
        let common = common(STEP, 0);
        for number in 0..100 {
            let share = Share::of(common, &number.to_string(), STEP);
            let mut holding = share.holding();
            assert!(holding.resize(STEP));
            drop(share);
            assert_eq!(common.taken.read(|taken| taken.namespaces.len()), 1);
        }
        assert!(common.taken.read(|taken| taken.namespaces.is_empty()));
    }

    #[test]
    fn many_namespaces_together_leave_a_part_of_all_memory_to_another() {
        const ALL: usize = 64;
        for of_own in [true, false] {
            let (own, common_of) = if of_own { (ALL, 0) } else { (0, ALL) };
            let common = common(own * STEP, common_of * STEP);
            let share_of = |namespace: &str| Share::of(common, namespace, own * STEP);
            let victim = share_of("victim");
            let mut taken = 0;
            let mut held = Vec::new();
            let evil: Vec<_> = (0..7)
                .map(|number| share_of(&format!("evil-{number}")))
                .collect();
            for share in &evil {
                loop {
                    let mut holding = share.holding();
                    if !holding.resize(STEP) {
                        break;
                    }
                    taken += 1;
                    held.push(holding);
                }
                held.push(share.holding());
            }
            let equal = ALL / 4 / 8;
            assert_eq!(taken, ALL * 3 / 4 + 5 * equal, "{of_own}");

            let mut own = victim.holding();
            assert!(own.resize(equal * STEP), "{of_own}: an equal part");
            assert!(!own.resize(ALL * STEP), "{of_own}: there is a limit");
            drop(own);
            drop(held);
            let all_taken = common.taken.read(|taken| (taken.own, taken.common));
            assert_eq!(all_taken, (0, 0));
        }
    }

    #[test]
    fn the_own_shares_of_one_namespace_are_limited_in_total() {
        let common = common(8 * STEP, 0);
        let shares = (0..20).map(|_| Share::of(common, "tenant-a", STEP));
        let held = shares.map(|share| {
            let mut holding = share.holding();
            holding.resize(STEP).then_some(holding)
        });
        let held: Vec<_> = held.collect();
        assert_eq!(held.iter().flatten().count(), 8);
    }

    #[test]
    fn one_greedy_share_leaves_the_other_its_own_memory() {
        let [greedy, other] = shares(2, 3);
        let mut all = greedy.holding();
        assert!(all.resize(5 * STEP));
        assert!(!all.resize(5 * STEP + 1));

        let mut own = other.holding();
        assert!(own.resize(2 * STEP));
        assert!(
            !own.resize(2 * STEP + 1),
            "nothing is left of what is common"
        );
        all.resize(4 * STEP);

        assert!(own.resize(3 * STEP));
    }

    #[test]
    fn released_memory_is_available_again() {
        let [one, other] = shares(1, 1);
        let (mut first, mut second) = (one.holding(), one.holding());
        assert!(first.resize(2 * STEP));
        assert!(!second.resize(1));
        first.resize(1);
        assert!(second.resize(1));
        drop(first);
        drop(second);

        assert!(one.holding().resize(2 * STEP));
        assert!(other.holding().resize(2 * STEP));
    }

    #[test]
    fn a_memory_share_does_not_visit_other_namespaces() {
        let common = common(2000 * STEP, 2000 * STEP);
        let shares = (0..1000).map(|number| Share::of(common, &number.to_string(), STEP));
        let shares: Vec<Share> = shares.collect();

        let visited = most_visited(|| {
            let mut holding = shares[0].holding();
            assert!(holding.resize(STEP) && holding.resize(2 * STEP));
            drop((holding, Share::of(common, "another", STEP)));
        });

        assert_eq!(visited[&Lock::Memory], 0);
    }
}
