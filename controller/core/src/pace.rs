//! Pauses in the loops over all objects of a cluster. A tenant chooses the number of its objects, and a loop without
//! pauses would delay all other tasks of its thread.

use std::future::poll_fn;
use std::task::Poll;

/// The number of objects between two pauses.
pub const PAGE: usize = 256;

/// Lets the other tasks of this thread run, like `tokio::task::yield_now`, but with any runtime.
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

/// The pauses of one loop.
#[derive(Debug, Default)]
pub struct Pace {
    since_pause: usize,
}

impl Pace {
    /// Counts an object. Before every [`PAGE`]th object, the other tasks of this thread run.
    pub async fn step(&mut self) {
        self.since_pause += 1;
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
}
