//! Objects by name that are also found by values that they have, at a cost that does not grow with their number.
//!
//! kube's `reflector::Store` is not used for them. It finds an object by its name, or looks at all of them: a
//! request would cost more, the more Machines its cluster has. It replaces each kind by itself: an answer would be of
//! no one moment. And it forgets an object that cannot be read any more, where what was known of it must go on.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use crate::shared::visited;

/// An object that is also found by its values.
pub(crate) trait Indexed {
    /// The values by which the object of this name is found, beside its name.
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = impl Hash>;
}

/// Objects by name and by values.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Boxes: a node of the map has room for 11 objects, and holds six of those that come in order.
    objects: BTreeMap<Arc<str>, Box<T>>,
    /// The digest of each value, with the object. A digest is enough, and has 8 bytes: whoever looks a value up
    /// compares the values.
    values: BTreeSet<(u64, Arc<str>)>,
    digest: RandomState,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            values: BTreeSet::new(),
            digest: RandomState::new(),
        }
    }
}

impl<T: Indexed> Table<T> {
    /// The object of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.objects.get(name).map(AsRef::as_ref)
    }

    /// The object of this name, with its own copy of the name.
    pub(crate) fn get_with_name(&self, name: &str) -> Option<(&str, &T)> {
        let (name, object) = self.objects.get_key_value(name)?;
        Some((name, object))
    }

    /// The objects with names after this one, in order; all, if there is none.
    pub(crate) fn after(&self, name: Option<&str>) -> impl Iterator<Item = (&str, &T)> {
        let begin = name.map_or(Unbounded, Excluded);
        let next = self.objects.range::<str, _>((begin, Unbounded));
        visited(next).map(|(name, object)| (&**name, &**object))
    }

    /// The objects with their names, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        visited(self.objects.iter()).map(|(name, object)| (&**name, &**object))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Puts an object in the place of the one that was there under its name, and returns that.
    pub(crate) fn put(&mut self, name: &str, object: T) -> Option<Box<T>> {
        // The former object may have had values that this one does not have.
        let before = self.remove(name);
        let name: Arc<str> = name.into();
        for value in object.values(&name) {
            let digest = self.digest.hash_one(value);
            self.values.insert((digest, name.clone()));
        }
        self.objects.insert(name, Box::new(object));
        before
    }

    /// Removes the object of this name, and returns it.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Box<T>> {
        let (name, object) = self.objects.remove_entry(name)?;
        for value in object.values(&name) {
            let digest = self.digest.hash_one(value);
            self.values.remove(&(digest, name.clone()));
        }
        Some(object)
    }

    /// All objects that have this value, and perhaps others, by name.
    pub(crate) fn with(&self, value: impl Hash) -> impl Iterator<Item = (&str, &T)> {
        let digest = self.digest.hash_one(value);
        // The empty name is the first of all.
        let found = self.values.range((digest, Arc::from(""))..);
        let found = found.take_while(move |(one, _)| *one == digest);
        visited(found).filter_map(|(_, name)| Some((&**name, self.get(name)?)))
    }
}
