//! Objects of tenants, limited for each namespace and in total.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use node_attestation_runtime::memory::KeptLimit;
use node_attestation_runtime::shared::Swept;

/// The maximum number of known omitted objects in one namespace. If a namespace has more omitted objects, each missing
/// object counts as omitted.
const MAX_OMITTED: usize = 1000;

/// The number of bytes that an object uses in addition to its own size.
const OBJECT_LEN: usize = 256;

/// The size in bytes of this fraction of the container's memory, as the limit for all namespaces together.
pub(crate) fn of_memory(part: usize) -> KeptLimit {
    // The tests must not depend on the container in which they run.
    if cfg!(test) {
        KeptLimit::new((1 << 30) / part)
    } else {
        KeptLimit::of_memory(part, 1)
    }
}

/// The limits of one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// The number of objects.
    pub objects: usize,
    /// The total size of all objects, in bytes.
    pub bytes: usize,
}

/// The objects of all namespaces. An object that exceeds the limits of its namespace does not affect other namespaces.
///
/// # Guarantees
///
/// - If a namespace has too many objects, a new object is omitted.
/// - If the objects of a namespace are too large, a small object replaces the new object.
/// - The objects of all namespaces together are limited. One namespace uses at most half of this limit, and the last
///   quarter is divided equally among at least three namespaces. An object that does not grow remains kept, even if
///   other namespaces have used all memory since then.
/// - The cost of a change does not depend on the number of objects.
#[derive(Debug)]
pub struct Bounded<K, V> {
    limits: NamespaceLimits,
    total: KeptLimit,
    /// The number of bytes that all objects use.
    all: Arc<AtomicUsize>,
    entries: BTreeMap<K, Kept<V>>,
    namespaces: Swept<String, Weak<Used>>,
    /// The key digests of omitted objects, grouped by namespace.
    omitted: BTreeMap<String, BTreeSet<u64>>,
    digest: RandomState,
}

/// An object, which counts towards the limits of its namespace until it is dropped.
#[derive(Debug)]
pub struct Kept<V> {
    value: V,
    part: Part,
}

/// The kept objects of one namespace.
#[derive(Debug, Default)]
struct Used {
    objects: AtomicUsize,
    bytes: AtomicUsize,
    /// The number of bytes that the objects of all namespaces use.
    all: Arc<AtomicUsize>,
}

impl Used {
    /// The number of bytes that the objects use.
    fn memory(&self) -> usize {
        let objects = self.objects.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        bytes.saturating_add(objects.saturating_mul(OBJECT_LEN))
    }
}

/// The number of objects and bytes that one object uses.
#[derive(Debug)]
struct Part {
    used: Arc<Used>,
    bytes: usize,
}

impl Part {
    fn new(used: Arc<Used>, bytes: usize) -> Self {
        used.objects.fetch_add(1, Ordering::Relaxed);
        used.bytes.fetch_add(bytes, Ordering::Relaxed);
        used.all.fetch_add(bytes + OBJECT_LEN, Ordering::Relaxed);
        Self { used, bytes }
    }

    /// The number of bytes that the object counts for all namespaces together.
    const fn memory(&self) -> usize {
        self.bytes + OBJECT_LEN
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.used.objects.fetch_sub(1, Ordering::Relaxed);
        self.used.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.used.all.fetch_sub(self.memory(), Ordering::Relaxed);
    }
}

impl<K: Ord + Hash, V> Bounded<K, V> {
    /// Creates an empty collection with these limits for each namespace, and this number of bytes for all namespaces.
    pub fn new(limits: NamespaceLimits, total: KeptLimit) -> Self {
        Self {
            limits,
            total,
            all: Arc::default(),
            entries: BTreeMap::new(),
            namespaces: Swept::default(),
            omitted: BTreeMap::new(),
            digest: RandomState::new(),
        }
    }

    /// The object with this key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|kept| &kept.value)
    }

    /// Returns all objects, sorted by key.
    pub fn entries(&self) -> &BTreeMap<K, Kept<V>> {
        &self.entries
    }

    /// Returns all objects, so that the caller can remove some of them.
    pub fn entries_mut(&mut self) -> &mut BTreeMap<K, Kept<V>> {
        &mut self.entries
    }

    /// Whether this object was omitted. If the namespace has more than 1,000 such objects, each missing object
    /// counts as one of them, until the last object of the namespace is removed. If the namespace has no object, and
    /// there is no memory for one, each missing object counts as omitted.
    pub fn has_omitted(&self, namespace: &str, key: &K) -> bool {
        let used = self.namespaces.get(namespace);
        if used.is_none_or(|used| used.strong_count() == 0) {
            // No keys are known without an object.
            let before = (0, self.all.load(Ordering::Relaxed));
            return self.total.room(before, self.namespaces.len()) < OBJECT_LEN;
        }
        let omitted = self.omitted.get(namespace);
        omitted.is_some_and(|omitted| {
            omitted.len() > MAX_OMITTED || omitted.contains(&self.digest.hash_one(key))
        })
    }

    /// Replaces an object in this namespace, with this size in bytes. If the objects of the namespace or of all
    /// namespaces would then be too large, stores `instead`.
    ///
    /// Returns the objects that are not kept, so that the caller can drop large objects after it releases a lock.
    pub fn put(
        &mut self,
        namespace: &str,
        key: K,
        (value, bytes): (V, usize),
        instead: impl FnOnce() -> V,
    ) -> Vec<V> {
        let used = self.used(namespace);
        let former = self.entries.get(&key);
        let former = former.map_or(0, |kept| kept.part.memory());
        // The previous object no longer counts.
        let mut dropped: Vec<V> = self.remove(namespace, &key).into_iter().collect();
        let before = (used.memory(), self.all.load(Ordering::Relaxed));
        let room = self.total.room(before, self.namespaces.len()).max(former);
        let has_place = used.objects.load(Ordering::Relaxed) < self.limits.objects;
        let Some(room) = room.checked_sub(OBJECT_LEN).filter(|_| has_place) else {
            let omitted = self.omitted.entry(namespace.to_owned()).or_default();
            if omitted.len() <= MAX_OMITTED {
                omitted.insert(self.digest.hash_one(&key));
            }
            dropped.push(value);
            return dropped;
        };
        let own = used.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        let (value, bytes) = if own <= self.limits.bytes && bytes <= room {
            (value, bytes)
        } else {
            dropped.push(value);
            (instead(), 0)
        };
        let part = Part::new(used, bytes);
        self.entries.insert(key, Kept { value, part });
        dropped
    }

    /// Removes the object with this key from this namespace, and returns it.
    pub fn remove(&mut self, namespace: &str, key: &K) -> Option<V> {
        if let Some(omitted) = self.omitted.get_mut(namespace)
            && omitted.len() <= MAX_OMITTED
        {
            omitted.remove(&self.digest.hash_one(key));
            if omitted.is_empty() {
                self.omitted.remove(namespace);
            }
        }
        let Kept { value, part } = self.entries.remove(key)?;
        drop(part);
        let used = self.namespaces.get(namespace);
        if used.is_none_or(|used| used.strong_count() == 0) {
            // Drop the omitted keys now, because the namespace might never have an object again.
            self.omitted.remove(namespace);
        }
        Some(value)
    }

    fn used(&mut self, namespace: &str) -> Arc<Used> {
        if let Some(known) = self.namespaces.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        self.omitted.remove(namespace);
        let used = Arc::new(Used {
            all: self.all.clone(),
            ..Used::default()
        });
        let is_dead = |_: &String, known: &mut Weak<Used>| known.strong_count() == 0;
        let dead = self
            .namespaces
            .insert(namespace.to_owned(), Arc::downgrade(&used), is_dead);
        drop(dead);
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: NamespaceLimits = NamespaceLimits {
        objects: 3,
        bytes: 10,
    };

    const TOTAL: KeptLimit = KeptLimit::new(1 << 20);

    /// Adds an object of this size. Returns the part of the object that is kept.
    fn put(all: &mut Bounded<String, usize>, key: &str, bytes: usize) -> Option<usize> {
        let (namespace, _) = key.split_once('/').unwrap();
        all.put(namespace, key.to_owned(), (bytes, bytes), || 0);
        all.get(&key.to_owned()).copied()
    }

    #[test]
    fn objects_beyond_the_number_of_their_namespace_are_omitted() {
        let mut all = Bounded::new(LIMITS, TOTAL);
        for key in ["a/1", "a/2", "a/3"] {
            assert_eq!(put(&mut all, key, 1), Some(1));
        }
        assert_eq!(put(&mut all, "a/4", 1), None);

        assert!(all.has_omitted("a", &"a/4".to_owned()));
        assert!(!all.has_omitted("b", &"a/4".to_owned()));
        assert_eq!(put(&mut all, "b/1", 1), Some(1));
        // A kept object can change its size.
        assert_eq!(put(&mut all, "a/3", 2), Some(2));
        all.remove("a", &"a/1".to_owned());
        assert_eq!(put(&mut all, "a/4", 1), Some(1));
        assert!(!all.has_omitted("a", &"a/4".to_owned()));
    }

    #[test]
    fn an_object_that_is_only_missing_is_not_reported_as_omitted() {
        let mut all = Bounded::new(LIMITS, TOTAL);
        let key = |number: usize| format!("a/{number:04}");
        for number in 0..5 {
            put(&mut all, &key(number), 1);
        }
        assert!(all.has_omitted("a", &key(4)) && !all.has_omitted("a", &key(5)));

        all.remove("a", &key(3));

        assert!(!all.has_omitted("a", &key(3)), "deleted");
        assert!(all.has_omitted("a", &key(4)));
        for number in 5..5 + MAX_OMITTED {
            put(&mut all, &key(number), 1);
        }
        assert!(all.has_omitted("a", &key(9999)), "too many are omitted");
        for number in 0..3 {
            all.remove("a", &key(number));
        }
        assert!(!all.has_omitted("a", &key(9999)), "no object is kept");
        assert!(all.omitted.is_empty(), "no key is kept");
    }

    #[test]
    fn objects_beyond_the_size_of_their_namespace_are_replaced() {
        let mut all = Bounded::new(LIMITS, TOTAL);
        assert_eq!(put(&mut all, "a/1", 8), Some(8));

        assert_eq!(put(&mut all, "a/2", 3), Some(0));

        assert_eq!(put(&mut all, "b/1", 10), Some(10));
        assert_eq!(put(&mut all, "b/1", 11), Some(0));
        // If an object changes, its previous size no longer counts.
        assert_eq!(put(&mut all, "a/1", 7), Some(7));
        assert_eq!(put(&mut all, "a/2", 3), Some(3));
        all.entries_mut().retain(|key, _| key == "a/2");
        assert_eq!(put(&mut all, "a/1", 7), Some(7));
        assert_eq!(put(&mut all, "b/1", 10), Some(10));
    }

    #[test]
    fn namespaces_without_objects_are_forgotten() {
        let mut all = Bounded::new(LIMITS, TOTAL);
        for number in 0..1000 {
            let key = format!("{number}/1");
            put(&mut all, &key, 1);
            let namespace = number.to_string();
            all.remove(&namespace, &key);
        }

        assert!(all.namespaces.len() < 10, "{}", all.namespaces.len());
    }

    #[test]
    fn objects_of_one_namespace_leave_memory_to_all_others() {
        const SIZE: usize = 1000 - OBJECT_LEN;
        let limits = NamespaceLimits {
            objects: 100,
            bytes: usize::MAX,
        };
        let mut all = Bounded::new(limits, KeptLimit::new(48_000));
        let mut fill = |namespace: &str| {
            let keys = (0..100).map(|number| format!("{namespace}/{number}"));
            let kept = keys.filter(|key| put(&mut all, key, SIZE) == Some(SIZE));
            kept.count()
        };

        let kept = ["a", "b", "c", "d"].map(&mut fill);

        assert_eq!(kept, [24, 12, 4, 3]);
        all.entries_mut().clear();
        assert_eq!(all.all.load(Ordering::Relaxed), 0);
        assert_eq!(put(&mut all, "b/0", SIZE), Some(SIZE));
    }

    #[test]
    fn a_changed_object_is_kept_after_others_used_all_memory() {
        let limits = NamespaceLimits {
            objects: 100,
            bytes: usize::MAX,
        };
        let mut all = Bounded::new(limits, KeptLimit::new(48 * OBJECT_LEN));
        let mut fill = |namespace: &str, count: usize| {
            let keys = (0..count).map(|number| format!("{namespace}/{number}"));
            keys.filter(|key| put(&mut all, key, OBJECT_LEN).is_some())
                .count()
        };
        // The victim uses more than an equal part of the last quarter.
        assert_eq!(fill("victim", 3), 3);
        let others = ["a", "b", "c", "d"].map(|namespace| fill(namespace, 100));
        assert!(others.iter().sum::<usize>() > 17, "{others:?}");

        let victim: Vec<Option<usize>> = (0..3)
            .map(|number| put(&mut all, &format!("victim/{number}"), OBJECT_LEN))
            .collect();

        assert_eq!(victim, [Some(OBJECT_LEN); 3]);
        assert_eq!(
            put(&mut all, "victim/0", 2 * OBJECT_LEN),
            Some(0),
            "it grew"
        );
    }

    #[test]
    fn all_objects_of_a_namespace_can_be_omitted() {
        let mut all = Bounded::new(LIMITS, KeptLimit::new(4 * OBJECT_LEN));
        let keys = ["a/1", "a/2", "b/1", "b/2", "c/1"].map(str::to_owned);
        for key in &keys {
            put(&mut all, key, 0);
        }
        let is_kept = keys.each_ref().map(|key| all.get(key).is_some());
        assert_eq!(is_kept, [true, true, true, false, false]);
        assert_eq!(put(&mut all, "c/2", 0), None);

        for key in ["c/1", "c/2"] {
            assert!(all.has_omitted("c", &key.to_owned()), "{key}");
        }
        all.remove("a", &keys[0]);
        all.remove("a", &keys[1]);
        assert!(!all.has_omitted("c", &"c/3".to_owned()), "there is memory");
    }

    #[test]
    fn an_object_that_exceeds_the_memory_of_all_is_replaced() {
        let limits = NamespaceLimits {
            objects: 100,
            bytes: usize::MAX,
        };
        let mut all = Bounded::new(limits, KeptLimit::new(8 * OBJECT_LEN));

        assert_eq!(put(&mut all, "a/1", 3 * OBJECT_LEN), Some(3 * OBJECT_LEN));
        assert_eq!(put(&mut all, "a/2", 1), None, "half is used");
        all.remove("a", &"a/1".to_owned());

        assert_eq!(put(&mut all, "a/1", 4 * OBJECT_LEN), Some(0));
        assert_eq!(put(&mut all, "a/2", OBJECT_LEN), Some(OBJECT_LEN));
    }
}
