//! The time of the last check of the stored certificate, as the target of a symbolic link.
//!
//! Each run for client-go reads this time, and most of these runs do not write to the store. One `readlink` reads a
//! link, without opening a file. The link is not synced to the disk: if a power failure loses it, one more check
//! follows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Store, StoreLock, remove_file, replace};
use crate::clock;

/// The link. The target of the link is a number of seconds since 1970, not a file.
const LINK: &str = "last-check";

impl Store {
    /// The time of the last check; `None` if the certificate was never checked, or the link is not readable.
    pub(crate) fn last_check(&self) -> Option<SystemTime> {
        let target = fs::read_link(self.dir.join(LINK)).ok()?;
        let seconds = target.to_str()?.parse().ok()?;
        UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    }

    /// Makes the next run check the certificate. This call has no effect if the disk is not writable.
    pub(crate) fn forget_last_check(&self) {
        drop(remove_file(&self.dir.join(LINK)));
    }

    /// The paths of the link, and of the temporary link of a run that was killed.
    pub(super) fn check_links(&self) -> [PathBuf; 2] {
        let path = self.dir.join(LINK);
        let temporary = replace::temporary(&path);
        [path, temporary]
    }
}

impl StoreLock {
    /// Makes [`Store::last_check`] return `now`.
    pub(crate) fn note_check(&self, now: SystemTime) -> io::Result<()> {
        let target = clock::unix_seconds(now).to_string();
        replace::link_unsynced(&self.dir.join(LINK), Path::new(&target))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::clock::Deadline;

    const NOW: SystemTime = UNIX_EPOCH;

    fn store() -> (tempfile::TempDir, Store) {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(&root.path().join("state")).unwrap();
        (root, store)
    }

    fn lock(store: &Store) -> StoreLock {
        let deadline = Deadline::after(Duration::from_secs(30));
        store.lock(deadline, "the-plugin", NOW).unwrap()
    }

    #[test]
    fn the_time_of_the_last_check_is_stored_until_it_is_forgotten() {
        let (_root, store) = store();
        assert_eq!(store.last_check(), None);
        for seconds in [1_800_000_000, 1_800_000_100] {
            let now = NOW + Duration::from_secs(seconds);
            // A fraction of a second is not stored.
            let noted = lock(&store).note_check(now + Duration::from_millis(500));
            noted.unwrap();
            assert_eq!(store.last_check(), Some(now));
        }

        store.forget_last_check();
        store.forget_last_check();

        assert_eq!(store.last_check(), None);
    }

    #[test]
    fn taking_the_lock_does_not_count_as_a_check() {
        let (_root, store) = store();

        drop(lock(&store));

        assert_eq!(store.last_check(), None);
    }

    #[test]
    fn an_unreadable_time_of_the_last_check_means_never() {
        let (_root, store) = store();
        let [path, _] = store.check_links();
        // The last value is a number of seconds that exceeds the maximum of `SystemTime`.
        for target in ["x", "-1", "1 ", "1.5", "/var/lib", "18446744073709551615"] {
            symlink(target, &path).unwrap();
            assert_eq!(store.last_check(), None, "{target:?}");
            fs::remove_file(&path).unwrap();
        }
        fs::write(&path, "1800000000").unwrap();
        assert_eq!(store.last_check(), None, "a regular file");
        lock(&store).note_check(NOW).unwrap();
        assert_eq!(store.last_check(), Some(NOW));
    }

    #[test]
    fn a_temporary_link_from_a_killed_run_is_replaced() {
        let (_root, store) = store();
        let [path, temporary] = store.check_links();
        symlink("1", &temporary).unwrap();

        lock(&store).note_check(NOW).unwrap();

        assert_eq!(store.last_check(), Some(NOW));
        assert!(fs::symlink_metadata(&temporary).is_err());
        symlink("1", &temporary).unwrap();
        lock(&store).forget_all().unwrap();
        for link in [path, temporary] {
            assert!(fs::symlink_metadata(&link).is_err(), "{link:?}");
        }
    }
}
