//! Atomic changes of files.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::if_there;

/// The maximum number of quarantined files of one name: a start-up loop must not fill the disk.
const KEPT_ASIDE: u32 = 3;

/// The suffix of a file that is being written.
const TEMPORARY: &str = ".tmp";

/// Writes `content` to a temporary file in `dir`, and renames that to `path`.
pub(super) fn replace(dir: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    put(dir, path, |temporary| write_new(temporary, content))
}

/// Makes a temporary symbolic link to `target` in `dir`, and renames that to `path`.
pub(super) fn link(dir: &Path, path: &Path, target: &Path) -> io::Result<()> {
    put(dir, path, |temporary| symlink(target, temporary))
}

fn put(dir: &Path, path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let temporary = with_suffix(path, TEMPORARY);
    // The leftover of a killed run. Because of the lock, no other run writes it now.
    if_there(fs::remove_file(&temporary))?;
    let written = write(&temporary).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        drop(fs::remove_file(&temporary));
        return Err(error);
    }
    sync(dir)
}

/// Makes the names in `dir` survive a power failure.
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    // The parent of a single file name is the empty path.
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    File::open(dir)?.sync_all()
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content)?;
    file.sync_all()
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

/// Every possible leftover of `path`: quarantined copies, and the temporary file of a killed run.
pub(super) fn left_of(path: &Path) -> impl Iterator<Item = PathBuf> {
    (1..=KEPT_ASIDE)
        .map(|number| aside(path, number))
        .chain([with_suffix(path, TEMPORARY)])
}

fn aside(path: &Path, number: u32) -> PathBuf {
    with_suffix(path, &format!(".set-aside.{number}"))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}
