//! The lock of the store, for one writer at a time: the kubelet, kubeadm, kubectl and operators all run the plugin.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::ops::Deref;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fs2::FileExt as _;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::error::{failure, linked, unlockable, unreadable};
use super::{Store, check_owner};
use crate::clock::{self, Deadline};
use crate::failure::Failure;
use crate::file_size;

const LOCK_FILE: &str = "lock";

/// The interval of attempts to take the lock, because `flock` has no deadline. The cost of 20 waiting processes is
/// negligible.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// The maximum length of a holder's description, in bytes.
const MAX_HOLDER_LEN: u64 = 4096;

/// A store to which only this process writes while the value exists.
///
/// The kernel releases the lock when the process exits or is killed.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub(crate) struct StoreLock {
    store: Store,
    file: File,
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

impl Deref for StoreLock {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Releases the lock of the file. If the file were only closed, a program that another thread starts at this moment would
/// keep the lock, because the child process has all files until it executes the program.
fn unlock(file: &File) {
    // The kernel has no reason to refuse this, and releases the lock when all copies of the file are closed.
    drop(fs2::FileExt::unlock(file));
}

/// The description of the process that holds the lock, which that process wrote.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Holder {
    /// The process ID.
    pub(crate) pid: u32,
    /// The file name in the process's `argv[0]`.
    pub(crate) program: String,
    /// The time at which the process took the lock, in seconds since 1970.
    pub(crate) since: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("an unknown process");
        }
        let since = UNIX_EPOCH + Duration::from_secs(self.since.min(u64::from(u32::MAX)));
        write!(
            f,
            "process {} ({}) since {}",
            self.pid,
            self.program,
            humantime::format_rfc3339_seconds(since)
        )
    }
}

impl Store {
    /// Waits for the lock until `deadline`, and writes the new holder into the file.
    pub(crate) fn lock(
        &self,
        deadline: Deadline,
        program: &str,
        now: SystemTime,
    ) -> Result<StoreLock, Failure> {
        let path = self.dir.join(LOCK_FILE);
        let mut file = open(&path)?;
        let started = Instant::now();
        loop {
            match file.try_lock_exclusive() {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(unlockable(&path, error)),
            }
            if deadline.passed() {
                let (holder, waited) = (holder(&mut file), started.elapsed());
                let path = path.display();
                return Err(failure(
                    format!("the lock {path} was held for more than {waited:.1?} by {holder}"),
                    "wait for that process, or stop it; no data is lost",
                ));
            }
            thread::sleep(TRY_AGAIN.min(deadline.remaining()));
        }
        // Ignore errors: the holder is only information for waiting processes and operators, and a full disk must not
        // prevent this run from taking the lock.
        drop(introduce(&mut file, program, now));
        Ok(StoreLock {
            store: self.clone(),
            file,
        })
    }

    /// Reads the holder of the lock; `None` if it is free, or was never taken. Does not write anything.
    pub(crate) fn holder(&self) -> Result<Option<Holder>, Failure> {
        let path = self.dir.join(LOCK_FILE);
        let Some(mut file) = look(&path)? else {
            return Ok(None);
        };
        // Take a shared lock for a short time. A run that tries to take the lock during this time retries.
        match fs2::FileExt::try_lock_shared(&file) {
            Ok(()) => {
                unlock(&file);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Some(holder(&mut file))),
            Err(error) => Err(unlockable(&path, error)),
        }
    }

    /// The time at which a process last took the lock, in seconds since 1970; `None` if no process wrote it.
    pub(crate) fn last_locked(&self) -> Option<u64> {
        let mut file = look(&self.dir.join(LOCK_FILE)).ok()??;
        Some(holder(&mut file).since).filter(|since| *since > 0)
    }
}

/// Opens the file, without a change; `None` if it does not exist.
fn look(path: &Path) -> Result<Option<File>, Failure> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(rustix::io::Errno::LOOP) => Err(linked(path)),
        Err(error) => Err(unreadable(path, error)),
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags | OFlags::RDWR | OFlags::CREATE, mode) {
        // A lock does not need write access: on a read-only file system, the existing file is sufficient.
        Err(rustix::io::Errno::ROFS) => rustix::fs::open(path, flags | OFlags::RDONLY, mode)
            .map_err(|_| rustix::io::Errno::ROFS),
        opened => opened,
    };
    let file = match file {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => return Err(linked(path)),
        Err(error) => return Err(unlockable(path, error)),
    };
    let metadata = file.metadata().map_err(|error| unreadable(path, error))?;
    check_owner(path, &metadata)?;
    Ok(file)
}

fn introduce(file: &mut File, program: &str, now: SystemTime) -> io::Result<()> {
    let holder = Holder {
        pid: std::process::id(),
        program: program.to_owned(),
        since: clock::unix_seconds(now),
    };
    let text = serde_json::to_vec(&holder)?;
    file_size::permit(text.len())?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&text)
}

fn holder(file: &mut File) -> Holder {
    let mut text = Vec::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(MAX_HOLDER_LEN).read_to_end(&mut text));
    read.ok()
        .and_then(|_| serde_json::from_slice(&text).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_inherits_the_file_does_not_keep_the_lock() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(&root.path().join("state")).unwrap();
        let take = || store.lock(Deadline::after(Duration::ZERO), "the-plugin", UNIX_EPOCH);
        let held = take().unwrap();
        let inherited = held.file.try_clone().unwrap();
        let error = take().unwrap_err().to_string();
        assert!(error.contains("/lock was held for more than "), "{error}");

        drop(held);

        drop(take().unwrap());
        drop(inherited);
    }
}
