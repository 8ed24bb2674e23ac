//! Ends the process when a thread panics: prints the stored credential if it is still valid, and exits in an orderly
//! way.
//!
//! Released programs abort after a panic, so the code that started the thread cannot handle the panic. The panic hook
//! handles it, on the thread that panics, and does not return.

use std::io::{self, Write as _};
use std::mem;
use std::panic::{self, PanicHookInfo};
use std::process::exit;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::SystemTime;

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use zeroize::Zeroizing;

use crate::credential::{Credential, ExecResult};
use crate::exec::{ApiVersion, exec_credential};
use crate::failure::{Code, Failure};
use crate::log::Log;

/// A credential to print if a thread panics.
#[derive(derive_more::Debug, Clone)]
pub(crate) struct Rescue {
    #[debug("State(..)")]
    state: Arc<Mutex<State>>,
    version: ApiVersion,
}

enum State {
    /// No valid credential is available.
    Nothing,
    /// The answer to print after a panic.
    Ready(Zeroizing<Vec<u8>>),
    /// This thread is terminating the process.
    Ending(ThreadMark),
}

/// A value that distinguishes threads that run at the same time.
///
/// `thread::current` would also work, but it creates an object with a destructor, which would add six system calls to
/// each run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ThreadMark(usize);

impl ThreadMark {
    fn current() -> Self {
        thread_local! {
            static MARK: u8 = const { 0 };
        }
        Self(MARK.with(|mark| ptr::from_ref(mark).addr()))
    }
}

impl Rescue {
    /// Installs the handler for every later panic of the process.
    pub(crate) fn install(log: Log) -> Self {
        let rescue = Self {
            state: Arc::new(Mutex::new(State::Nothing)),
            version: ApiVersion::V1,
        };
        let of_hook = rescue.clone();
        panic::set_hook(Box::new(move |panicked| of_hook.end(log, panicked)));
        rescue
    }

    /// A value for processes that do not handle panics.
    #[cfg(test)]
    pub(crate) fn idle() -> Self {
        Self {
            state: Arc::new(Mutex::new(State::Nothing)),
            version: ApiVersion::V1,
        }
    }

    /// Uses this API version for answers.
    #[must_use]
    pub(crate) fn speaking(&self, version: ApiVersion) -> Self {
        Self {
            version,
            ..self.clone()
        }
    }

    /// Makes a panic print `credential`, which is valid. client-go runs the plugin again at
    /// `expiration`.
    pub(crate) fn prepare(&self, credential: &Credential, expiration: SystemTime) {
        if let Ok(json) = self.answer(credential, expiration) {
            self.change(State::Ready(json));
        }
    }

    /// Prints `answer` on standard output. After this call, a panic in another thread does not print another answer.
    pub(crate) fn print(&self, answer: &ExecResult) -> io::Result<()> {
        self.change(State::Ending(ThreadMark::current()));
        let json = self.answer(&answer.credential, answer.expiration)?;
        let mut out = io::stdout().lock();
        out.write_all(&json)?;
        out.flush()
    }

    fn answer(
        &self,
        credential: &Credential,
        expiration: SystemTime,
    ) -> io::Result<Zeroizing<Vec<u8>>> {
        let (certificate, key) = (credential.certificate_pem(), credential.key_pem());
        exec_credential(self.version, expiration, certificate, key)
    }

    fn change(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "after a panic no caller is left to return an ExitCode to"
    )]
    fn end(&self, log: Log, panicked: &PanicHookInfo<'_>) {
        let this = ThreadMark::current();
        let before = match self.state.try_lock() {
            Ok(mut state) => mem::replace(&mut *state, State::Ending(this)),
            Err(TryLockError::Poisoned(state)) => {
                mem::replace(&mut *state.into_inner(), State::Ending(this))
            }
            // If the panicking thread itself holds the lock, the lock is never released.
            Err(TryLockError::WouldBlock) => State::Nothing,
        };
        // The panic message can contain any text, even a secret. The location is sufficient.
        let place = panicked.location().map(ToString::to_string);
        let what = format!(
            "internal error: the plugin panicked at {}",
            place.unwrap_or_default()
        );
        let failure = Failure::new(Code::Internal, what, "report this as a bug");
        match before {
            // The other thread prints its answer and exits. If this thread exited first, the answer could be truncated.
            State::Ending(other) if other != this => loop {
                thread::park();
            },
            State::Ready(json) => {
                let mut out = io::stdout().lock();
                if out.write_all(&json).and_then(|()| out.flush()).is_ok() {
                    log.warn_of(
                        "using the stored credential, which is still valid",
                        &failure,
                    );
                    exit(0);
                }
            }
            State::Ending(_) | State::Nothing => {}
        }
        log.fail(&failure);
        exit(Code::Internal.number().into());
    }
}

/// Keeps the keys in this process's memory out of core files, and protects them from other processes of the same user.
/// Programs that this process starts do not write core files either.
pub(crate) fn keep_memory() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Ignore errors, which must not prevent the node from getting its credential.
    let _ = rustix::process::setrlimit(Resource::Core, none);
    // If core dumps are piped to a program, the limit has no effect (core(5)).
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
