//! A table of objects by name, with an index by their values. The cost of a lookup does not grow with the number of
//! objects.
//!
//! kube's `reflector::Store` is not used, for three reasons. It finds an object only by name or by a scan of all
//! objects, so a request would cost more in a cluster with more Machines. It replaces each kind separately, so an
//! answer would not be a consistent snapshot. And it drops an object that can no longer be decoded, although its last
//! known state must stay.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use crate::shared::visited;

/// An object with index values.
pub(crate) trait Indexed {
    /// The index values of the object with this name, in addition to the name.
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = impl Hash>;
}

/// Objects by name and by index values.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Boxed, because a node of the map has space for 11 objects, and holds only six if objects arrive in order.
    objects: BTreeMap<Arc<str>, Box<T>>,
    /// The digest of each value, with the object's name. A digest takes only 8 bytes, and is enough because callers
    /// compare the values.
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
    /// The object with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.objects.get(name).map(AsRef::as_ref)
    }

    /// The object with this name, and the table's copy of the name.
    pub(crate) fn get_with_name(&self, name: &str) -> Option<(&str, &T)> {
        let (name, object) = self.objects.get_key_value(name)?;
        Some((name, object))
    }

    /// The objects after this name, sorted by name. Without a name, all objects.
    pub(crate) fn after(&self, name: Option<&str>) -> impl Iterator<Item = (&str, &T)> {
        let begin = name.map_or(Unbounded, Excluded);
        let next = self.objects.range::<str, _>((begin, Unbounded));
        visited(next).map(|(name, object)| (&**name, &**object))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Inserts an object, and returns the previous object with this name.
    pub(crate) fn put(&mut self, name: &str, object: T) -> Option<Box<T>> {
        // The previous object can have values that the new one does not have.
        let before = self.remove(name);
        let name: Arc<str> = name.into();
        for value in object.values(&name) {
            let digest = self.digest.hash_one(value);
            self.values.insert((digest, name.clone()));
        }
        self.objects.insert(name, Box::new(object));
        before
    }

    /// Removes the object with this name, and returns it.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Box<T>> {
        let (name, object) = self.objects.remove_entry(name)?;
        for value in object.values(&name) {
            let digest = self.digest.hash_one(value);
            self.values.remove(&(digest, name.clone()));
        }
        Some(object)
    }

    /// All objects with this value, by name. The result can include others.
    pub(crate) fn with(&self, value: impl Hash) -> impl Iterator<Item = (&str, &T)> {
        let digest = self.digest.hash_one(value);
        // The empty name sorts first.
        let found = self.values.range((digest, Arc::from(""))..);
        let found = found.take_while(move |(one, _)| *one == digest);
        visited(found).filter_map(|(_, name)| Some((&**name, self.get(name)?)))
    }
}
