//! Limits of the memory that clusters share, so that one cluster cannot take it all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The memory of all clusters together, beyond their own shares, for data of their API servers.
const COMMON: usize = 96 * 1024 * 1024;

static PROCESS: Pool = Pool::new(COMMON);

/// The same for their `ConfigMaps`.
const COMMON_LISTS: usize = 128 * 1024 * 1024;

static LISTS: Pool = Pool::new(COMMON_LISTS);

/// The memory that is reserved for the `ConfigMaps` of a cluster: some ten thousand hosts.
const OWN_LISTS: usize = 2 * 1024 * 1024;

/// The unit of counting, so that not every byte changes a counter.
const STEP: usize = 16 * 1024;

/// The bytes that are left.
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

/// The memory that one cluster may take: its own share, and what is left of the process'.
///
/// # Guarantees
///
/// Other clusters never take its own share.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    own: Arc<Pool>,
    common: &'static Pool,
}

impl Share {
    /// A share with so many bytes of its own.
    pub(crate) fn new(own: usize) -> Self {
        Self {
            own: Arc::new(Pool::new(own)),
            common: &PROCESS,
        }
    }

    /// A share for the `ConfigMaps` of a cluster.
    pub(crate) fn of_lists() -> Self {
        Self {
            common: &LISTS,
            ..Self::new(OWN_LISTS)
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

/// Bytes that are taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    share: Share,
    own: usize,
    common: usize,
}

impl Holding {
    /// Grows or shrinks to at least so many bytes. Returns whether there were enough; if not, nothing changes.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let Some(wanted) = bytes.checked_next_multiple_of(STEP) else {
            return false;
        };
        let held = self.own + self.common;
        if let Some(more) = wanted.checked_sub(held) {
            let own = self.share.own.take_some(more);
            let common = self.share.common.take_some(more - own);
            if own + common < more {
                self.share.own.give_back(own);
                self.share.common.give_back(common);
                return false;
            }
            self.own += own;
            self.common += common;
        } else {
            let less = held - wanted;
            let common = less.min(self.common);
            self.common -= common;
            self.share.common.give_back(common);
            self.own -= less - common;
            self.share.own.give_back(less - common);
        }
        true
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.share.own.give_back(self.own);
        self.share.common.give_back(self.common);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Share {
        /// A share of nobody but its holder.
        pub(crate) fn alone(own: usize) -> Self {
            Self {
                common: Box::leak(Box::new(Pool::new(0))),
                ..Self::new(own)
            }
        }
    }

    fn shares(own: usize, common: usize) -> [Share; 2] {
        let common: &'static Pool = Box::leak(Box::new(Pool::new(common * STEP)));
        [(); 2].map(|()| Share {
            common,
            ..Share::new(own * STEP)
        })
    }

    #[test]
    fn one_that_takes_everything_leaves_the_other_its_own_share() {
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
    fn what_is_dropped_or_shrinks_is_there_again() {
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
}
