//! Errors of the store.

use std::io;
use std::path::Path;

use crate::failure::{Code, Failure};

/// The failure of a run with a file or directory of the store.
pub(super) fn failure(what: String, remedy: impl Into<String>) -> Failure {
    Failure::new(Code::Store, what, remedy)
}

pub(super) fn unreadable(path: &Path, error: impl Into<io::Error>) -> Failure {
    let (path, error) = (path.display(), error.into());
    failure(
        format!("cannot read {path}: {error}"),
        format!("make {path} readable for root"),
    )
}

pub(super) fn unwritable(path: &Path, error: impl Into<io::Error>) -> Failure {
    let (path, error) = (path.display(), error.into());
    failure(
        format!("cannot write {path}: {error}"),
        format!(
            "make room and let root write on the file system of {path}, or set stateDirectory to \
             another place"
        ),
    )
}

pub(super) fn unlockable(path: &Path, error: impl Into<io::Error>) -> Failure {
    let (path, error) = (path.display(), error.into());
    failure(
        format!("cannot lock {path}: {error}"),
        format!("let root create and lock {path}"),
    )
}

/// Something else is in the place of the file or directory.
pub(super) fn misplaced(path: &Path, what: &str) -> Failure {
    let path = path.display();
    failure(
        format!("{path} is {what}"),
        format!("remove {path}; it is made again"),
    )
}

pub(super) fn too_large(path: &Path) -> Failure {
    let path = path.display();
    failure(
        format!("{path} is too large to be ours"),
        format!(
            "if {path} is there, move it away; it is made again; otherwise shorten the cluster's CA \
             bundle"
        ),
    )
}
