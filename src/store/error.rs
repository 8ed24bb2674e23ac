//! Why the store cannot be used.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::lock::Holder;

/// The store could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
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
    /// A symbolic link where a file or directory of ours should be.
    #[error("{} is a symbolic link", path.display())]
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// Something else where the directory should be.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// What.
        path: PathBuf,
    },
    /// A directory, a pipe or a device where a file should be.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// What.
        path: PathBuf,
    },
    /// A file much larger than any of ours.
    #[error("{} is too large to be ours", path.display())]
    TooLarge {
        /// The path.
        path: PathBuf,
    },
    /// It belongs to a user who is neither root nor the one we run as.
    #[error("{} belongs to user {owner}", path.display())]
    ForeignOwner {
        /// What.
        path: PathBuf,
        /// The user.
        owner: u32,
    },
    /// Other users may write it.
    #[error("{} has mode {mode:04o}, so that other users may write it", path.display())]
    OthersMayWrite {
        /// What.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The lock could not be taken at all.
    #[error("cannot lock {}", path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another process did not let go of the lock in time.
    #[error("{} was held for more than {waited:.1?} by {holder}", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// How long we waited.
        waited: Duration,
        /// Who holds it.
        holder: Holder,
    },
}

impl StoreError {
    /// What to do about it.
    pub fn remedy(&self) -> String {
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
