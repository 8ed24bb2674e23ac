//! Sources of time series. A source's series are removed when the source is dropped.

use std::sync::{Arc, Weak};

use crate::shared::{Lock, Shared, Swept, page};

/// The sources that are still in use, in the order of their creation.
#[derive(Debug)]
pub(super) struct Live<T>(Shared<Numbered<T>>);

#[derive(Debug)]
struct Numbered<T> {
    all: Swept<u64, Weak<T>>,
    last: u64,
}

impl<T> Default for Live<T> {
    fn default() -> Self {
        let numbered = Numbered {
            all: Swept::default(),
            last: 0,
        };
        Self(Shared::new(Lock::ClusterMetrics, numbered))
    }
}

impl<T> Live<T> {
    pub(super) fn add(&self, one: T) -> Arc<T> {
        let one = Arc::new(one);
        let known = Arc::downgrade(&one);
        self.0.write(|Numbered { all, last }| {
            *last += 1;
            all.insert(*last, known, |_, known| known.strong_count() == 0);
        });
        one
    }

    pub(super) fn all(&self) -> Vec<Arc<T>> {
        let (mut all, mut last) = (Vec::new(), None);
        loop {
            let next = self.0.read(|numbered| {
                let next = page(numbered.all.entries(), last.as_ref());
                let live = next.map(|(number, known)| {
                    all.extend(known.upgrade());
                    *number
                });
                live.last()
            });
            if next.is_none() {
                return all;
            }
            last = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::PAGE;
    use crate::shared::testing::most_visited;

    #[test]
    fn metrics_of_many_clusters_are_added_and_listed_in_small_steps() {
        let live = Live::default();
        let kept: Vec<Arc<usize>> = (0..3 * PAGE).map(|number| live.add(number)).collect();
        let listed = || assert_eq!(live.all().len(), kept.len());

        assert_eq!(most_visited(listed)[&Lock::ClusterMetrics], PAGE);

        let added = most_visited(|| drop(live.add(0)));
        assert!(added[&Lock::ClusterMetrics] < 10, "{added:?}");
    }
}
