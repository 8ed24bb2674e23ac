use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The time between two rounds.
const PERIOD: Duration = Duration::from_millis(200);

/// A controller that runs in the test. It repeats its rounds on a separate thread until it is stopped or dropped.
pub(super) struct Rounds<T> {
    /// Dropping this sender stops the controller.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<T>>,
    /// Held during a round.
    turn: Arc<Mutex<()>>,
}

impl<T: Send + 'static> Rounds<T> {
    pub(super) fn start(mut state: T, round: fn(&mut T)) -> Self {
        let (end, ended) = mpsc::channel();
        let turn = Arc::default();
        let turns = Arc::clone(&turn);
        let thread = thread::spawn(move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let _turn = lock(&turns);
                round(&mut state);
            }
            state
        });
        Self {
            end: Some(end),
            thread: Some(thread),
            turn,
        }
    }
}

fn lock(turn: &Mutex<()>) -> MutexGuard<'_, ()> {
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Rounds<T> {
    /// Waits for the end of the current round. Until the result is dropped, no other round starts.
    pub(super) fn pause(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    /// Stops the controller, and waits for the end of the current round. The first call returns the controller's
    /// state.
    ///
    /// # Panics
    ///
    /// Panics if a round panicked.
    pub(super) fn end(&mut self) -> Option<T> {
        self.end = None;
        match self.thread.take()?.join() {
            Ok(state) => Some(state),
            // The panic message was already written to standard error.
            Err(_) if thread::panicking() => None,
            Err(_) => panic!("a controller of the test panicked"),
        }
    }
}

impl<T> Drop for Rounds<T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T> fmt::Debug for Rounds<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Rounds").finish_non_exhaustive()
    }
}
