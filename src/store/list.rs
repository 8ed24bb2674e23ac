//! The files of the state directory, for output to users.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

use super::Store;
use super::error::unreadable;
use crate::failure::Failure;

/// A file in the state directory, including unknown files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The file name, without the directory.
    pub(crate) name: String,
    /// The permission bits of the file.
    pub(crate) mode: u32,
    /// The size of the file in bytes.
    pub(crate) length: u64,
    /// The time of the last change of the file.
    pub(crate) modified: SystemTime,
}

impl Store {
    /// Lists every file of the directory, sorted by name.
    pub(crate) fn list(&self) -> Result<Vec<Listed>, Failure> {
        let failed = |error| unreadable(&self.dir, error);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let metadata = entry.metadata().map_err(failed)?;
            files.push(Listed {
                name: entry.file_name().to_string_lossy().into_owned(),
                mode: metadata.mode() & 0o7777,
                length: metadata.len(),
                modified: metadata.modified().map_err(failed)?,
            });
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(files)
    }
}
