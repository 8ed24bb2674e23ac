//! Errors of the store.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::io::Errno;

use crate::failure::{Code, Failure};

const ELSEWHERE: &str = "or set stateDirectory to a different directory";

/// The failure of a run with a file or directory of the store.
pub(super) fn failure(what: String, remedy: impl Into<String>) -> Failure {
    Failure::new(Code::Store, what, remedy)
}

pub(super) fn unreadable(path: &Path, error: impl Into<io::Error>) -> Failure {
    let (path, error) = (path.display(), error.into());
    failure(
        format!("cannot read {path}: {error}"),
        format!("allow root to read {path}"),
    )
}

pub(super) fn unwritable(path: &Path, error: impl Into<io::Error>) -> Failure {
    let error = error.into();
    let remedy = writable(path, &error);
    // The file size limit in the unit applies to every directory.
    let remedy = if Errno::from_io_error(&error) == Some(Errno::FBIG) {
        remedy
    } else {
        format!("{remedy}, {ELSEWHERE}")
    };
    failure(format!("cannot write {}: {error}", path.display()), remedy)
}

/// Returns the failure for a file outside the store, for which a different state directory would not help.
pub(super) fn unwritable_outside(path: &Path, error: impl Into<io::Error>) -> Failure {
    let error = error.into();
    let remedy = writable(path, &error);
    failure(format!("cannot write {}: {error}", path.display()), remedy)
}

/// The hint to make a file writable again, which depends on the cause.
fn writable(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            format!("free up space on the file system of {path}")
        }
        Some(Errno::ROFS) => {
            format!("remount the file system of {path} read-write")
        }
        Some(Errno::FBIG) => {
            format!(
                "raise the limit of file sizes (LimitFSIZE of the unit, `ulimit -f`) for {path}"
            )
        }
        _ => format!("free up space on the file system of {path}, and allow root to write to it"),
    }
}

pub(super) fn unlockable(path: &Path, error: impl Into<io::Error>) -> Failure {
    let error = error.into();
    let remedy = match Errno::from_io_error(&error) {
        // The errors of network file systems without their lock daemon, and of file systems without locks.
        Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            "set stateDirectory to a directory on a local disk: this file system does not support locks"
                .to_owned()
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            format!("allow root to create and lock {}, {ELSEWHERE}", path.display())
        }
        _ => format!("{}, {ELSEWHERE}", writable(path, &error)),
    };
    failure(format!("cannot lock {}: {error}", path.display()), remedy)
}

/// The failure if a symbolic link exists instead of the file or directory. An administrator might have created it on
/// purpose.
pub(super) fn linked(path: &Path) -> Failure {
    let target = fs::canonicalize(path).ok();
    let place = path.display();
    let remedy = match target.as_deref() {
        Some(target) if target.is_dir() => format!("set stateDirectory to {}", target.display()),
        Some(target) => format!(
            "to replace the link with the file, run: mv {} {place}",
            target.display()
        ),
        None => {
            let target = fs::read_link(path).unwrap_or_else(|_| PathBuf::from("its target"));
            format!(
                "remove {place}, whose target does not exist; for a different directory, set stateDirectory to {}",
                target.display()
            )
        }
    };
    failure(format!("{place} is a symbolic link"), remedy)
}

/// The failure if an object of another kind exists instead of the file or directory.
pub(super) fn misplaced(path: &Path, what: &str) -> Failure {
    let path = path.display();
    failure(
        format!("{path} is {what}"),
        format!("move {path} away; the next run creates it again"),
    )
}

pub(super) fn too_large(path: &Path) -> Failure {
    let path = path.display();
    failure(
        format!("{path} is larger than the maximum size of the plugin's files"),
        format!(
            "if {path} exists, move it away, and the next run creates it again; otherwise shorten the cluster's CA \
             bundle"
        ),
    )
}
