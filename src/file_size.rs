//! The limit of file sizes (`RLIMIT_FSIZE`, `LimitFSIZE=` of a unit).
//!
//! A write beyond the limit kills the process with SIGXFSZ. A node would then lose a valid credential because of one
//! write to the lock file. Therefore, the limit is checked before every write.

use std::io;

use rustix::process::{Resource, getrlimit};

/// Returns an error if a file of this length would exceed the limit.
pub(crate) fn permit(len: usize) -> io::Result<()> {
    let limit = getrlimit(Resource::Fsize).current;
    let len = u64::try_from(len).unwrap_or(u64::MAX);
    if limit.is_some_and(|limit| len > limit) {
        return Err(rustix::io::Errno::FBIG.into());
    }
    Ok(())
}
