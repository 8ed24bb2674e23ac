//! Pauses in loops over all objects of a cluster. A tenant chooses the number of its objects, so a loop without pauses
//! could delay all other tasks on the thread.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Bound::{Excluded, Unbounded};
use std::task::Poll;

use crate::unshared::Unshared;

/// The number of objects between two pauses.
pub const PAGE: usize = 256;

/// Yields to the other tasks on this thread. Unlike `tokio::task::yield_now`, this function works with any runtime.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Removes the entries that `keeps` rejects, one page at a time. `map` selects the map in the state.
pub async fn retain<S, K: Ord + Clone, V>(
    state: &Unshared<S>,
    map: impl Fn(&mut S) -> &mut BTreeMap<K, V>,
    keeps: impl Fn(&K) -> bool,
) {
    let mut last: Option<K> = None;
    loop {
        // The lock is not held during a pause.
        let page: Vec<K> = {
            let mut state = state.lock();
            let map = map(&mut state);
            let after = last.as_ref().map_or(Unbounded, Excluded);
            let page = map.range::<K, _>((after, Unbounded)).take(PAGE);
            let page: Vec<K> = page.map(|(key, _)| key.clone()).collect();
            for key in page.iter().filter(|key| !keeps(key)) {
                map.remove(key);
            }
            page
        };
        if page.len() < PAGE {
            return;
        }
        last = page.into_iter().next_back();
        yield_now().await;
    }
}

/// The number of objects for which `holds` is true.
pub async fn count<T>(all: &[T], holds: impl Fn(&T) -> bool) -> usize {
    let (mut found, mut pace) = (0, Pace::default());
    for object in all {
        found += usize::from(holds(object));
        pace.step().await;
    }
    found
}

/// The pauses of one loop.
#[derive(Debug, Default)]
pub struct Pace {
    since_pause: usize,
}

impl Pace {
    /// Counts an object. After every [`PAGE`] objects, yields to the other tasks on this thread.
    pub async fn step(&mut self) {
        self.steps(1).await;
    }

    /// Counts the objects of a page.
    pub async fn steps(&mut self, count: usize) {
        self.since_pause += count;
        if self.since_pause >= PAGE {
            self.since_pause = 0;
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pauses;

    #[test]
    fn a_loop_over_many_objects_pauses_after_each_page() {
        let steps = |count: usize| async move {
            let mut pace = Pace::default();
            for _ in 0..count {
                pace.step().await;
            }
        };

        for (count, expected) in [(0, 0), (PAGE - 1, 0), (PAGE, 1), (50_000, 50_000 / PAGE)] {
            assert_eq!(pauses(steps(count)).1, expected, "{count}");
        }
    }

    #[test]
    fn many_objects_are_counted_with_a_pause_after_each_page() {
        let all: Vec<usize> = (0..=10 * PAGE).collect();

        let (even, pauses) = pauses(count(&all, |number| number % 2 == 0));

        assert_eq!((even, pauses), (5 * PAGE + 1, 10));
    }

    #[test]
    fn rejected_entries_of_a_large_map_are_removed_in_pages() {
        for count in [0, 1, PAGE - 1, PAGE, PAGE + 1, 10 * PAGE + 1] {
            let map: BTreeMap<usize, usize> = (0..count).map(|key| (key, key)).collect();
            let state = Unshared::new(map);

            let removed = retain(&state, |map| map, |key| key % 3 == 0);

            assert_eq!(pauses(removed).1, count / PAGE, "{count}");
            let kept: Vec<_> = state.lock().keys().copied().collect();
            let expected: Vec<_> = (0..count).filter(|key| key % 3 == 0).collect();
            assert_eq!(kept, expected);
        }
    }
}
