//! Detects files and programs that users other than root could change.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The mode bits for write permission of the group and of all others.
const OTHERS_WRITE: u32 = 0o022;

/// The sticky bit. In a directory with this bit, only the owner of an entry can rename or remove it (inode(7)).
const STICKY: u32 = 0o1000;

/// The maximum number of symbolic links on a path, which is more than real paths contain.
const MAX_LINKS: u32 = 32;

/// The reason why a file is not trusted: another user could change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untrusted {
    /// The reason, as text.
    pub what: String,
    /// The command that corrects the permissions.
    pub remedy: String,
}

/// Returns the reason why a file or directory is not trusted: it belongs to a user other than root and the user of this
/// process, or others can write to it.
pub(crate) fn of_file(path: &Path, metadata: &Metadata) -> Option<Untrusted> {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let path = path.display();
    if is_foreign(owner) {
        return Some(Untrusted {
            what: format!("{path} is owned by user {owner}"),
            remedy: format!("run: chown root:root {path}"),
        });
    }
    (mode & OTHERS_WRITE != 0).then(|| Untrusted {
        what: format!("{path} has mode {mode:04o}, so other users can write it"),
        remedy: format!("check its content for changes, then run: chmod go-w {path}"),
    })
}

/// Returns the reason why a directory is not trusted, by the same rules as for a file. A sticky directory, such as
/// `/tmp`, is trusted even if others can write to it, because they cannot replace the files of other users.
pub(crate) fn of_folder(path: &Path, metadata: &Metadata) -> Option<Untrusted> {
    let is_sticky = metadata.is_dir() && metadata.mode() & STICKY != 0;
    of_file(path, metadata).filter(|_| !is_sticky)
}

/// Returns the reason why a file, or a directory or link on its path, is not trusted. `None` if the file does not
/// exist. Only programs that root runs are checked, because other users are responsible for their own programs.
pub fn of_path(path: &Path) -> Option<Untrusted> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let path = std::path::absolute(path).ok()?;
    on_the_way(&path, MAX_LINKS)
}

fn on_the_way(path: &Path, links: u32) -> Option<Untrusted> {
    let mut places: Vec<_> = path.ancestors().collect();
    places.reverse();
    for place in places {
        let metadata = fs::symlink_metadata(place).ok()?;
        if metadata.is_symlink() {
            let owner = metadata.uid();
            if is_foreign(owner) {
                let place = place.display();
                return Some(Untrusted {
                    what: format!("{place} is a link that is owned by user {owner}"),
                    remedy: format!("run: chown --no-dereference root:root {place}"),
                });
            }
            let target = place.parent()?.join(fs::read_link(place).ok()?);
            let rest = path.strip_prefix(place).ok()?;
            let path = if rest.as_os_str().is_empty() {
                target
            } else {
                target.join(rest)
            };
            return on_the_way(&path, links.checked_sub(1)?);
        }
        if let Some(untrusted) = of_folder(place, &metadata) {
            return Some(untrusted);
        }
    }
    None
}

fn is_foreign(owner: u32) -> bool {
    owner != 0 && owner != rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// A directory with a program in `a/b`, and a link to `a`.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        let program = root.path().join("a/b/program");
        fs::write(&program, "").unwrap();
        for place in ["", "a", "a/b", "a/b/program"] {
            set_mode(&root.path().join(place), 0o755);
        }
        symlink("a", root.path().join("link")).unwrap();
        (root, program)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Runs the command that the remedy contains.
    #[track_caller]
    fn follow(untrusted: &Untrusted) {
        let (_, command) = untrusted.remedy.split_once("run: ").unwrap();
        let status = Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(status.success(), "{command}: {status}");
    }

    #[test]
    fn a_path_that_another_user_can_change_is_not_trusted() {
        assert!(
            rustix::process::geteuid().is_root(),
            "only paths of programs that root runs are checked: run this test as root"
        );
        let (root, program) = folder();
        let linked = root.path().join("link/b/program");
        for path in [&program, &linked] {
            assert_eq!(of_path(path), None);
        }
        for (place, mode, words) in [
            ("a/b/program", 0o775, "has mode 0775"),
            ("a/b/program", 0o757, "has mode 0757"),
            ("a/b", 0o777, "has mode 0777"),
            ("a", 0o775, "has mode 0775"),
        ] {
            let place = root.path().join(place);
            for path in [&program, &linked] {
                set_mode(&place, mode);
                let untrusted = of_path(path).unwrap();
                let what = &untrusted.what;
                assert!(what.contains(words), "{what}");
                assert!(what.starts_with(place.to_str().unwrap()), "{what}");
                follow(&untrusted);
                assert_eq!(of_path(path), None);
            }
        }
        // The directory has the mode of /tmp.
        set_mode(&root.path().join("a"), 0o1777);
        assert_eq!(of_path(&program), None);
    }

    #[test]
    fn a_path_owned_by_another_user_is_not_trusted() {
        assert!(
            rustix::process::geteuid().is_root(),
            "only paths of programs that root runs are checked: run this test as root"
        );
        for place in ["a/b/program", "a/b", "a"] {
            let (root, program) = folder();
            chown(root.path().join(place), Some(1000), None).unwrap();
            let untrusted = of_path(&program).unwrap();
            assert!(
                untrusted.what.ends_with("is owned by user 1000"),
                "{untrusted:?}"
            );
            follow(&untrusted);
            assert_eq!(of_path(&program), None);
        }
        let (root, _) = folder();
        let link = root.path().join("link");
        std::os::unix::fs::lchown(&link, Some(1000), None).unwrap();
        let linked = link.join("b/program");
        let untrusted = of_path(&linked).unwrap();
        assert!(untrusted.what.contains("is a link"), "{untrusted:?}");
        follow(&untrusted);
        assert_eq!(of_path(&linked), None);
    }

    #[test]
    fn a_missing_or_looping_path_has_no_ownership_finding() {
        let (root, _) = folder();
        symlink("loop", root.path().join("loop")).unwrap();

        assert_eq!(of_path(&root.path().join("loop/x")), None);
        assert_eq!(of_path(&root.path().join("missing")), None);
    }
}
