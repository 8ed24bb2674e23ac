//! The limit on one CA's concurrent calls to the token.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turns of one CA. If a call exceeds its deadline, its thread continues to wait, and keeps the turn until the
/// token responds. Clones share the turns.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    permits: Arc<Semaphore>,
    count: usize,
    /// The number of turns that abandoned calls keep.
    abandoned: Arc<AtomicUsize>,
}

/// Abandoned calls keep all turns of the CA, because the token has not responded to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Busy;

/// Whether the caller or the token finished first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Abandoned,
    Answered,
}

/// A turn, for the thread that waits for the token.
#[derive(Debug)]
pub(crate) struct Turn {
    state: Arc<Mutex<State>>,
    abandoned: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

/// The other half of a turn, which its caller keeps.
#[derive(Debug)]
pub(crate) struct Caller {
    state: Arc<Mutex<State>>,
    abandoned: Arc<AtomicUsize>,
}

impl Turns {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(count)),
            count,
            abandoned: Arc::default(),
        }
    }

    /// Waits for a turn. If abandoned calls keep all turns, returns an error immediately, because waiting would only
    /// occupy one of the controller's turns until the deadline.
    pub(crate) async fn take(&self) -> Result<(Turn, Caller), Busy> {
        if self.abandoned.load(Ordering::Acquire) >= self.count {
            return Err(Busy);
        }
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| Busy)?;
        let state = Arc::new(Mutex::new(State::Waiting));
        let turn = Turn {
            state: state.clone(),
            abandoned: self.abandoned.clone(),
            _permit: permit,
        };
        let caller = Caller {
            state,
            abandoned: self.abandoned.clone(),
        };
        Ok((turn, caller))
    }

    /// Waits until a turn is free.
    #[cfg(test)]
    pub(crate) async fn one_is_free(&self) {
        drop(self.permits.acquire().await.unwrap());
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if *state == State::Waiting {
            *state = State::Abandoned;
            self.abandoned.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if *state == State::Abandoned {
            self.abandoned.fetch_sub(1, Ordering::AcqRel);
        }
        *state = State::Answered;
    }
}
