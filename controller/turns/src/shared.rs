//! Locks that tenants share, and maps that remove dead entries incrementally.
//!
//! # Guarantees
//!
//! - Code under a [`Shared`] lock is a closure, which cannot keep a guard or wait.
//! - An insertion into a [`Swept`] map visits a constant number of entries.
//!
//! Work under a shared lock must not grow with the number of objects. Otherwise, a tenant with many objects would block
//! all other tenants. With the feature `testing`, each lock measures the processor time for which it is held, and
//! counts the visited entries.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Weak};

#[expect(clippy::disallowed_types, reason = "this is the door")]
use parking_lot::RwLock;

mod lent;
mod lock;
mod shares;

pub use lent::{Lent, Loan};
pub use lock::Lock;
pub use shares::{Share, Shares};

/// A lock that is held while a future runs. The comment on each field of this type states why a tenant cannot use the
/// lock to delay another tenant.
#[expect(clippy::disallowed_types, reason = "this is the door")]
pub type Turnstile<T> = tokio::sync::Mutex<T>;

/// The maximum number of entries that are visited while a lock is held.
pub const PAGE: usize = 64;

/// The number of entries that each insertion into a [`Swept`] map checks.
const SWEPT: usize = 4;

/// A value that tenants share, protected by a lock.
pub struct Shared<T> {
    #[cfg(feature = "testing")]
    lock: Lock,
    #[expect(clippy::disallowed_types, reason = "this is the door")]
    value: RwLock<T>,
}

impl<T> Shared<T> {
    /// Wraps a value in a lock with the name `lock`.
    #[expect(clippy::disallowed_types, reason = "this is the door")]
    pub const fn new(lock: Lock, value: T) -> Self {
        #[cfg(not(feature = "testing"))]
        let _ = lock;
        Self {
            #[cfg(feature = "testing")]
            lock,
            value: RwLock::new(value),
        }
    }

    /// Returns the result of `look`. Other readers can run concurrently.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let value = self.value.read();
        #[cfg(feature = "testing")]
        let _held = testing::Held::begin(self.lock);
        look(&value)
    }

    /// Returns the result of `change`, which has exclusive access.
    pub fn write<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.value.write();
        #[cfg(feature = "testing")]
        let _held = testing::Held::begin(self.lock);
        change(&mut value)
    }
}

impl<T> Shared<T> {
    /// Removes all entries from a map for which `keeps` returns `false`, page by page.
    pub fn retain<K: Ord + Clone, V>(
        &self,
        map: impl Fn(&mut T) -> &mut BTreeMap<K, V>,
        mut keeps: impl FnMut(&K, &mut V) -> bool,
    ) {
        let mut last: Option<K> = None;
        loop {
            let (next, dead) = self.write(|value| {
                let map = map(value);
                let begin = last.as_ref().map_or(Unbounded, Excluded);
                let (mut next, mut dead) = (None, Vec::new());
                for (key, value) in visited(map.range_mut((begin, Unbounded)).take(PAGE)) {
                    if !keeps(key, value) {
                        dead.push(key.clone());
                    }
                    next = Some(key.clone());
                }
                let dead = dead.iter().filter_map(|key| map.remove(key));
                (next, dead.collect::<Vec<V>>())
            });
            // The values are dropped after the lock is released, because they can be large.
            drop(dead);
            if next.is_none() {
                return;
            }
            last = next;
        }
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Shared")
    }
}

/// Returns the same entries, and counts each entry as visited under the locks that this thread holds.
pub fn visited<I: Iterator>(entries: I) -> impl Iterator<Item = I::Item> {
    #[cfg(feature = "testing")]
    let entries = entries.inspect(|_| testing::visit());
    entries
}

/// Counts an entry as visited under the locks that this thread holds, for a loop without an iterator.
pub fn visit() {
    #[cfg(feature = "testing")]
    testing::visit();
}

/// Returns the next entries in the map after this key, up to [`PAGE`].
pub fn page<'a, K: Ord, V>(
    map: &'a BTreeMap<K, V>,
    after: Option<&K>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    let begin = after.map_or(Unbounded, Excluded);
    visited(map.range((begin, Unbounded)).take(PAGE))
}

/// A map that removes dead entries incrementally, so that an insertion never visits all entries.
#[derive(Debug)]
pub struct Swept<K, V> {
    entries: BTreeMap<K, V>,
    /// The last entry that was checked. The next check continues after it.
    hand: Option<K>,
}

impl<K, V> Default for Swept<K, V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            hand: None,
        }
    }
}

impl<K: Ord + Clone, V> Swept<K, V> {
    /// Returns the value for this key, even if the value is dead.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key)
    }

    /// Returns the mutable value for this key, even if the value is dead.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.entries.get_mut(key)
    }

    /// Removes the value for this key.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.entries.remove(key)
    }

    /// Returns the value for this key, or inserts a new value. Before an insertion, some other entries are checked, and
    /// dead entries are removed.
    pub fn get_or_insert_with(
        &mut self,
        key: K,
        is_dead: impl FnMut(&K, &mut V) -> bool,
        new: impl FnOnce() -> V,
    ) -> &mut V {
        if !self.entries.contains_key(&key) {
            self.sweep(SWEPT, is_dead);
        }
        self.entries.entry(key).or_insert_with(new)
    }

    /// Sets the value for this key.
    ///
    /// Before that, some other entries are checked, and dead entries are removed. Returns the previous value and the
    /// dead values, so that the caller can drop large values after it releases the lock.
    pub fn insert(&mut self, key: K, value: V, is_dead: impl FnMut(&K, &mut V) -> bool) -> Vec<V> {
        let mut dead = self.sweep(SWEPT, is_dead);
        dead.extend(self.entries.insert(key, value));
        dead
    }

    /// Checks the next entries, up to `limit`. Removes and returns dead entries. After the last entry, the next call
    /// starts with the first entry again.
    pub fn sweep(&mut self, limit: usize, mut is_dead: impl FnMut(&K, &mut V) -> bool) -> Vec<V> {
        let begin = self.hand.as_ref().map_or(Unbounded, Excluded);
        let next = self.entries.range_mut((begin, Unbounded)).take(limit);
        let (mut last, mut seen, mut dead) = (None, 0, Vec::new());
        for (key, value) in visited(next) {
            seen += 1;
            if is_dead(key, value) {
                dead.push(key.clone());
            }
            last = Some(key.clone());
        }
        self.hand = last.filter(|_| seen == limit);
        let dead = dead.iter().filter_map(|key| self.entries.remove(key));
        dead.collect()
    }

    /// All entries, sorted.
    pub fn entries(&self) -> &BTreeMap<K, V> {
        &self.entries
    }

    /// Returns all entries, sorted and mutable.
    pub fn entries_mut(&mut self) -> &mut BTreeMap<K, V> {
        &mut self.entries
    }

    /// The number of entries, including dead entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Values by key. Each value is kept as long as it is in use.
#[derive(Debug)]
pub struct InUse<K, T>(Shared<Swept<K, Weak<T>>>);

impl<K: Ord + Clone, T> InUse<K, T> {
    /// Creates an empty map with this lock.
    pub fn new(lock: Lock) -> Self {
        Self(Shared::new(lock, Swept::default()))
    }

    /// Returns the value for this key if it is in use, or else a new value. A new value is created without holding the
    /// lock, because it can be large.
    pub fn get_or_insert_with(&self, key: K, new: impl FnOnce() -> Arc<T>) -> Arc<T> {
        if let Some(known) = self.get(&key) {
            return known;
        }
        let new = new();
        self.0.write(|values| {
            // Another thread might have added a value since then.
            if let Some(known) = values.get(&key).and_then(Weak::upgrade) {
                return known;
            }
            let is_dead = |_: &_, known: &mut Weak<_>| known.strong_count() == 0;
            values.insert(key, Arc::downgrade(&new), is_dead);
            new.clone()
        })
    }

    /// Returns the value for this key, if the value is in use.
    pub fn get(&self, key: &K) -> Option<Arc<T>> {
        self.0
            .read(|values| values.get(key).and_then(Weak::upgrade))
    }

    /// The number of values in use.
    #[cfg(feature = "testing")]
    pub fn count(&self) -> usize {
        self.0.read(|values| {
            let live = values.entries().values();
            live.filter(|value| value.strong_count() > 0).count()
        })
    }
}

/// The measurements of all [`Shared`] locks.
#[cfg(feature = "testing")]
pub mod testing {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::time::Duration;

    #[expect(clippy::disallowed_types, reason = "this is the door")]
    use parking_lot::Mutex;
    use rustix::time::{ClockId, clock_gettime};

    use super::Lock;

    /// The measurements in this process. Only tests and benchmarks measure.
    #[expect(clippy::disallowed_types, reason = "this is the door")]
    static LONGEST: Mutex<BTreeMap<Lock, Duration>> = Mutex::new(BTreeMap::new());

    thread_local! {
        static VISITED: Cell<usize> = const { Cell::new(0) };
        static MOST: RefCell<BTreeMap<Lock, usize>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// For each lock, the longest time for which it was held in this process, as processor time of the thread that held
    /// it. `None` if the lock was never held.
    pub fn longest_held() -> BTreeMap<Lock, Option<Duration>> {
        let longest = LONGEST.lock();
        let all = Lock::ALL.iter();
        all.map(|lock| (*lock, longest.get(lock).copied()))
            .collect()
    }

    /// For each lock, the maximum number of entries that this thread visits during `run` while it holds the lock once.
    pub fn most_visited(run: impl FnOnce()) -> BTreeMap<Lock, usize> {
        MOST.take();
        run();
        MOST.take()
    }

    /// The number of entries that this thread visits during `run`, under all locks together.
    pub fn all_visited(run: impl FnOnce()) -> usize {
        let before = VISITED.get();
        run();
        VISITED.get() - before
    }

    /// Counts an entry as visited.
    pub(super) fn visit() {
        VISITED.set(VISITED.get() + 1);
    }

    /// A lock that is held.
    pub(super) struct Held {
        lock: Lock,
        began: Duration,
        visited: usize,
    }

    impl Held {
        pub(super) fn begin(lock: Lock) -> Self {
            Self {
                lock,
                visited: VISITED.get(),
                began: thread_time(),
            }
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let held = thread_time().saturating_sub(self.began);
            let visited = VISITED.get() - self.visited;
            let mut longest = LONGEST.lock();
            let longest = longest.entry(self.lock).or_default();
            *longest = held.max(*longest);
            MOST.with_borrow_mut(|most| {
                let most = most.entry(self.lock).or_default();
                *most = visited.max(*most);
            });
        }
    }

    /// The processor time of this thread.
    fn thread_time() -> Duration {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(now).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insertion_into_a_map_with_many_dead_entries_visits_few() {
        let lock = Shared::new(Lock::Places, Swept::default());
        let insert = |key: usize| {
            lock.write(|map| drop(map.insert(key, key, |_, value| *value % 2 == 0)));
        };
        (0..1000).for_each(insert);

        let most = testing::most_visited(|| insert(1000));

        assert_eq!(most, BTreeMap::from([(Lock::Places, SWEPT)]));
    }

    #[test]
    fn each_lock_has_a_unique_name_and_is_listed_before_its_first_use() {
        let names: BTreeMap<&str, Lock> = Lock::ALL.iter().map(|one| (one.name(), *one)).collect();

        assert_eq!(names.len(), Lock::ALL.len());
        let reported: Vec<Lock> = testing::longest_held().into_keys().collect();
        let mut all = Lock::ALL.to_vec();
        all.sort_unstable();
        assert_eq!(reported, all);
    }

    #[test]
    fn dead_entries_are_removed_and_live_ones_are_kept() {
        let mut map = Swept::default();
        for key in 0..1000 {
            map.insert(key, key, |_, value| *value >= 10);
        }

        assert!(map.len() < 20, "{}", map.len());
        assert!((0..10).all(|key| map.get(&key) == Some(&key)));
    }

    #[test]
    fn the_lookup_of_a_used_value_does_not_visit_other_values() {
        for lock in [Lock::Observations, Lock::ConfigMapReaders] {
            let values = InUse::new(lock);
            let value = |key: usize| values.get_or_insert_with(key, || Arc::new(key));
            let used: Vec<Arc<usize>> = (0..1000).map(value).collect();
            drop(value(1000));

            let most = testing::most_visited(|| {
                assert!(Arc::ptr_eq(&value(7), &used[7]));
                drop(value(1001));
            });

            assert_eq!(most, BTreeMap::from([(lock, SWEPT)]));
            assert_eq!((values.count(), values.get(&1000)), (1000, None));
        }
    }

    #[test]
    fn a_shared_value_is_created_without_the_lock() {
        let values = InUse::new(Lock::RoleSessions);
        let new = || {
            visit();
            Arc::new(7)
        };

        let most = testing::most_visited(|| {
            assert_eq!(*values.get_or_insert_with(7, new), 7);
        });

        assert_eq!(most, BTreeMap::from([(Lock::RoleSessions, 0)]));
    }

    #[test]
    fn a_large_map_is_filtered_in_pages() {
        let lock = Shared::new(Lock::Places, (0..1000).map(|key| (key, key)).collect());
        let retain = || lock.retain(|map: &mut BTreeMap<_, _>| map, |_, value| *value % 2 == 0);

        let most = testing::most_visited(retain);

        assert_eq!(most, BTreeMap::from([(Lock::Places, PAGE)]));
        assert_eq!(lock.read(BTreeMap::len), 500);
    }

    #[test]
    fn the_pages_of_a_map_contain_each_entry_once() {
        let map: BTreeMap<usize, usize> = (0..1000).map(|key| (key, key)).collect();
        let (mut all, mut last) = (Vec::new(), None);
        loop {
            let next: Vec<usize> = page(&map, last.as_ref()).map(|(key, _)| *key).collect();
            assert!(next.len() <= PAGE);
            let Some(key) = next.last() else { break };
            last = Some(*key);
            all.extend(next);
        }

        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }
}
