//! Errors of the store.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::lock::Holder;

/// The store could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// A file or the directory could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file or the directory could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A symbolic link is in the place of a file or directory of the store.
    #[error("{} is a symbolic link", path.display())]
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// Something else is in the place of the directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// A directory, a pipe or a device is in the place of a file.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file is much larger than any of the store.
    #[error("{} is too large to be ours", path.display())]
    TooLarge {
        /// The path.
        path: PathBuf,
    },
    /// The owner is neither root nor the user of this process.
    #[error("{} belongs to user {owner}", path.display())]
    ForeignOwner {
        /// The path.
        path: PathBuf,
        /// The user.
        owner: u32,
    },
    /// Other users may write the file or directory.
    #[error("{} has mode {mode:04o}, so that other users may write it", path.display())]
    OthersMayWrite {
        /// The path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The lock file could not be opened or locked.
    #[error("cannot lock {}", path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another process did not release the lock in time.
    #[error("{} was held for more than {waited:.1?} by {holder}", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The time of the wait.
        waited: Duration,
        /// The holder of the lock.
        holder: Holder,
    },
}

impl StoreError {
    /// What to do about the error.
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Read { path, .. } => format!("make {} readable for root", path.display()),
            Self::Write { path, .. } => format!(
                "make room and let root write on the file system of {}, or set stateDirectory to another place",
                path.display()
            ),
            Self::Symlink { path } | Self::NotADirectory { path } | Self::NotAFile { path } => {
                format!("remove {}; it is made again", path.display())
            }
            Self::TooLarge { path } => format!(
                "if {} is there, move it away; it is made again; otherwise shorten the cluster's CA bundle",
                path.display()
            ),
            Self::ForeignOwner { path, .. } => format!("run: chown root:root {}", path.display()),
            Self::OthersMayWrite { path, .. } => {
                format!(
                    "find out who wrote it, then run: chmod go-w {}",
                    path.display()
                )
            }
            Self::Lock { path, .. } => {
                format!("let root create and lock {}", path.display())
            }
            Self::Held { .. } => "wait for that process, or end it; nothing is lost".to_owned(),
        }
    }
}
