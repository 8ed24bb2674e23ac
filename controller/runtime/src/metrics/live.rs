//! Things whose series end with them.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The things that somebody still has, in the order in which they came.
#[derive(Debug)]
pub(super) struct Live<T>(Mutex<Vec<Weak<T>>>);

impl<T> Default for Live<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Live<T> {
    pub(super) fn add(&self, one: T) -> Arc<T> {
        let one = Arc::new(one);
        let mut all = self.0.lock();
        if all.len() == all.capacity() {
            // What is gone makes room before the list grows.
            all.retain(|known| known.strong_count() > 0);
        }
        all.push(Arc::downgrade(&one));
        one
    }

    pub(super) fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}
