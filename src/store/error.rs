//! Errors of the store.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::lock::Holder;

/// The store could not be used.
#[derive(Debug)]
pub(crate) struct StoreError {
    /// The file or directory.
    pub(crate) path: PathBuf,
    /// What is wrong with it.
    pub(crate) fault: StoreFault,
}

/// What is wrong with a file or directory of the store.
#[derive(Debug)]
pub(crate) enum StoreFault {
    /// It could not be read.
    Read(io::Error),
    /// It could not be written.
    Write(io::Error),
    /// The lock file could not be opened or locked.
    Lock(io::Error),
    /// A symbolic link is in its place.
    Symlink,
    /// Something else is in the place of the directory.
    NotADirectory,
    /// A directory, a pipe or a device is in the place of a file.
    NotAFile,
    /// It is much larger than any file of the store.
    TooLarge,
    /// The owner, this user, is neither root nor the user of this process.
    ForeignOwner(u32),
    /// Other users may write it: it has these permissions.
    OthersMayWrite(u32),
    /// Another process did not release the lock in time.
    Held { waited: Duration, holder: Holder },
}

impl StoreFault {
    pub(super) fn at(self, path: impl Into<PathBuf>) -> StoreError {
        StoreError {
            path: path.into(),
            fault: self,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.fault {
            StoreFault::Read(_) => write!(f, "cannot read {path}"),
            StoreFault::Write(_) => write!(f, "cannot write {path}"),
            StoreFault::Lock(_) => write!(f, "cannot lock {path}"),
            StoreFault::Symlink => write!(f, "{path} is a symbolic link"),
            StoreFault::NotADirectory => write!(f, "{path} is not a directory"),
            StoreFault::NotAFile => write!(f, "{path} is not a regular file"),
            StoreFault::TooLarge => write!(f, "{path} is too large to be ours"),
            StoreFault::ForeignOwner(owner) => write!(f, "{path} belongs to user {owner}"),
            StoreFault::OthersMayWrite(mode) => {
                write!(
                    f,
                    "{path} has mode {mode:04o}, so that other users may write it"
                )
            }
            StoreFault::Held { waited, holder } => {
                write!(f, "{path} was held for more than {waited:.1?} by {holder}")
            }
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.fault {
            StoreFault::Read(source) | StoreFault::Write(source) | StoreFault::Lock(source) => {
                Some(source)
            }
            StoreFault::Symlink
            | StoreFault::NotADirectory
            | StoreFault::NotAFile
            | StoreFault::TooLarge
            | StoreFault::ForeignOwner(_)
            | StoreFault::OthersMayWrite(_)
            | StoreFault::Held { .. } => None,
        }
    }
}

impl StoreError {
    /// What to do about the error.
    pub(crate) fn remedy(&self) -> String {
        let path = self.path.display();
        match &self.fault {
            StoreFault::Read(_) => format!("make {path} readable for root"),
            StoreFault::Write(_) => format!(
                "make room and let root write on the file system of {path}, or set stateDirectory to another place"
            ),
            StoreFault::Lock(_) => format!("let root create and lock {path}"),
            StoreFault::Symlink | StoreFault::NotADirectory | StoreFault::NotAFile => {
                format!("remove {path}; it is made again")
            }
            StoreFault::TooLarge => format!(
                "if {path} is there, move it away; it is made again; otherwise shorten the cluster's CA bundle"
            ),
            StoreFault::ForeignOwner(_) => format!("run: chown root:root {path}"),
            StoreFault::OthersMayWrite(_) => {
                format!("find out who wrote it, then run: chmod go-w {path}")
            }
            StoreFault::Held { .. } => {
                "wait for that process, or end it; nothing is lost".to_owned()
            }
        }
    }
}
