//! A table of objects by name, with an index of their values. The cost of a lookup does not grow with the number of
//! objects.
//!
//! kube's `reflector::Store` is not used, for three reasons. It finds an object only by name or with a scan, so the
//! cost of a request would grow with the number of Machines. It replaces each kind separately, so an answer would not
//! be a consistent snapshot. It also drops an object that can no longer be decoded, although the last known state must
//! be kept.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use crate::shared::visited;

/// An object that has index values.
pub(crate) trait Indexed {
    /// The index values of the object with this name, in addition to the name.
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = impl Hash>;
}

/// Objects by name and by index values.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// The objects are boxed, because a map node has space for 11 objects, but contains only six objects if they arrive
    /// in order.
    objects: BTreeMap<Arc<str>, Box<T>>,
    /// The digest of each value, with the object's name. A digest of 8 bytes is sufficient, because callers compare the
    /// values themselves.
    values: BTreeSet<(u64, Arc<str>)>,
    digest: RandomState,
    /// The number of values that were added to or removed from the index.
    #[cfg(test)]
    pub(crate) indexed: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            values: BTreeSet::new(),
            digest: RandomState::new(),
            #[cfg(test)]
            indexed: 0,
        }
    }
}

impl<T: Indexed> Table<T> {
    /// The object with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.objects.get(name).map(AsRef::as_ref)
    }

    /// The object with this name, and the table's copy of the name.
    pub(crate) fn get_with_name(&self, name: &str) -> Option<(&str, &T)> {
        let (name, object) = self.objects.get_key_value(name)?;
        Some((name, object))
    }

    /// The objects after this name, sorted by name. If no name is given, all objects.
    pub(crate) fn after(&self, name: Option<&str>) -> impl Iterator<Item = (&str, &T)> {
        let begin = name.map_or(Unbounded, Excluded);
        let next = self.objects.range::<str, _>((begin, Unbounded));
        visited(next).map(|(name, object)| (&**name, &**object))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Inserts an object, and returns the previous object with this name.
    ///
    /// Only changed values are written to the index, because a pool has thousands of values, and a change affects only
    /// a few of them.
    pub(crate) fn put(&mut self, name: &str, object: T) -> Option<Box<T>> {
        let known = self.objects.get_key_value(name);
        let before = known.map(|(_, before)| self.digests(name, before));
        let before = before.unwrap_or_default();
        let name = known.map_or_else(|| Arc::from(name), |(name, _)| name.clone());
        let after = self.digests(&name, &object);
        self.unindex(&name, without(&before, &after));
        for digest in without(&after, &before) {
            #[cfg(test)]
            {
                self.indexed += 1;
            }
            self.values.insert((digest, name.clone()));
        }
        self.objects.insert(name, Box::new(object))
    }

    /// Removes the object with this name, and returns it.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Box<T>> {
        let (name, object) = self.objects.remove_entry(name)?;
        let digests = self.digests(&name, &object);
        self.unindex(&name, digests.into_iter());
        Some(object)
    }

    fn unindex(&mut self, name: &Arc<str>, digests: impl Iterator<Item = u64>) {
        for digest in digests {
            #[cfg(test)]
            {
                self.indexed += 1;
            }
            self.values.remove(&(digest, name.clone()));
        }
    }

    /// The sorted digests of an object's values, without duplicates.
    fn digests(&self, name: &str, object: &T) -> Vec<u64> {
        let values = object.values(name);
        let mut digests: Vec<u64> = values.map(|value| self.digest.hash_one(value)).collect();
        digests.sort_unstable();
        digests.dedup();
        digests
    }

    /// All objects with this value, sorted by name. The result can contain other objects.
    pub(crate) fn with(&self, value: impl Hash) -> impl Iterator<Item = (&str, &T)> {
        let digest = self.digest.hash_one(value);
        // The empty string sorts first.
        let found = self.values.range((digest, Arc::from(""))..);
        let found = found.take_while(move |(one, _)| *one == digest);
        visited(found).filter_map(|(_, name)| Some((&**name, self.get(name)?)))
    }
}

/// The digests of `all` that are not in `others`. Both are sorted.
fn without(all: &[u64], others: &[u64]) -> impl Iterator<Item = u64> {
    let mut others = others.iter().peekable();
    all.iter().copied().filter(move |digest| {
        while others.next_if(|other| *other < digest).is_some() {}
        others.peek() != Some(&digest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Words(&'static [&'static str]);

    impl Indexed for Words {
        fn values<'a>(&'a self, _name: &'a str) -> impl Iterator<Item = impl Hash> {
            self.0.iter()
        }
    }

    fn with(table: &Table<Words>, value: &'static str) -> Vec<String> {
        let found = table.with(value).map(|(name, _)| name.to_owned());
        found.collect()
    }

    #[test]
    fn only_changed_values_are_written_to_the_index() {
        let mut table = Table::default();
        for (words, written) in [
            (&["a", "b", "c", "b"][..], 3),
            (&["c", "b", "a"], 0),
            (&["a", "d"], 3),
            (&[], 2),
            (&["a"], 1),
        ] {
            table.indexed = 0;
            table.put("one", Words(words));
            assert_eq!(table.indexed, written, "{words:?}");
            for value in ["a", "b", "c", "d"] {
                assert_eq!(!with(&table, value).is_empty(), words.contains(&value));
            }
        }
        table.put("two", Words(&["a"]));
        assert_eq!(with(&table, "a"), ["one", "two"]);

        table.remove("one");

        assert_eq!(with(&table, "a"), ["two"]);
        table.remove("two");
        assert!(table.is_empty() && table.values.is_empty());
    }
}
