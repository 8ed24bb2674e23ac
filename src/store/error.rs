//! Errors of the store.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::lock::Holder;
use crate::failure::{Code, Failure};

/// What is wrong with a file or directory of the store.
#[derive(Debug)]
pub(super) enum StoreFault {
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
    /// The failure of a run with this file or directory.
    pub(super) fn at(self, path: impl AsRef<Path>) -> Failure {
        let path = path.as_ref().display();
        let made_again = || format!("remove {path}; it is made again");
        let (what, remedy) = match self {
            Self::Read(error) => (
                format!("cannot read {path}: {error}"),
                format!("make {path} readable for root"),
            ),
            Self::Write(error) => (
                format!("cannot write {path}: {error}"),
                format!(
                    "make room and let root write on the file system of {path}, or set \
                     stateDirectory to another place"
                ),
            ),
            Self::Lock(error) => (
                format!("cannot lock {path}: {error}"),
                format!("let root create and lock {path}"),
            ),
            Self::Symlink => (format!("{path} is a symbolic link"), made_again()),
            Self::NotADirectory => (format!("{path} is not a directory"), made_again()),
            Self::NotAFile => (format!("{path} is not a regular file"), made_again()),
            Self::TooLarge => (
                format!("{path} is too large to be ours"),
                format!(
                    "if {path} is there, move it away; it is made again; otherwise shorten the \
                     cluster's CA bundle"
                ),
            ),
            Self::ForeignOwner(owner) => (
                format!("{path} belongs to user {owner}"),
                format!("run: chown root:root {path}"),
            ),
            Self::OthersMayWrite(mode) => (
                format!("{path} has mode {mode:04o}, so that other users may write it"),
                format!("find out who wrote it, then run: chmod go-w {path}"),
            ),
            Self::Held { waited, holder } => (
                format!("{path} was held for more than {waited:.1?} by {holder}"),
                "wait for that process, or end it; nothing is lost".to_owned(),
            ),
        };
        Failure::new(Code::Store, what, remedy)
    }
}
