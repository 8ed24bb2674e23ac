//! Keys that other users could read.

use std::fmt;
use std::fs::File;
use std::io;

use rustix::fs::Mode;

use super::StoreFile;

/// Read permission of the group and of all others.
const OTHERS_READ: u32 = 0o044;

/// A file with a key that others could read. Nobody knows whether anyone did.
///
/// `Display` is a message for people, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyReadableByOthers {
    /// The file.
    pub(crate) file: StoreFile,
    /// Its permissions before the correction.
    pub(crate) mode: u32,
    /// Why others can still read the file, if the correction failed.
    pub(crate) left_open: Option<io::ErrorKind>,
}

impl KeyReadableByOthers {
    /// Takes all permissions on `opened` from others, if it holds a key that they could read.
    pub(super) fn of(opened: &File, file: StoreFile, mode: u32) -> Option<Self> {
        let holds_key = match file {
            StoreFile::Credential | StoreFile::Pending => true,
            StoreFile::Origin | StoreFile::Failure | StoreFile::Remembered => false,
        };
        if !holds_key || mode & OTHERS_READ == 0 {
            return None;
        }
        let closed = rustix::fs::fchmod(opened, Mode::RUSR | Mode::WUSR);
        Some(Self {
            file,
            mode: mode & 0o7777,
            left_open: closed.err().map(|error| io::Error::from(error).kind()),
        })
    }
}

impl fmt::Display for KeyReadableByOthers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.file.name();
        write!(
            f,
            "{name} had mode {:04o}, so that others could read the key",
            self.mode
        )?;
        match self.left_open {
            None => f.write_str(", and is closed to them now")?,
            Some(why) => write!(f, ", and cannot be closed to them ({why})")?,
        }
        f.write_str("; if somebody has, get another key with `renew --force`")
    }
}
