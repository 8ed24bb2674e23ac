//! The state directory: the files that exist after a run, and their permissions.

mod error;
mod last_check;
mod list;
mod lock;
mod readable_by_others;
mod replace;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _};
use std::path::{Path, PathBuf};

use kubelet_attestation::ensure;
use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

use crate::failure::Failure;
use crate::ownership;

use error::{failure, linked, misplaced, too_large, unreadable, unwritable, unwritable_outside};
pub(crate) use lock::StoreLock;

/// The maximum size of a file, in bytes, which is much larger than any file in the store.
const MAX_FILE_LEN: u64 = 1024 * 1024;

/// The text of a file with a key, and a message if other users could read the file.
pub(crate) type KeyFile = (Zeroizing<String>, Option<String>);

/// A file of the store.
///
/// Files are quarantined in this order: keys first, and the origin last. Therefore, a process that is killed during the
/// quarantine never leaves a key without its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StoreFile {
    /// The key and the request whose certificate is pending.
    Pending,
    /// The certificate chain, then the key.
    Credential,
    /// The last failure.
    Failure,
    /// The provider's text about its evidence.
    Remembered,
    /// The machine, node and cluster of the credential.
    Origin,
}

impl StoreFile {
    /// Every file except the lock and the time of the last check, in order.
    pub(crate) const ALL: [Self; 5] = [
        Self::Pending,
        Self::Credential,
        Self::Failure,
        Self::Remembered,
        Self::Origin,
    ];

    /// The name in the directory.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Credential => "kubelet-client.pem",
            Self::Origin => "origin.json",
            Self::Pending => "pending.json",
            Self::Failure => "failure.json",
            // Only one provider stores a string, and the file has the name of its content.
            Self::Remembered => "endorsement-key",
        }
    }
}

/// The state directory, which no other user can write.
///
/// # Guarantees
///
/// The directory and each file that is read from it belong to root or to the user of this process. None of them is
/// writable by other users, or is a symbolic link. A user who could write to the directory could choose the node's key.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    dir: PathBuf,
    /// Whether this process only reads the store, and therefore does not correct file permissions.
    looks_only: bool,
}

impl Store {
    /// Opens the directory; `None` if it does not exist.
    pub(crate) fn open(dir: &Path) -> Result<Option<Self>, Failure> {
        let metadata = match fs::symlink_metadata(dir) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(dir, error)),
        };
        ensure!(!metadata.is_symlink(), linked(dir));
        ensure!(metadata.is_dir(), misplaced(dir, "not a directory"));
        check_owner(dir, &metadata)?;
        Ok(Some(Self {
            dir: dir.to_owned(),
            looks_only: false,
        }))
    }

    /// Opens the store as [`Store::open`] does, but a read of a key does not remove the read permission of other users.
    pub(crate) fn look(dir: &Path) -> Result<Option<Self>, Failure> {
        let opened = Self::open(dir)?;
        Ok(opened.map(|store| Self {
            looks_only: true,
            ..store
        }))
    }

    /// The files that [`StoreLock::forget_all`] would remove, without the time of the last check.
    pub(crate) fn removable(&self) -> Vec<PathBuf> {
        let exists = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
        self.possible_files().filter(exists).collect()
    }

    /// The path of every file of [`StoreFile::ALL`], of its quarantined copies, and of its temporary file.
    fn possible_files(&self) -> impl Iterator<Item = PathBuf> {
        StoreFile::ALL.into_iter().flat_map(|file| {
            let path = self.path(file);
            let left: Vec<_> = replace::left_of(&path).collect();
            [path].into_iter().chain(left)
        })
    }

    /// Opens the directory, and creates it if it does not exist.
    pub(crate) fn create(dir: &Path) -> Result<Self, Failure> {
        if let Some(store) = Self::open(dir)? {
            return Ok(store);
        }
        let failed = |error: io::Error| unwritable(dir, error);
        if let Some(parent) = dir.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {
                if let Some(parent) = dir.parent() {
                    replace::sync(parent).map_err(failed)?;
                }
            }
            // A different run has created the directory.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        Self::open(dir)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
    }

    /// The path of `file`.
    pub(crate) fn path(&self, file: StoreFile) -> PathBuf {
        self.dir.join(file.name())
    }

    /// Reads `file`; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// The file is a link or not a regular file, or other users are allowed to write it. In this case, a different user
    /// could have created the file. Bytes that are not UTF-8 do not cause an error. Instead, this function returns a
    /// string that every parser rejects.
    pub(crate) fn read(&self, file: StoreFile) -> Result<Option<Zeroizing<String>>, Failure> {
        Ok(self.read_key(file)?.map(|(text, _)| text))
    }

    /// Does the same as [`Store::read`], for a file with a key. Also returns a message if others could read the file,
    /// with the result of the correction.
    ///
    /// The plugin still uses the key. Other users might already have the key, and a node without a credential would not
    /// be safer.
    pub(crate) fn read_key(&self, file: StoreFile) -> Result<Option<KeyFile>, Failure> {
        let path = self.path(file);
        // Open without blocking, because a named pipe instead of the file would block this call indefinitely.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(opened) => File::from(opened),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP) => return Err(linked(&path)),
            Err(error) => return Err(unreadable(&path, error)),
        };
        self.read_checked(&path, file, opened).map(Some)
    }

    fn read_checked(
        &self,
        path: &Path,
        name: StoreFile,
        mut file: File,
    ) -> Result<KeyFile, Failure> {
        let failed = |error: io::Error| unreadable(path, error);
        let metadata = file.metadata().map_err(failed)?;
        ensure!(metadata.is_file(), misplaced(path, "not a regular file"));
        check_owner(path, &metadata)?;
        ensure!(metadata.len() <= MAX_FILE_LEN, too_large(path));
        let length = usize::try_from(metadata.len()).unwrap_or_default();
        // Read the whole file with one call. Files are replaced, never changed in place. A growing buffer would leave
        // copies of a key in memory.
        let mut bytes = Zeroizing::new(vec![0; length]);
        file.read_exact(&mut bytes).map_err(failed)?;
        let text = String::from_utf8(std::mem::take(&mut *bytes));
        let text = Zeroizing::new(text.unwrap_or_else(|error| {
            Zeroizing::new(error.into_bytes());
            // Every parser rejects this text.
            "\0".to_owned()
        }));
        Ok((
            text,
            readable_by_others::close(&file, name, metadata.mode(), self.looks_only),
        ))
    }
}

impl StoreLock {
    /// Replaces `file`. A reader sees the old or the new content, never a mixture, even after a power failure.
    pub(crate) fn replace(&self, file: StoreFile, content: &[u8]) -> Result<(), Failure> {
        let path = self.path(file);
        // Do not write a file that is too large to read, because it would make every later run fail.
        if u64::try_from(content.len()).is_ok_and(|length| length > MAX_FILE_LEN) {
            return Err(too_large(&path));
        }
        replace::replace(&self.dir, &path, content).map_err(|error| unwritable(&path, error))
    }

    /// Removes `file`, if it exists.
    pub(crate) fn remove(&self, file: StoreFile) -> Result<(), Failure> {
        remove_file(&self.path(file))
    }

    /// Removes every file, the quarantined copies and the time of the last check. The copies can contain keys. The
    /// removal also survives a power failure.
    pub(crate) fn forget_all(&self) -> Result<(), Failure> {
        self.possible_files()
            .chain(self.check_links())
            .try_for_each(|path| remove_file(&path))?;
        replace::sync(&self.dir).map_err(|error| unwritable(&self.dir, error))
    }

    /// Quarantines `file`: the plugin no longer uses the file, but keeps it, so that an operator can examine it. Only
    /// the last few copies of each file are kept.
    ///
    /// Returns the new path, or `None` if the file did not exist.
    pub(crate) fn quarantine(&self, file: StoreFile) -> Result<Option<PathBuf>, Failure> {
        let path = self.path(file);
        if_there(replace::quarantine(&self.dir, &path)).map_err(|error| unwritable(&path, error))
    }
}

/// Replaces a file outside the store, which only its owner is allowed to read. Creates the directory of the file if
/// necessary. A reader sees the old or the new content. The lock prevents other runs from writing the file.
pub(crate) fn replace_file(path: &Path, content: &[u8], _lock: &StoreLock) -> Result<(), Failure> {
    in_its_folder(path, |dir| replace::replace(dir, path, content))
}

/// Replaces the file as [`replace_file`] does, but with a symbolic link to `target`.
pub(crate) fn replace_link(path: &Path, target: &Path, _lock: &StoreLock) -> Result<(), Failure> {
    in_its_folder(path, |dir| replace::link(dir, path, target))
}

fn in_its_folder(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Failure> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir);
    made.and_then(|()| write(dir))
        .map_err(|error| unwritable_outside(path, error))
}

/// Removes a file, if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), Failure> {
    let removed = if_there(fs::remove_file(path));
    removed.map(drop).map_err(|error| unwritable(path, error))
}

/// The result of an operation on a file; `None` if the file does not exist.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

fn check_owner(path: &Path, metadata: &fs::Metadata) -> Result<(), Failure> {
    match ownership::of_file(path, metadata) {
        Some(untrusted) => Err(failure(untrusted.what, untrusted.remedy)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
