//! The sources of a built program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Returns a source that changed after the program was built, or that no longer exists. Cargo lists the sources next to
/// the program, including the sources of the libraries in the workspace. `None` if the list does not exist.
pub(crate) fn changed(program: &Path) -> Option<PathBuf> {
    let list = fs::read_to_string(program.with_extension("d")).ok()?;
    let built = modified(program)?;
    let is_changed = |source: &PathBuf| modified(source).is_none_or(|time| time > built);
    sources(&list).into_iter().find(is_changed)
}

fn modified(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).ok()?.modified().ok()
}

/// The absolute paths after `PROGRAM:` in a list for `make`. In these lists, a backslash precedes each space in a path.
/// With the setting `dep-info-basedir`, cargo writes relative paths.
fn sources(list: &str) -> Vec<PathBuf> {
    let Some((_, list)) = list.split_once(": ") else {
        return Vec::new();
    };
    let list = list.trim_end().replace("\\ ", "\0");
    let paths = list.split(' ').filter(|path| !path.is_empty());
    paths
        .map(|path| PathBuf::from(path.replace('\0', " ")))
        .filter(|path| path.is_absolute())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BUILT: Duration = Duration::from_hours(500_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn write(file: &Path, text: &str, modified: Duration) {
        fs::write(file, text).unwrap();
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + modified)
            .unwrap();
    }

    /// Returns the changed source of a program with two sources, the second of which was modified at this time, or
    /// deleted.
    fn changed_with(second: Option<Duration>) -> Option<String> {
        let files = tempfile::tempdir().unwrap();
        let [program, first, other] =
            ["program", "a b.rs", "c.rs"].map(|name| files.path().join(name));
        write(&program, "", BUILT);
        write(&first, "", BUILT - SECOND);
        if let Some(modified) = second {
            write(&other, "", modified);
        }
        let paths = [&program, &first, &other];
        let [program_path, first, other] =
            paths.map(|path| path.to_str().unwrap().replace(' ', "\\ "));
        let list = format!("{program_path}: {first} {other}\n");
        fs::write(program.with_extension("d"), list).unwrap();

        let changed = changed(&program)?;
        let name = changed.file_name().unwrap();
        Some(name.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_program_older_than_one_of_its_sources_is_stale() {
        assert_eq!(changed_with(Some(BUILT - SECOND)), None);
        assert_eq!(changed_with(Some(BUILT)), None);
        let changed = changed_with(Some(BUILT + SECOND));
        assert_eq!(changed.as_deref(), Some("c.rs"));
    }

    #[test]
    fn a_program_with_a_deleted_source_is_stale() {
        assert_eq!(changed_with(None).as_deref(), Some("c.rs"));
    }

    #[test]
    fn a_program_without_a_list_of_its_sources_is_not_stale() {
        let files = tempfile::tempdir().unwrap();
        let program = files.path().join("program");
        write(&program, "", BUILT);

        assert_eq!(changed(&program), None);
    }

    #[test]
    fn the_sources_of_a_program_can_have_spaces_in_their_paths() {
        let list = "/a\\ b/target/debug/program: /a\\ b/src/main.rs /c/src/lib.rs\n";

        let expected = ["/a b/src/main.rs", "/c/src/lib.rs"].map(PathBuf::from);
        assert_eq!(sources(list), expected);
        assert!(sources("/a/program:\n").is_empty());
    }
}
