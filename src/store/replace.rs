//! Atomic changes of files.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::if_there;
use crate::file_size;

/// The maximum number of quarantined copies of one file: a restart loop must not fill the disk.
const KEPT_ASIDE: u32 = 3;

/// The suffix of a file that is being written.
const TEMPORARY: &str = ".tmp";

/// Writes `content` to a temporary file in `dir`, and renames the file to `path`.
pub(super) fn replace(dir: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    put(dir, path, |temporary| write_new(temporary, content))
}

/// Creates a temporary symbolic link to `target` in `dir`, and renames the link to `path`.
pub(super) fn link(dir: &Path, path: &Path, target: &Path) -> io::Result<()> {
    put(dir, path, |temporary| symlink(target, temporary))
}

/// Replaces `path` as [`link`] does, but a power failure can lose the change.
pub(super) fn link_unsynced(path: &Path, target: &Path) -> io::Result<()> {
    put_unsynced(path, |temporary| symlink(target, temporary))
}

fn put(dir: &Path, path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    put_unsynced(path, write)?;
    sync(dir)
}

fn put_unsynced(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let temporary = temporary(path);
    // The temporary file comes from a run that was killed. Because of the lock, no other run is writing it now.
    if_there(fs::remove_file(&temporary))?;
    let written = write(&temporary).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        drop(fs::remove_file(&temporary));
    }
    written
}

/// The path of the temporary file of `path`.
pub(super) fn temporary(path: &Path) -> PathBuf {
    with_suffix(path, TEMPORARY)
}

/// Syncs `dir`, so that the names in it survive a power failure.
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    // The parent of a bare file name is the empty path.
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    synced(File::open(dir)?.sync_all())
}

/// The result of fsync(2). Some network and user-space file systems do not support it for directories. A node must also
/// be able to join on these file systems, even though a power failure can lose a change.
fn synced(result: io::Result<()>) -> io::Result<()> {
    use rustix::io::Errno;
    match result {
        Err(error)
            if matches!(
                Errno::from_io_error(&error),
                Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    file_size::permit(content.len())?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content)?;
    synced(file.sync_all())
}

/// Renames `path` to the first of a few quarantine names, and overwrites the last of them.
pub(super) fn quarantine(dir: &Path, path: &Path) -> io::Result<PathBuf> {
    let name = |number| aside(path, number);
    fs::symlink_metadata(path)?;
    for number in (1..KEPT_ASIDE).rev() {
        if_there(fs::rename(name(number), name(number + 1)))?;
    }
    fs::rename(path, name(1))?;
    sync(dir)?;
    Ok(name(1))
}

/// The paths of the files that can remain from `path`: quarantined copies, and the temporary file of a run that was
/// killed.
pub(super) fn left_of(path: &Path) -> impl Iterator<Item = PathBuf> {
    (1..=KEPT_ASIDE)
        .map(|number| aside(path, number))
        .chain([temporary(path)])
}

fn aside(path: &Path, number: u32) -> PathBuf {
    with_suffix(path, &format!(".set-aside.{number}"))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_file_system_that_does_not_sync_folders_is_used() {
        for errno in [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP] {
            assert!(synced(Err(errno.into())).is_ok(), "{errno}");
        }
        for errno in [Errno::IO, Errno::NOSPC, Errno::ROFS, Errno::DQUOT] {
            assert_eq!(
                synced(Err(errno.into())).unwrap_err().kind(),
                io::Error::from(errno).kind()
            );
        }
    }
}
