//! Keys that other users could read.

use std::fs::File;
use std::io;

use rustix::fs::Mode;

use super::StoreFile;

/// The mode bits for read permission of the group and of all others.
const OTHERS_READ: u32 = 0o044;

/// Removes all permissions of other users on `opened`, if it contains a key that they could read. It is unknown whether
/// these users have read the key. Returns a message for operators, with a hint. Does not change permissions if the
/// store is read-only.
pub(super) fn close(opened: &File, file: StoreFile, mode: u32, looked_at: bool) -> Option<String> {
    let holds_key = matches!(file, StoreFile::Credential | StoreFile::Pending);
    if !holds_key || mode & OTHERS_READ == 0 {
        return None;
    }
    if looked_at {
        return Some(format!(
            "{} has mode {:04o}, so other users can read the private key",
            file.name(),
            mode & 0o7777
        ));
    }
    let closed = match rustix::fs::fchmod(opened, Mode::RUSR | Mode::WUSR) {
        Ok(()) => "the mode is now 0600".to_owned(),
        Err(error) => {
            let why = io::Error::from(error).kind();
            format!("cannot change the mode ({why})")
        }
    };
    Some(format!(
        "{} had mode {:04o}, so other users could read the private key; {closed}; if a user has \
         read the key, replace it with `renew --force`",
        file.name(),
        mode & 0o7777
    ))
}
