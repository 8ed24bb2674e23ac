use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::*;
use crate::clock::Deadline;

const FILE: StoreFile = StoreFile::Credential;

/// A store, and its temporary directory.
fn store() -> (tempfile::TempDir, Store) {
    let root = tempfile::tempdir().unwrap();
    let store = Store::create(&root.path().join("state")).unwrap();
    (root, store)
}

fn lock(store: &Store) -> StoreLock {
    try_lock(store).unwrap()
}

fn try_lock(store: &Store) -> Result<StoreLock, Failure> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    store.lock(Deadline::after(Duration::ZERO), "the-plugin", now)
}

/// Runs the command that the remedy contains.
#[track_caller]
fn follow(error: &Failure) {
    let (_, command) = error.remedy().split_once("run: ").unwrap();
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_directory_and_the_files_are_accessible_only_to_their_owner() {
    let (_root, store) = store();
    lock(&store).replace(FILE, b"content").unwrap();

    assert_eq!(mode(&store.dir), 0o700);
    assert_eq!(mode(&store.path(FILE)), 0o600);
    assert_eq!(mode(&store.dir.join("lock")), 0o600);
}

#[test]
fn a_missing_directory_is_created() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a/b");

    assert!(Store::open(&dir).unwrap().is_none());
    Store::create(&dir).unwrap();
    Store::create(&dir).unwrap();
    assert!(Store::open(&dir).unwrap().is_some());
}

#[test]
fn a_file_is_replaced_atomically() {
    let (_root, store) = store();
    assert!(store.read(FILE).unwrap().is_none());
    for content in ["first", "second"] {
        lock(&store).replace(FILE, content.as_bytes()).unwrap();
        assert_eq!(store.read(FILE).unwrap().unwrap().as_str(), content);
    }
    lock(&store).remove(FILE).unwrap();
    lock(&store).remove(FILE).unwrap();
    assert!(store.read(FILE).unwrap().is_none());
}

#[test]
fn a_temporary_file_from_a_killed_run_is_replaced() {
    let (_root, store) = store();
    fs::write(store.dir.join("kubelet-client.pem.tmp"), "half").unwrap();

    lock(&store).replace(FILE, b"whole").unwrap();

    assert_eq!(store.read(FILE).unwrap().unwrap().as_str(), "whole");
    assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 2);
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    for bad in [0o770, 0o707, 0o1777] {
        let (_root, store) = store();
        set_mode(&store.dir, bad);

        let error = Store::open(&store.dir).unwrap_err();

        let words = format!("has mode {bad:04o}, so other users can write it");
        assert!(error.what().ends_with(&words), "{error}");
        follow(&error);
        assert!(Store::open(&store.dir).unwrap().is_some());
    }
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    let (_root, store) = store();
    lock(&store).replace(FILE, b"content").unwrap();
    set_mode(&store.path(FILE), 0o620);

    let error = store.read(FILE).unwrap_err();

    assert!(error.what().contains("has mode 0620"), "{error}");
    follow(&error);
    assert_eq!(store.read(FILE).unwrap().unwrap().as_str(), "content");
}

#[test]
fn symbolic_links_in_the_store_are_refused() {
    let (root, store) = store();
    let elsewhere = root.path().join("elsewhere");
    fs::write(&elsewhere, "content").unwrap();
    symlink(&elsewhere, store.path(FILE)).unwrap();
    symlink(&store.dir, root.path().join("link")).unwrap();
    symlink(&elsewhere, store.dir.join("lock")).unwrap();

    let file = store.read(FILE).unwrap_err();
    let directory = Store::open(&root.path().join("link")).unwrap_err();
    let lock = try_lock(&store).unwrap_err();

    for error in [file, directory, lock] {
        assert!(error.what().ends_with("is a symbolic link"), "{error}");
    }
}

#[test]
fn the_hint_for_a_symbolic_link_contains_its_target() {
    let (root, store) = store();
    let real = store.dir.canonicalize().unwrap();
    let link = root.path().join("link");
    symlink(&store.dir, &link).unwrap();
    let hint = Store::open(&link).unwrap_err().remedy().to_owned();
    assert_eq!(hint, format!("set stateDirectory to {}", real.display()));
    let followed = Path::new(hint.strip_prefix("set stateDirectory to ").unwrap());
    assert!(Store::open(followed).unwrap().is_some());

    let elsewhere = root.path().join("elsewhere");
    fs::write(&elsewhere, "content").unwrap();
    symlink(&elsewhere, store.path(FILE)).unwrap();
    let hint = store.read(FILE).unwrap_err().remedy().to_owned();
    let (from, to) = (elsewhere.canonicalize().unwrap(), store.path(FILE));
    let (from, to) = (from.display(), to.display());
    assert_eq!(
        hint,
        format!("to replace the link with the file, run: mv {from} {to}")
    );
    follow(&store.read(FILE).unwrap_err());
    assert_eq!(store.read(FILE).unwrap().unwrap().as_str(), "content");

    let (nowhere, later) = (root.path().join("nowhere"), root.path().join("later"));
    symlink(&later, &nowhere).unwrap();
    let hint = Store::create(&nowhere).unwrap_err().remedy().to_owned();
    assert_eq!(
        hint,
        format!(
            "remove {}, whose target does not exist; for a different directory, set stateDirectory to {}",
            nowhere.display(),
            later.display()
        )
    );
    let (_, followed) = hint.split_once("set stateDirectory to ").unwrap();
    Store::create(Path::new(followed)).unwrap();
    fs::remove_dir(&later).unwrap();
    fs::remove_file(&nowhere).unwrap();
    Store::create(&nowhere).unwrap();
}

#[test]
fn the_hint_for_a_lock_or_a_write_fits_the_cause() {
    use rustix::io::Errno;
    let path = Path::new("/x/lock");
    let local = "set stateDirectory to a directory on a local disk";
    for (errno, words) in [
        (Errno::NOLCK, local),
        (Errno::OPNOTSUPP, local),
        (Errno::NOSYS, local),
        (Errno::INVAL, local),
        (Errno::ACCESS, "allow root to create and lock /x/lock"),
        (Errno::NOSPC, "free up space"),
        (Errno::DQUOT, "free up space"),
        (Errno::ROFS, "remount the file system"),
    ] {
        let failure = error::unlockable(path, errno);
        assert!(
            failure.remedy().starts_with(words) || failure.remedy().contains(words),
            "{failure}"
        );
        assert!(failure.remedy().contains("stateDirectory"), "{errno}");
    }
    for (errno, words, not) in [
        (Errno::NOSPC, "free up space", "read-only"),
        (Errno::ROFS, "remount the file system", "free up space"),
        (Errno::FBIG, "LimitFSIZE", "free up space"),
    ] {
        for (failure, is_of_store) in [
            (unwritable(path, errno), true),
            (unwritable_outside(path, errno), false),
        ] {
            let remedy = failure.remedy();
            assert!(remedy.contains(words) && !remedy.contains(not), "{remedy}");
            let has_other_place = is_of_store && errno != Errno::FBIG;
            assert_eq!(
                remedy.contains("stateDirectory"),
                has_other_place,
                "{remedy}"
            );
        }
    }
}

#[test]
fn only_regular_files_are_read_from_the_store() {
    let (root, store) = store();
    fs::create_dir(store.path(FILE)).unwrap();
    let error = store.read(FILE).unwrap_err();
    assert!(error.what().ends_with("is not a regular file"), "{error}");

    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, store.path(StoreFile::Origin), mode).unwrap();
    let error = store.read(StoreFile::Origin).unwrap_err();
    assert!(error.what().ends_with("is not a regular file"), "{error}");

    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(&file).unwrap_err();
    assert!(error.what().ends_with("is not a directory"), "{error}");
}

#[test]
fn a_file_too_large_to_read_back_is_not_written() {
    let (_root, store) = store();
    let limit = usize::try_from(MAX_FILE_LEN).unwrap();

    let content = vec![b'x'; limit + 1];
    let error = lock(&store).replace(FILE, &content).unwrap_err();

    assert!(
        error
            .what()
            .ends_with("larger than the maximum size of the plugin's files"),
        "{error}"
    );
    assert!(store.read(FILE).unwrap().is_none());
}

#[test]
fn an_oversized_file_is_not_read() {
    let (_root, store) = store();
    lock(&store).replace(FILE, b"x").unwrap();
    let content = vec![b'x'; usize::try_from(MAX_FILE_LEN).unwrap() + 1];
    fs::write(store.path(FILE), content).unwrap();

    let error = store.read(FILE).unwrap_err();

    assert!(
        error
            .what()
            .ends_with("larger than the maximum size of the plugin's files"),
        "{error}"
    );
}

#[test]
fn bytes_that_are_not_utf8_are_read_as_an_unparsable_text() {
    let (_root, store) = store();
    lock(&store).replace(FILE, b"\xff\xfe").unwrap();

    assert_eq!(store.read(FILE).unwrap().unwrap().as_str(), "\0");
}

#[test]
fn the_lock_is_exclusive_and_names_its_holder() {
    let (_root, store) = store();
    let held = lock(&store);

    let error = try_lock(&store).unwrap_err();

    let text = error.to_string();
    let pid = std::process::id();
    assert!(text.contains("was held for more than"), "{text}");
    assert!(
        text.contains(&format!(
            "process {pid} (the-plugin) since 2027-01-15T08:00:00Z"
        )),
        "{text}"
    );
    drop(held);
    drop(lock(&store));
}

#[test]
fn a_reset_fails_if_the_directory_cannot_be_synced() {
    let (_root, store) = store();
    let lock = lock(&store);
    lock.replace(FILE, b"content").unwrap();
    lock.forget_all().unwrap();
    assert!(store.read(FILE).unwrap().is_none());

    // No more files must be removed, so only the sync can fail.
    fs::remove_dir_all(&store.dir).unwrap();
    let error = lock.forget_all().unwrap_err();

    let text = error.to_string();
    let expected = format!("cannot write {}: ", store.dir.display());
    assert!(text.starts_with(&expected), "{text}");
}

#[test]
fn the_last_three_files_set_aside_are_kept() {
    let (_root, store) = store();
    let lock = lock(&store);
    assert_eq!(lock.quarantine(FILE).unwrap(), None);

    for content in ["1", "2", "3", "4"] {
        lock.replace(FILE, content.as_bytes()).unwrap();
        assert!(lock.quarantine(FILE).unwrap().is_some());
    }

    assert!(store.read(FILE).unwrap().is_none());
    let kept: Vec<_> = ["1", "2", "3"]
        .iter()
        .map(|number| {
            store
                .dir
                .join(format!("kubelet-client.pem.set-aside.{number}"))
        })
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    assert_eq!(kept, ["4", "3", "2"]);
}
